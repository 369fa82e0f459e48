// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/blocking_io.h"

#include <sys/uio.h>
#include <unistd.h>

#include "tlib/server/transfer.h"

namespace termfs::tlib::server {

void RunBlocking(int fd, uint64_t start, std::span<BlockIo> ios) {
  for (BlockIo& io : ios) {
    Transfer transfer(io, start);
    int64_t result = 0;
    do {
      const auto offset = static_cast<off_t>(transfer.offset());
      result = transfer.is_read() ? preadv(fd, transfer.pieces(), transfer.count(), offset)
                                  : pwritev(fd, transfer.pieces(), transfer.count(), offset);
      if (result < 0) {
        result = -errno;
      }
    } while (result == -EINTR || !transfer.Advance(result));
  }
}

Status FlushBlocking(int fd) {
  while (fdatasync(fd) != 0) {
    if (errno != EINTR) {
      return ErrnoStatus("flush the device");
    }
  }
  return Status::Ok();
}

}  // namespace termfs::tlib::server

// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <sys/random.h>

namespace termfs {

Status SecureRandom(void* data, size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = getrandom(at, size, 0);
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      return ErrnoStatus("read random bytes from the kernel");
    }
    at += got;
    size -= static_cast<size_t>(got);
  }
  return Status::Ok();
}

}  // namespace termfs

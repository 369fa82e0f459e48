// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "mount/front_end.h"
#include "mount/fuse_operations.h"
#include "mount/fuse_server.h"

namespace termfs::mount {
namespace {

constexpr unsigned kMinorWithEpochs = 44;  // of the protocol; FUSE_NOTIFY_INC_EPOCH

}  // namespace

void OnInit(void* userdata, fuse_conn_info* connection) {
  auto& front = *static_cast<FrontEnd*>(userdata);
  // Umasks come here together with lists, as a default list comes before them.
  const uint64_t lists = front.acl() ? FUSE_CAP_POSIX_ACL | FUSE_CAP_DONT_MASK : 0;
  const uint64_t wanted = lists | FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS |
                          FUSE_CAP_ATOMIC_O_TRUNC | FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
                          FUSE_CAP_EXPORT_SUPPORT |                      // inode numbers are never used twice
                          FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS |  // between all mounts
                          // Mapped pages are dropped when the size or the times show that the file changed elsewhere.
                          FUSE_CAP_AUTO_INVAL_DATA;
  // The others are refused: see "What the kernel offers".
  Agree(connection, wanted);
  if (connection->proto_minor >= kMinorWithEpochs) {
    front.cache().HasEpochs();
  } else {
    LOG_INFO("this kernel has no epochs for directory entries (6.16 has them): it looks up every name each time");
  }
  if (!OffersDirectMmap(FuseServer::request().offered)) {
    LOG_WARNING("this kernel does not allow MAP_SHARED together with direct I/O (6.6 does): mmap of files will fail");
  }
}

}  // namespace termfs::mount

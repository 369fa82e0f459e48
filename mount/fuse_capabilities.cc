// SPDX-License-Identifier: Apache-2.0
//
// What every mount takes of the kernel's FUSE, whatever it mounts. See "What the kernel offers".
#include "mount/fuse_server.h"

namespace termfs::mount {
namespace {

// Requests of one kind that the kernel sends without waiting (readahead of mappings, asynchronous direct I/O).
constexpr unsigned kMaxBackground = 64;

}  // namespace

void Agree(fuse_conn_info* connection, uint64_t wanted) {
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
  fuse_unset_feature_flag(connection, ~uint64_t{0});
  fuse_set_feature_flag(connection, wanted & connection->capable_ext);
#else
  connection->want = static_cast<unsigned>(wanted) & connection->capable;
#endif
  connection->max_write = kMaxIo;
  connection->max_readahead = kMaxIo;
  connection->max_background = kMaxBackground;
  connection->congestion_threshold = kMaxBackground * 3 / 4;
  connection->time_gran = 1;
}

void MakeDirect(fuse_file_info* info) { info->direct_io = 1; }

}  // namespace termfs::mount

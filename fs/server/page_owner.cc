// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

// Among the files in memory: the store would have to be read from one end to the other, from a disk that may fail, too.
std::string FileService::OwnerOf(PageIndex page) {
  for (const InodeRef& inode : inodes_.All()) {
    MutexLock lock(inode->mutex);
    for (const Segment& segment : inode->extents.segments()) {
      if (!segment.is_hole() && page.value >= segment.region_page && page.value - segment.region_page < segment.pages) {
        const uint64_t file_page = segment.file_page + (page.value - segment.region_page);
        return fmt::format("inode {} at {}", inode->ino, file_page << kPageBits);
      }
    }
  }
  return {};
}

}  // namespace termfs::fs::server

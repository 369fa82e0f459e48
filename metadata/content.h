// SPDX-License-Identifier: Apache-2.0
//
// Giving back what an inode holds, in bounded portions. Each function frees at most kFreeStep records in the
// operation's transaction and says how far it came.
//
// Thread-safety: as the Operation's. REQUIRES for all: the inode is claimed.
#pragma once

#include "base/result.h"
#include "metadata/operation.h"
#include "metadata/records.h"

namespace termfs::metadata {

// Frees the pages in [begin, end) of the file. Returns the page up to which that is done; `end` when all is.
Result<uint64_t> FreeExtents(Operation& op, InodeRecord& inode, uint64_t begin, uint64_t end);

// Frees extents from inode.trim_page on, and moves it. True when none is left; then trim_page is kNoTrim.
Result<bool> Trim(Operation& op, InodeRecord& inode);

// Frees everything, extents and xattrs. True when nothing is left. `from_start` for the first of a row of calls: the
// others go on at inode.trim_page. REQUIRES: the inode has no name.
Result<bool> FreeContent(Operation& op, InodeRecord& inode, bool from_start);

// Takes a name from an inode whose dentry is gone. After its last one it goes away at once if it holds little and is
// not open, else it becomes an orphan. Directories too (they must be empty).
Result<Removed> DropLink(Operation& op, InodeRecord& inode, const MayBeOpen& open, Nanoseconds now);

// Deletes the records of an inode that has no name and no content.
Status DeleteInode(Operation& op, const InodeRecord& inode);

}  // namespace termfs::metadata

// SPDX-License-Identifier: Apache-2.0
//
// What an inode is when it is made in a directory.
//
// Thread-safety: as the Operation's.
#pragma once

#include "base/result.h"
#include "metadata/operation.h"
#include "metadata/records.h"

namespace termfs::metadata {

// With one name, or as an empty directory.
InodeRecord MakeInode(InodeNumber ino, const NewInode& wanted, const InodeRecord& dir, Caller caller, Nanoseconds now);

// The directory's default access control list, or else the caller's umask, limits the mode of what is made in it.
Status InheritAcl(Operation& op, const InodeRecord& dir, uint32_t umask, InodeRecord& made);

}  // namespace termfs::metadata

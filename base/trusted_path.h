// SPDX-License-Identifier: Apache-2.0
//
// Paths that lead only to where root and the user of this process want them to: all that another user could do to such
// a path is nothing. A program that runs as root opens, creates and removes files only there; else another user's link
// would have it do so anywhere.
//
// Trusted is a directory that belongs to root or to this process's effective user, that no other user may write to, and
// all of whose parents up to / are so, too; a parent may be sticky instead, such as /tmp. Symbolic links on the way are
// followed where the link and what it leads to are trusted. The owner's private group, which has the same number as the
// owner and is not root's, counts as the owner (umask 002). What is trusted stays so while root and the user of this
// process do nothing to the contrary.
//
// Thread-safety: free functions. Ownership: none.
// Errors:        EPERM: not trusted; the text names the path, its owner and the remedy. ENOENT, ENOTDIR, EACCES, ELOOP
//                as of open(2).
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace termfs {

// What others may do to the last directory, for a caller that looks at each name in it by itself. kSticky: make names
// of their own there. kShared: whatever they like.
enum class LastDirectory : uint8_t { kTrusted, kSticky, kShared };

// The path of the trusted directory `path` without links, dots and repeated slashes.
Result<std::string> TrustedDirectory(const std::string& path, LastDirectory last = LastDirectory::kTrusted);

// The path, without links, of what `path` names: in a trusted directory, and if it is there, of root or this user, and,
// block and character devices apart, not to be written to by others. ENOENT only for the directory.
Result<std::string> TrustedFile(const std::string& path);

// Everything in the directory `path`, and in the directories in it, belongs to root or to this user and is not to be
// written to by others. A symbolic link is refused, but for those in `path` itself that `may_be_links` holds, as
// " NAME NAME ", which are followed as by TrustedFile. Sockets are passed over. REQUIRES: TrustedDirectory(path).
Status CheckContents(const std::string& path, const std::string& may_be_links);

}  // namespace termfs

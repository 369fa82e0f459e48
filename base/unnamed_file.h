// SPDX-License-Identifier: Apache-2.0
//
// A file that ends with the process unless it gets a name: what a process that is killed before it was ready leaves of
// it is nothing.
//
// Thread-safety: free functions.
// Errors:        those of the file system; EOPNOTSUPP: it has no such files.
#pragma once

#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs {

// In the directory of `path`, on its file system; open for reading and writing, whatever `mode` will allow to others.
Result<UniqueFd> OpenUnnamed(const std::string& path, unsigned int mode);
// EEXIST: there is one of that name. REQUIRES: OpenUnnamed of the same directory, and no name yet.
Status NameFile(const UniqueFd& fd, const std::string& path);

}  // namespace termfs

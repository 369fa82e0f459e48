// SPDX-License-Identifier: Apache-2.0
//
// Files of a few hundred bytes that say something about others. Their paths have a slash.
//
// Thread-safety: free functions, on different files.
// Errors:        those of the file system.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace termfs::tlib::server {

// At most the first `most` bytes. ENOENT: there is none.
Result<std::string> ReadSmall(const std::string& path, size_t most);
// The old file or the new one is there, whole, at any instant; durable when it returns.
Status ReplaceSmall(const std::string& path, std::string_view bytes);
// It may be gone already; durable when it returns.
Status RemoveSmall(const std::string& path);
// With the slash at its end.
std::string FolderOf(const std::string& path);

}  // namespace termfs::tlib::server

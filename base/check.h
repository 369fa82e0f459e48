// SPDX-License-Identifier: Apache-2.0
//
// TERMFS_CHECK(condition): aborts with file and line when the condition is false. For programmer's errors only:
// never on bytes that come from the network, a disk, the kernel or a user.
#pragma once

namespace termfs {

[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

}  // namespace termfs

#define TERMFS_CHECK(condition)                              \
  do {                                                       \
    if (!(condition)) [[unlikely]] {                         \
      ::termfs::CheckFailed(#condition, __FILE__, __LINE__); \
    }                                                        \
  } while (false)

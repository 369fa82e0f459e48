// SPDX-License-Identifier: Apache-2.0
//
// What a kFsLock may say besides the numbers of LockType: a descriptor of the owner's file is being closed. If it is
// the last one, the owner's locks end with the kFsRelease that follows in a moment; so until then no request is refused
// because of them.
#pragma once

#include <cstdint>

namespace termfs::fs {

inline constexpr uint8_t kLockCloses = 3;

}  // namespace termfs::fs

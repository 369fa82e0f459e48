// SPDX-License-Identifier: Apache-2.0
//
// NameHash: the order of a directory's entries. A cursor is the hash of a name and, below it, the entry's index among
// names with the same hash; the index is stored with the entry, so that a cursor means the same for ever.
//
// Thread-safety: a value.
#pragma once

#include <cstdint>
#include <string_view>

#include "metadata/types.h"

namespace termfs::metadata {

inline constexpr int kIndexBits = 8;

class NameHash {
 public:
  // The uuid seeds it, so that names which collide in one volume do not in another.
  NameHash(const Uuid& uuid, uint32_t bits);
  // 1 to 2^bits - 1, and below 2^55.
  uint64_t operator()(std::string_view name) const;

 private:
  uint64_t seed_;
  uint32_t bits_;
};

// Above 2, and below 2^63.
inline uint64_t CursorOf(uint64_t hash, uint8_t index) { return hash << kIndexBits | index; }
inline uint64_t HashOfCursor(uint64_t cursor) { return cursor >> kIndexBits; }

}  // namespace termfs::metadata

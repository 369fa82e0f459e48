// SPDX-License-Identifier: Apache-2.0
#include "metadata/name_hash.h"

#include <xxhash.h>

#include <algorithm>

namespace termfs::metadata {

NameHash::NameHash(const Uuid& uuid, uint32_t bits) : seed_(XXH64(uuid.data(), uuid.size(), 0)), bits_(bits) {}

uint64_t NameHash::operator()(std::string_view name) const {
  return std::max<uint64_t>(XXH3_64bits_withSeed(name.data(), name.size(), seed_) >> (64 - bits_), 1);
}

}  // namespace termfs::metadata

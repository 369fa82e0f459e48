// SPDX-License-Identifier: Apache-2.0
//
// The scatter/gather elements of a work request, with the device's own keys.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "driver/device.h"
#include "driver/nic.h"

namespace termfs::driver::verbs {

constexpr size_t kMostParts = 2;  // of what is one piece of memory to another RNIC: pieces are smaller than its parts
using Elements = std::array<ibv_sge, kMostParts>;

inline ibv_sge ElementOf(const ScatterGather& local) {
  return {.addr = reinterpret_cast<uintptr_t>(local.addr), .length = local.length, .lkey = local.lkey.value};
}

// How many it takes; absent: the key is not known.
inline std::optional<int> ElementsOf(const LocalKeyMap* keys, const ScatterGather& local, Elements& elements) {
  if (local.length == 0) {
    return 0;
  }
  if (keys == nullptr) {
    elements[0] = ElementOf(local);
    return 1;
  }
  std::array<ScatterGather, kMostParts> parts;
  const size_t count = keys->Translate(local, parts);
  std::transform(parts.begin(), parts.begin() + static_cast<ptrdiff_t>(count), elements.begin(), ElementOf);
  return count != 0 ? std::optional(static_cast<int>(count)) : std::nullopt;
}

}  // namespace termfs::driver::verbs

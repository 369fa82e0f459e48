// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tlib/rpc/decode.h"

namespace termfs::tlib::client {

// The pages of reads[read] that have to be fetched: bit i, the i-th page it touches.
struct MissingPages {
  uint32_t read = 0;
  ReadBitmap bits{};
};

inline void AddMissing(std::vector<MissingPages>& missing, uint32_t read, uint32_t page) {
  // Reads come in order, but what was READ is looked at again a window later: search from the end.
  auto found = missing.rbegin();
  while (found != missing.rend() && found->read != read) {
    ++found;
  }
  MissingPages& pages = found != missing.rend() ? *found : missing.emplace_back(MissingPages{.read = read});
  pages.bits[page / 64] |= uint64_t{1} << (page % 64);
}

}  // namespace termfs::tlib::client

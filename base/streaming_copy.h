// SPDX-License-Identifier: Apache-2.0
//
// A copy past the processor's caches, for bytes that nobody reads soon: a cache line that is stored whole that way need
// not be loaded first, and nothing else has to leave the caches for it.
//
// Thread-safety: as memcpy's. Stores of this kind are ordered neither among themselves nor with ordinary ones; those of
//                CopyPageStreaming come after all stores before the call and before all after it, so that a word may
//                guard the page.
#pragma once

#include <cstddef>
#include <cstring>

#include "base/page.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace termfs {

inline void OrderStreamingCopies() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// One page. `to` is page-aligned, `from` need not be. Ordered by OrderStreamingCopies alone: several copies between two
// of those overlap, where each with its own waits for the memory.
inline void CopyPageStreamingUnordered(std::byte* to, const std::byte* from) {
#if defined(__SSE2__)
  auto* out = reinterpret_cast<__m128i*>(to);
  const auto* in = reinterpret_cast<const __m128i*>(from);
  for (size_t i = 0; i < kPageSize / sizeof(__m128i); i++) {
    _mm_stream_si128(out + i, _mm_loadu_si128(in + i));
  }
#else
  std::memcpy(to, from, kPageSize);
#endif
}

inline void CopyPageStreaming(std::byte* to, const std::byte* from) {
  OrderStreamingCopies();
  CopyPageStreamingUnordered(to, from);
  OrderStreamingCopies();
}

}  // namespace termfs

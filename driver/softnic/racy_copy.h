// SPDX-License-Identifier: Apache-2.0
//
// Copying memory that a peer may be changing at the same moment, and the two fences that make such a copy checkable.
// The only places where the software RNIC reads or writes non-atomic memory without owning it. What was copied may be
// torn; whoever copies either finds out (page_table.h) or does not care, as with a real RNIC.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TERMFS_RACY_COPY_BY_HAND 1
#endif
#endif

namespace termfs::driver::softnic {

#if defined(TERMFS_RACY_COPY_BY_HAND)
// The thread sanitizer intercepts memcpy even here; volatile keeps the compiler from making one out of the loop.
__attribute__((no_sanitize("thread"))) inline void RacyCopy(void* to, const void* from, size_t size) {
  auto* out = static_cast<volatile unsigned char*>(to);
  const auto* in = static_cast<const volatile unsigned char*>(from);
  for (size_t i = 0; i < size; i++) {
    out[i] = in[i];
  }
}
inline void RacyCopyOfCold(void* to, const void* from, size_t size) { RacyCopy(to, from, size); }
#else
inline void RacyCopy(void* to, const void* from, size_t size) { std::memcpy(to, from, size); }
// Of bytes that are in no cache of this CPU: the processor's own copy asks memory for more of them at a time than
// memcpy's loads do. READs of random pages over TCP take 7% less of both CPUs by it.
inline void RacyCopyOfCold(void* to, const void* from, size_t size) {
#if defined(__x86_64__)
  constexpr size_t kWorthIt = 1024;
  if (size >= kWorthIt) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
    return;
  }
#endif
  RacyCopy(to, from, size);
}
#endif

// Between a racy copy and the second look at the word that guards it. Pairs with FenceBeforeRacyWrites
// (driver/page_table.h): when the copy saw a byte written after that fence, the second look sees the guard's change
// before it.
inline void FenceAfterRacyReads() { std::atomic_thread_fence(std::memory_order_acquire); }

}  // namespace termfs::driver::softnic

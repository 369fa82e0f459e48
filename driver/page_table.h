// SPDX-License-Identifier: Apache-2.0
//
// The entries of an RNIC page table that software keeps: an array of 64-bit words in memory that peers may READ or map,
// one per page, {generation, frame}; two values of the frame are no frames: magic (absent) and writing. The server
// alone writes them. Two kinds of readers go by them: the software RNIC, which looks at the entry before and after it
// copies, and clients that validate their READs (ReadWay::kValidated in driver/nic.h), which do the same over a wire.
//
// Protocol, a sequence lock per page: the owner changes the entry before the first byte of a frame and again, with a
// new generation, after the last. A reader looks at the entry, copies, and looks again:
//   (1) bytes of a frame change only while no entry names it. A load by DMA into a frame is no exception: HideEntry and
//       BeginWriteEntry come before the request that has the device write is handed to the kernel, which makes
//       everything stored before visible to the device and to every other one before the device hears of it;
//   (2) an entry that names a frame is never stored twice with the same generation, so an unchanged entry means that
//       the frame belonged to the page during the whole copy. Nor after a restart: who takes over a table goes on from
//       its generations, and a new table is READ with new keys.
//   (3) an entry changes at once, so a reader has to take it in one access of 64 aligned bits. With an RDMA device,
//       which reads memory by cache lines, that is so.
// A generation wraps after 2^34 publications of one page; a reader would have to sleep through exactly that many.
// Generation 0 was never published: an entry that was not made yet, all zeros, names nothing.
//
// Thread-safety: writers of one page are serialised by the caller; readers in any process at any time.
#pragma once

#include <atomic>
#include <cstdint>

namespace termfs::driver {

inline constexpr int kFrameBits = 30;
inline constexpr uint64_t kFrameMask = (uint64_t{1} << kFrameBits) - 1;
inline constexpr uint32_t kMagicFrame = kFrameMask;
inline constexpr uint32_t kWritingFrame = kFrameMask - 1;

using PageTableEntry = std::atomic<uint64_t>;
static_assert(PageTableEntry::is_always_lock_free && sizeof(PageTableEntry) == sizeof(uint64_t));

constexpr uint32_t FrameOf(uint64_t entry) { return static_cast<uint32_t>(entry & kFrameMask); }
constexpr uint64_t GenerationOf(uint64_t entry) { return entry >> kFrameBits; }
constexpr uint64_t MakeEntry(uint64_t generation, uint32_t frame) { return (generation << kFrameBits) | frame; }

// Between the change of an entry and the first write to the frame that it named.
inline void FenceBeforeRacyWrites() { std::atomic_thread_fence(std::memory_order_release); }

inline void HideEntry(PageTableEntry& entry) {
  const uint64_t now = entry.load(std::memory_order_relaxed);
  entry.store(MakeEntry(GenerationOf(now), kMagicFrame), std::memory_order_relaxed);
  FenceBeforeRacyWrites();  // the frame may be filled for another page next
}

inline void BeginWriteEntry(PageTableEntry& entry) {
  const uint64_t now = entry.load(std::memory_order_relaxed);
  entry.store(MakeEntry(GenerationOf(now), kWritingFrame), std::memory_order_relaxed);
  FenceBeforeRacyWrites();
}

inline void PublishEntry(PageTableEntry& entry, uint32_t frame) {
  const uint64_t now = entry.load(std::memory_order_relaxed);
  // Release: a reader that sees the entry sees the frame's bytes. (Sequentially consistent against the count of
  // waiting faults, softnic/term_region.cc.)
  entry.store(MakeEntry(GenerationOf(now) + 1, frame), std::memory_order_seq_cst);
  FenceBeforeRacyWrites();  // where the page has moved, its former frame may be filled for another page next
}

}  // namespace termfs::driver

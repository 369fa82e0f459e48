// SPDX-License-Identifier: Apache-2.0
//
// PageTableView: what a session that validates its READs knows of the server's page table (driver/page_table.h). It may
// be old: whoever goes by an entry READs it again afterwards. An entry is *unknown* (0) until its block was READ: a
// block is 512 entries, a page of them, so that a first access brings those of its neighbours along. Blocks that were
// asked for are in use, and are READ again in turn (table_puller.h); those that nobody asked for cost nothing, however
// large the region is.
//
// The server's table is READ by a key that is good for as many entries as the region had pages when it was told: for
// the pages of a region that has grown there is another.
//
// Thread-safety: any thread.
// Ownership:     its memory is reserved for the largest region, and taken as blocks come into use.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "driver/nic.h"

namespace termfs::tlib::client {

class PageTableView {
 public:
  static constexpr uint64_t kUnknown = 0;
  static constexpr uint64_t kBlockPages = 512;

  static Result<std::unique_ptr<PageTableView>> Create(uint64_t max_pages);
  ~PageTableView();
  PageTableView(const PageTableView&) = delete;
  PageTableView& operator=(const PageTableView&) = delete;

  uint64_t blocks() const { return (covered() + kBlockPages - 1) / kBlockPages; }
  // The server's entries of [0, pages) are READ by `rkey`. A key for fewer pages than are covered changes nothing.
  void Cover(uint64_t pages, driver::RKey rkey) EXCLUDES(mutex_);
  uint64_t covered() const { return covered_.load(std::memory_order_acquire); }
  // REQUIRES: page < the pages that it was created for.
  uint64_t entry(uint64_t page) const { return entries_[page].load(std::memory_order_relaxed); }
  void Set(uint64_t page, uint64_t entry) { entries_[page].store(entry, std::memory_order_relaxed); }
  static bool NamesFrame(uint64_t entry) {
    return driver::GenerationOf(entry) != 0 && driver::FrameOf(entry) < driver::kWritingFrame;
  }

  // What a reply says of the page: it is in some frame, or in none.
  void Learn(uint64_t page, bool present) {
    if (!present) {
      Set(page, driver::MakeEntry(0, driver::kMagicFrame));
    } else if (!NamesFrame(entry(page))) {
      Set(page, kUnknown);
    }
  }

  void Use(uint64_t block) { used_[block / 64].fetch_or(uint64_t{1} << (block % 64), std::memory_order_relaxed); }
  // A READ of the entries [first, first + count) to `to`. REQUIRES: first + count <= covered(). `entries_offset`: as in
  // driver::RegionKeys.
  driver::SendWorkRequest ReadOf(uint64_t first, uint64_t count, uint64_t entries_offset, uint64_t* to,
                                 driver::LKey lkey) const;
  // How many of a block's entries are covered. REQUIRES: one is.
  uint64_t CoveredOf(uint64_t block) const { return std::min(kBlockPages, covered() - block * kBlockPages); }
  // The first block in use at or after `block`.
  std::optional<uint64_t> NextUsed(uint64_t block) const;

 private:
  PageTableView(uint64_t pages, std::atomic<uint64_t>* entries)
      : pages_(pages), entries_(entries), used_(pages / kBlockPages / 64 + 1) {}

  const uint64_t pages_;
  std::atomic<uint64_t>* const entries_;
  Mutex mutex_;
  std::atomic<uint32_t> rkey_{0};
  std::atomic<uint64_t> covered_{0};         // stored after the key: who sees so many pages has a key for them
  std::vector<std::atomic<uint64_t>> used_;  // a bit per block
};

}  // namespace termfs::tlib::client

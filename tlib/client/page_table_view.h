// SPDX-License-Identifier: Apache-2.0
//
// PageTableView: what a session that validates its READs knows of the server's page table (driver/page_table.h). It may
// be old: whoever goes by an entry READs it again afterwards. An entry is *unknown* (0) until its block was READ: a
// block is 512 entries, a page of them, so that a first access brings those of its neighbours along. Blocks that were
// asked for are in use, and are READ again in turn (table_puller.h); those that nobody asked for cost nothing, however
// large the region is.
//
// Thread-safety: any thread.
// Ownership:     its memory is reserved for the largest region, and taken as blocks come into use.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

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

  uint64_t pages() const { return pages_; }
  uint64_t blocks() const { return (pages_ + kBlockPages - 1) / kBlockPages; }
  // REQUIRES: page < pages().
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
  // The first block in use at or after `block`.
  std::optional<uint64_t> NextUsed(uint64_t block) const;

 private:
  PageTableView(uint64_t pages, std::atomic<uint64_t>* entries)
      : pages_(pages), entries_(entries), used_(pages / kBlockPages / 64 + 1) {}

  const uint64_t pages_;
  std::atomic<uint64_t>* const entries_;
  std::vector<std::atomic<uint64_t>> used_;  // a bit per block
};

}  // namespace termfs::tlib::client

// SPDX-License-Identifier: Apache-2.0
//
// TablePuller: keeps the session's copy of the page table fresh, where it is used (page_table_view.h): in each period
// it READs some of the blocks in use, in turn, so that a period costs no more as the region grows.
//
// Thread-safety: the session's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/metrics.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/client/session_core.h"

namespace termfs::tlib::client {

class TablePuller {
 public:
  using Read = std::function<Status(const driver::SendWorkRequest&)>;  // returns when it has completed

  // `bytes`: to be READ in a period, at least a block's. `read` carries out a READ.
  static Result<std::unique_ptr<TablePuller>> Create(SessionCore& core, uint64_t bytes, Read read);
  Status PullInTurn();

 private:
  static constexpr uint64_t kMostBlocks = 16;  // at a time

  TablePuller(SessionCore& core, uint64_t blocks, Read read)
      : core_(core),
        blocks_(blocks),
        read_(std::move(read)),
        pulls_(core.metrics().counter("bitmap_pulls_total")),
        pulled_bytes_(core.metrics().counter("bitmap_pulled_bytes_total")) {}
  Status PullBlocks(uint64_t first, uint64_t count);

  SessionCore& core_;
  const uint64_t blocks_;
  const Read read_;
  Counter& pulls_;
  Counter& pulled_bytes_;
  uint64_t next_ = 0;
  std::unique_ptr<uint64_t[]> entries_;
  std::unique_ptr<driver::MemoryRegion> entries_region_;
};

}  // namespace termfs::tlib::client

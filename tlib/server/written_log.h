// SPDX-License-Identifier: Apache-2.0
//
// WrittenLog: the durable written marks, one bit per page of a region. A page whose bit is clear reads as zeros,
// whatever the SSD holds. See DESIGN "Writtenness": a bit is set only after the page's bytes are on the SSD and the
// device was flushed, so after power loss no one sees another file's old bytes.
//
// On its device (numbers little-endian), for block i of the bitmap two slots of 4 KiB at (2 i) and (2 i + 1):
//
//   0  magic "TFSWRTLG"   8  version (4), CRC-32C of the slot with this field 0 (4)   16  sequence   24  i
//   32  pages: the region's size when the slot was written; it may have changed since
//   64 bits of kPagesPerBlock pages
//
// A block is written to the slot that does not hold its newest copy, with the next sequence; so power loss during an
// update tears a copy that nobody relies on yet. At opening the newest intact copy counts. A damaged copy next to an
// intact one is taken for such a torn update, and logged; two damaged copies are refused.
//
// Thread-safety: Set, Clear, IsSet: any thread. Sync: tasks of any workers.
// Errors:        Open: EUCLEAN when both copies of a block are damaged, or the log is of a smaller region or another
// version.
//                Sync: the device's; what it was to write is written by the next one.
// Durability:    what was Set and Cleared before Sync was called is durable when it returned ok.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/page.h"
#include "base/result.h"
#include "tlib/server/block_device.h"
#include "tlib/server/group_commit.h"

namespace termfs::tlib::server {

class WrittenLog {
 public:
  static constexpr uint64_t kSlotBytes = 4096;
  static constexpr uint64_t kHeaderBytes = 64;
  static constexpr uint64_t kPagesPerBlock = (kSlotBytes - kHeaderBytes) * 8;
  static_assert(kPagesPerBlock % 64 == 0);

  // Size of the log of a region of `pages`.
  static uint64_t BytesFor(uint64_t pages);
  // Writes a log without marks and flushes. Blocks.
  static Status Format(BlockDevice& device, uint64_t pages);
  // Blocks. `device` outlives the log.
  static Result<std::unique_ptr<WrittenLog>> Open(BlockDevice& device, uint64_t pages);
  WrittenLog(const WrittenLog&) = delete;
  WrittenLog& operator=(const WrittenLog&) = delete;

  // The region has `pages` from now on. Larger: new pages have no marks, durably after the next Sync; EINVAL: the
  // device is not long enough. Smaller: REQUIRES that no mark is set beyond the end. What the log then has beyond it is
  // left. Blocks. One caller at a time.
  Status Resize(uint64_t pages) EXCLUDES(mutex_);

  bool IsSet(PageIndex page) const EXCLUDES(mutex_) { return (SetOf64(page) >> (page.value % 64) & 1) != 0; }
  // Bit i: whether the i-th of the 64 pages is marked that `page` is among, the first one's number a multiple of 64.
  uint64_t SetOf64(PageIndex page) const EXCLUDES(mutex_);
  // In memory; durable with the next Sync.
  void Set(PageIndex page) EXCLUDES(mutex_) { Change(page, true); }
  void Clear(PageIndex page) EXCLUDES(mutex_) { Change(page, false); }
  // Calls `visit` for every page that is marked. Not while others change marks.
  void ForEach(const std::function<void(PageIndex)>& visit) const EXCLUDES(mutex_);

  Status Sync() EXCLUDES(mutex_) { return sync_.Run(); }

 private:
  struct alignas(kSlotBytes) Slot {
    std::array<char, 8> magic;
    uint32_t version;
    uint32_t crc;
    uint64_t sequence;
    uint64_t index;
    uint64_t pages;
    std::array<uint64_t, 3> reserved;
    std::array<uint64_t, (kSlotBytes - kHeaderBytes) / 8> bits;
  };
  static_assert(sizeof(Slot) == kSlotBytes);
  // What is known of a block besides its bits.
  struct Block {
    bool newest_in_second = false;
    bool changed = false;
  };

  WrittenLog(BlockDevice& device, uint64_t pages);
  static Status FormatBlocks(BlockDevice& device, uint64_t first, uint64_t end, uint64_t pages);
  static Slot EmptySlot(uint64_t index, uint64_t pages, uint64_t sequence);
  static uint32_t CrcOf(const Slot& slot);
  Status CheckSlot(const Slot& slot, uint64_t index) const;
  Status Load() EXCLUDES(mutex_);
  Status LoadBlock(uint64_t index, const Slot& first, const Slot& second) REQUIRES(mutex_);
  void ClearBeyondEnd() EXCLUDES(mutex_);
  void Change(PageIndex page, bool set) EXCLUDES(mutex_);
  Status SyncOnce() EXCLUDES(mutex_);

  BlockDevice& device_;
  GroupCommit sync_;
  mutable Mutex mutex_;
  uint64_t pages_ GUARDED_BY(mutex_);
  std::vector<Slot> slots_ GUARDED_BY(mutex_);  // the newest contents
  std::vector<Block> blocks_ GUARDED_BY(mutex_);
  std::vector<uint64_t> changed_ GUARDED_BY(mutex_);  // blocks with `changed` set
};

}  // namespace termfs::tlib::server

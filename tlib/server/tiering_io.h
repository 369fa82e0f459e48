// SPDX-License-Identifier: Apache-2.0
//
// TieringIo: reads and writes of the region. A present page is served from its frame, an absent one from the device by
// way of a bounce buffer, adjacent ones in one access; a page that was never written reads as zeros without touching
// the device. The kinds without frames run through the same code with a budget of none, so page states and the
// written rule hold for them too.
//
// A write goes to the page's frame, or takes a frame in, or, where none is to be had, through to the device: whole
// pages together, a part of a page by read, modify, write. A long run of whole pages takes its frames in together.
//
// Thread-safety: tasks of any workers.
// Errors:        EIO from the device; EINVAL beyond the region; whatever a sink or a check returns.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/page.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/block_device.h"
#include "tlib/server/bounce_pool.h"
#include "tlib/server/cleaner.h"
#include "tlib/server/frame_supply.h"
#include "tlib/server/page_states.h"
#include "tlib/server/pager.h"
#include "tlib/server/region.h"
#include "tlib/server/storage_metrics.h"
#include "tlib/server/tier_policy.h"
#include "tlib/server/written_log.h"

namespace termfs::tlib::server {

class TieringIo {
 public:
  // What it works with; all outlive it.
  struct Parts {
    driver::TermRegion& term;
    BlockDevice& device;
    WrittenLog& log;
    Frames& frames;
    PageStates& states;
    FrameSupply& supply;
    TierPolicy& policy;
    Cleaner& cleaner;
    Pager& pager;
    BouncePool& bounce;
    StorageMetrics& metrics;
  };

  explicit TieringIo(const Parts& parts);
  TieringIo(const TieringIo&) = delete;
  TieringIo& operator=(const TieringIo&) = delete;

  // As Region's.
  Status ReadPages(RegionOffset offset, uint64_t length, std::span<const uint64_t> missing, PieceSink& sink);
  Status Write(RegionOffset offset, std::span<const std::byte> from, const Region::Check& check);
  Status Zero(std::span<const PageRange> ranges);

 private:
  class ReadWindow;
  // The part of a page that a request touches.
  struct Part {
    PageIndex page;
    uint64_t begin = 0;  // in the page
    uint64_t end = kPageSize;
    bool of_big_write = false;
    uint64_t length() const { return end - begin; }
    bool whole() const { return length() == kPageSize; }
  };

  Status CheckRange(RegionOffset offset, uint64_t length) const;
  // `run`: absent whole pages from here on. `written` stays false when it is to be written through.
  Status WritePage(const Part& part, const std::byte* from, uint32_t run, const Region::Check& check, bool& written);
  // Whole absent pages from `first` on, as many of `count` as get frames at once; returns how many.
  Result<uint32_t> WriteRunIntoFrames(PageIndex first, uint32_t count, const std::byte* from,
                                      const Region::Check& check);
  void CopyInto(driver::FrameIndex frame, const Part& part, const std::byte* from) const;
  Status WritePresent(const Part& part, driver::FrameIndex frame, const std::byte* from, const Region::Check& check);
  Status WriteIntoNew(const Part& part, driver::FrameIndex frame, bool on_ssd, const std::byte* from,
                      const Region::Check& check);
  Status WritePartThrough(const Part& part, const std::byte* from, const Region::Check& check, bool& written);
  Status ModifyOnDevice(const Part& part, bool on_ssd, std::byte* bounce, const std::byte* from,
                        const Region::Check& check);
  // Whole pages from `first` on, as many of `count` as are absent; returns how many were written.
  Result<uint32_t> WriteRunThrough(PageIndex first, uint32_t count, const std::byte* from, const Region::Check& check);
  uint32_t AbsentRun(PageIndex first, uint64_t count) const;
  void NoteOnSsd(PageIndex page);
  void ZeroPage(PageIndex page);

  const Parts p_;
  Bounce zeros_;
};

}  // namespace termfs::tlib::server

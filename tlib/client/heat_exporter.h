// SPDX-License-Identifier: Apache-2.0
//
// HeatExporter: sums what the channels' rings hold and exports the pages that were read since the last time, in the
// memory region that the server READs (tlib/rpc/heat.h).
//
// Thread-safety: AddRing and RemoveRing from any thread; everything else from one thread, the session's.
// Ownership:     owns the exported memory; shares the rings with their channels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/client/access_ring.h"
#include "tlib/client/heat_pace.h"
#include "tlib/rpc/heat.h"

namespace termfs::tlib::client {

class HeatExporter {
 public:
  // `pages`: of the region, bounds what is exported.
  static Result<std::unique_ptr<HeatExporter>> Create(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                      uint64_t pages);
  HeatExporter(const HeatExporter&) = delete;
  HeatExporter& operator=(const HeatExporter&) = delete;

  driver::RKey rkey() const { return region_->rkey(); }
  uint64_t bytes() const { return memory_->size(); }
  driver::Memory& memory() { return *memory_; }

  std::shared_ptr<AccessRing> AddRing() EXCLUDES(mutex_);
  // What is still in it is not counted.
  void RemoveRing(const std::shared_ptr<AccessRing>& ring) EXCLUDES(mutex_);

  // Takes in what the rings hold; call it some times per Publish. Returns how many accesses were in the fullest one.
  uint32_t Drain() EXCLUDES(mutex_);
  // From now on one of so many accesses is counted, for as many.
  void SetSampling(uint32_t sampling) EXCLUDES(mutex_);
  // The next access rings `bell`, until SetSampling.
  void AwaitAccess(ActivityBell& bell) EXCLUDES(mutex_);
  // Before long there will be no room for another page.
  bool crowded() const { return used_.size() > capacity_ / 2 && capacity_ < pages_; }
  // Exports the counts, with what `totals` has grown by, and begins with none. False: there is nothing to export.
  bool Publish(const ReadTotals& totals);

 private:
  HeatExporter() = default;
  void Count(uint32_t page, uint32_t accesses);
  HeatEntry& Find(uint32_t page);
  void Enlarge();
  HeatHeader& header() { return *reinterpret_cast<HeatHeader*>(memory_->data()); }

  std::unique_ptr<driver::Memory> memory_;
  std::unique_ptr<driver::MemoryRegion> region_;
  uint64_t pages_ = 0;
  uint32_t capacity_ = 0;

  // Open addressing by page, a slot without accesses is free; emptied at each Publish. `used_` lists the taken slots.
  // It is twice as large as what has been used of it at a time.
  std::vector<HeatEntry> table_;
  std::vector<uint32_t> used_;
  ReadTotals told_;

  Mutex mutex_;
  std::vector<std::shared_ptr<AccessRing>> rings_ GUARDED_BY(mutex_);
  uint32_t sampling_ GUARDED_BY(mutex_) = 1;
  ActivityBell* bell_ GUARDED_BY(mutex_) = nullptr;  // that the next access rings; null: none
};

}  // namespace termfs::tlib::client

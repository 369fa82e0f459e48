// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/heat_exporter.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>

namespace termfs::tlib::client {
namespace {

constexpr size_t kFirstEntries = 1024;

// What `told` has grown by, and it grows. Totals that are summed while others count may be a little short of the last.
uint32_t Take(uint64_t now, uint64_t& told) {
  const uint64_t more = now > told ? now - told : 0;
  told += more;
  return static_cast<uint32_t>(std::min<uint64_t>(more, UINT32_MAX));
}

}  // namespace

Result<std::unique_ptr<HeatExporter>> HeatExporter::Create(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                           uint64_t pages) {
  std::unique_ptr<HeatExporter> exporter(new HeatExporter);
  exporter->pages_ = pages;
  exporter->capacity_ = static_cast<uint32_t>(std::clamp<uint64_t>(pages, 1, kMaxHeatEntries));
  const size_t bytes = sizeof(HeatHeader) + 2 * size_t{exporter->capacity_} * sizeof(HeatEntry);
  ASSIGN_OR_RETURN(exporter->memory_, nic.AllocateMemory({.bytes = bytes, .name = "termfs-heat", .on_demand = true}));
  new (exporter->memory_->data()) HeatHeader{.sequence = 0, .capacity = exporter->capacity_};
  ASSIGN_OR_RETURN(exporter->region_, domain.RegisterMemory(exporter->memory_->data(), exporter->memory_->size(),
                                                            driver::Access::kRemoteRead));
  exporter->table_.resize(std::min(std::bit_ceil(size_t{exporter->capacity_} * 2), kFirstEntries));
  return exporter;
}

std::shared_ptr<AccessRing> HeatExporter::AddRing() {
  auto ring = std::make_shared<AccessRing>();
  MutexLock lock(mutex_);
  if (bell_ != nullptr) {
    ring->RingAtNextPush(bell_);
  } else {
    ring->SetSampling(sampling_);
  }
  rings_.push_back(ring);
  return ring;
}

void HeatExporter::RemoveRing(const std::shared_ptr<AccessRing>& ring) {
  MutexLock lock(mutex_);
  std::erase(rings_, ring);
}

uint32_t HeatExporter::Drain() {
  std::vector<std::shared_ptr<AccessRing>> rings;
  {
    MutexLock lock(mutex_);
    rings = rings_;
  }
  uint32_t most = 0;
  for (const auto& ring : rings) {
    const uint32_t each = ring->sampling();
    most = std::max(most, ring->Drain([&](uint32_t page) { Count(page, each); }));
  }
  return most;
}

void HeatExporter::AwaitAccess(ActivityBell& bell) {
  MutexLock lock(mutex_);
  bell_ = &bell;
  for (const auto& ring : rings_) {
    ring->RingAtNextPush(&bell);
  }
}

void HeatExporter::SetSampling(uint32_t sampling) {
  MutexLock lock(mutex_);
  sampling_ = sampling;
  bell_ = nullptr;
  for (const auto& ring : rings_) {
    ring->SetSampling(sampling);
  }
}

HeatEntry& HeatExporter::Find(uint32_t page) {
  const size_t mask = table_.size() - 1;
  size_t slot = static_cast<size_t>(page * 0x9e3779b1U) & mask;
  while (table_[slot].accesses != 0 && table_[slot].page != page) {
    slot = (slot + 1) & mask;
  }
  return table_[slot];
}

void HeatExporter::Enlarge() {
  std::vector<HeatEntry> former(table_.size() * 2);
  former.swap(table_);
  for (uint32_t& slot : used_) {
    HeatEntry& entry = Find(former[slot].page);
    entry = former[slot];
    slot = static_cast<uint32_t>(&entry - table_.data());
  }
}

void HeatExporter::Count(uint32_t page, uint32_t accesses) {
  HeatEntry* entry = &Find(page);
  if (entry->accesses != 0) {
    entry->accesses += std::min(accesses, UINT32_MAX - entry->accesses);
    return;
  }
  if (used_.size() == capacity_) {
    return;
  }
  if (used_.size() * 2 >= table_.size()) {
    Enlarge();
    entry = &Find(page);
  }
  used_.push_back(static_cast<uint32_t>(entry - table_.data()));
  *entry = {.page = page, .accesses = accesses};
}

bool HeatExporter::Publish(const ReadTotals& totals) {
  const uint32_t hits = Take(totals.hit_pages, told_.hit_pages);
  const uint32_t misses = Take(totals.missed_pages, told_.missed_pages);
  if (used_.empty() && hits == 0 && misses == 0) {
    return false;  // the sequence stands: the server has nothing to fetch
  }
  std::atomic_ref<uint64_t> sequence(header().sequence);
  const uint64_t next = sequence.load(std::memory_order_relaxed) + 1;
  auto* out = reinterpret_cast<HeatEntry*>(memory_->data() + HeatBufferOffset(next, capacity_));
  for (size_t i = 0; i < used_.size(); i++) {
    HeatEntry& entry = table_[used_[i]];
    // Relaxed atomics: the server may be reading this buffer, too late, and will see that by the sequence.
    std::atomic_ref<uint32_t>(out[i].page).store(entry.page, std::memory_order_relaxed);
    std::atomic_ref<uint32_t>(out[i].accesses).store(entry.accesses, std::memory_order_relaxed);
    entry = {};
  }
  std::atomic_ref<uint32_t>(header().count[next % 2])
      .store(static_cast<uint32_t>(used_.size()), std::memory_order_relaxed);
  std::atomic_ref<uint32_t>(header().hit_pages[next % 2]).store(hits, std::memory_order_relaxed);
  std::atomic_ref<uint32_t>(header().missed_pages[next % 2]).store(misses, std::memory_order_relaxed);
  sequence.store(next, std::memory_order_release);
  used_.clear();
  return true;
}

}  // namespace termfs::tlib::client

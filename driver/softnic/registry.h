// SPDX-License-Identifier: Apache-2.0
//
// Registry: what one Nic has registered. Local keys for its own queue pairs, exports for its peers, the Memory objects
// that exports lie in, and the validity table through which peers learn that a key is no longer good.
//
// Thread-safety: any thread.
// Errors:        ENOSPC when the validity table is full.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/mutex.h"
#include "base/page.h"
#include "base/result.h"
#include "driver/nic.h"
#include "driver/softnic/layout.h"
#include "driver/softnic/shared_object.h"

namespace termfs::driver::softnic {

class Port;

// Takes the page faults of an ODP region; called on the RNIC thread.
class FaultSink {
 public:
  virtual ~FaultSink() = default;
  virtual void OnFault(PageIndex page, RKey rkey, const std::shared_ptr<Port>& from) = 0;
};

struct LocalRegion {
  uint32_t domain = 0;
  std::byte* base = nullptr;
  size_t size = 0;
  Access access{};
};

// A region that peers may ask for by its rkey.
struct Export {
  uint32_t domain = 0;
  Access access{};
  std::shared_ptr<SharedObject> object;  // the memory region's; with a page table: the table's
  uint64_t offset = 0;                   // of the region in its object
  uint64_t size = 0;
  bool words = false;  // 64-bit words that change at once, and are READ so
  // Of a region with a page table only.
  std::shared_ptr<SharedObject> frames;
  RegionKind kind = RegionKind::kTerm;
  uint64_t max_pages = 0;
  std::shared_ptr<FaultSink> faults;
  // Set by AddExport.
  uint32_t validity_slot = 0;
  uint32_t validity_generation = 0;
};

class Registry {
 public:
  static Result<std::shared_ptr<Registry>> Create();

  uint32_t NewDomain() { return next_domain_.fetch_add(1, std::memory_order_relaxed); }
  // Beyond those of queue pairs over a network, which have 24 bits.
  uint32_t NewQueuePairNumber() {
    return (next_queue_pair_.fetch_add(1, std::memory_order_relaxed) & 0xffffff) | 1U << 24;
  }

  Result<LKey> AddLocal(const LocalRegion& region) EXCLUDES(mutex_);
  void RemoveLocal(LKey lkey) EXCLUDES(mutex_);
  std::optional<LocalRegion> FindLocal(LKey lkey) const EXCLUDES(mutex_);
  // Grows with every RemoveLocal: what was found before is to be looked up again.
  uint64_t local_epoch() const { return local_epoch_.load(std::memory_order_acquire); }

  Result<RKey> AddExport(Export region) EXCLUDES(mutex_);
  // From now on peers that know the key are refused.
  void RemoveExport(RKey rkey) EXCLUDES(mutex_);
  // Whether an export that was found before is still registered.
  bool IsValid(const Export& region) const {
    const auto* const words = reinterpret_cast<const std::atomic<uint32_t>*>(validity_->data());
    return words[region.validity_slot].load(std::memory_order_acquire) == region.validity_generation;
  }
  std::shared_ptr<const Export> FindExport(RKey rkey, uint32_t domain) const EXCLUDES(mutex_);

  void AddMemory(const std::shared_ptr<SharedObject>& object) EXCLUDES(mutex_);
  void RemoveMemory(const SharedObject& object) EXCLUDES(mutex_);
  // The Memory that holds all of [data, data + size), or null.
  std::shared_ptr<SharedObject> FindMemory(const std::byte* data, size_t size) const EXCLUDES(mutex_);

  const SharedObject& validity_table() const { return *validity_; }
  // On the RNIC thread: from now on, and no longer, peers take what they READ for looked after.
  void BeginServing();
  void EndServing();

 private:
  Registry() = default;
  std::atomic<uint32_t>& ValidityWord(uint32_t slot) {
    return reinterpret_cast<std::atomic<uint32_t>*>(validity_->data())[slot];
  }

  pthread_mutex_t* serving() { return reinterpret_cast<pthread_mutex_t*>(validity_->data() + kServingOffset); }

  std::shared_ptr<SharedObject> validity_;
  std::atomic<uint32_t> next_domain_{1};
  std::atomic<uint32_t> next_queue_pair_{1};
  std::atomic<uint64_t> local_epoch_{0};
  mutable Mutex mutex_;
  std::unordered_map<uint32_t, LocalRegion> local_ GUARDED_BY(mutex_);
  std::unordered_map<uint32_t, std::shared_ptr<const Export>> exports_ GUARDED_BY(mutex_);
  std::map<const std::byte*, std::shared_ptr<SharedObject>> memory_ GUARDED_BY(mutex_);
  // First in, first out: a slot rests before its next generation.
  std::deque<uint32_t> free_slots_ GUARDED_BY(mutex_);
  uint32_t fresh_slot_ GUARDED_BY(mutex_) = 0;  // from here on none has been used
};

}  // namespace termfs::driver::softnic

// SPDX-License-Identifier: Apache-2.0
//
// SoftTermRegion: the owner's end of an SSD-extended region in the software RNIC: a shared object with the page table,
// one with the frames, one with the present bitmap; peers map all three read-only. The generation of an entry that
// names the frame makes READs atomic per page (page_table.h).
//
// The magic frame is not a frame in memory but a line in the table's header, which readers expand; so a page that
// reads as the pattern costs no memory traffic, and changing the pattern is one store.
//
// Table and frames are files `page-table` and `frames` of TermRegionOptions::directory, where that is given, without a
// name before Keep; the bitmap follows from the table and is made again.
//
// Thread-safety, errors: driver/nic.h. Commit REQUIRES frames that are not committed (or a resumed region).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "driver/nic.h"
#include "driver/softnic/frame_chunks.h"
#include "driver/softnic/page_table.h"
#include "driver/softnic/registry.h"
#include "driver/softnic/rnic_thread.h"

namespace termfs::driver::softnic {

// The faults that wait for pages of an ODP region. Outlives the region while the RNIC thread works on a fault.
//
// No lost wake-up: OnFault first counts its waiter, then looks at the entry; Publish first stores the entry, then looks
// at the count; both sequentially consistent, so one of them sees the other.
class WaitingFaults final : public FaultSink {
 public:
  WaitingFaults(std::shared_ptr<SharedObject> table, std::function<void(PageIndex)> handler)
      : table_(std::move(table)), handler_(std::move(handler)) {}

  void OnFault(PageIndex page, RKey rkey, const std::shared_ptr<Port>& from) override EXCLUDES(mutex_);
  // Answers those that wait for `page`.
  void Finish(PageIndex page, bool ok) EXCLUDES(mutex_) {
    if (count_.load(std::memory_order_seq_cst) != 0) {
      FinishSlow(page, ok);
    }
  }
  void FailAll() EXCLUDES(mutex_);

 private:
  struct Waiter {
    RKey rkey;
    std::weak_ptr<Port> port;
  };
  void FinishSlow(PageIndex page, bool ok) EXCLUDES(mutex_);

  const std::shared_ptr<SharedObject> table_;
  const std::function<void(PageIndex)> handler_;
  std::atomic<uint64_t> count_{0};  // pages in waiters_
  Mutex mutex_;
  std::unordered_map<uint64_t, std::vector<Waiter>> waiters_ GUARDED_BY(mutex_);
};

class SoftTermRegion final : public TermRegion {
 public:
  static Result<std::unique_ptr<TermRegion>> Create(std::shared_ptr<Registry> registry,
                                                    std::shared_ptr<RnicThread> rnic, uint32_t domain,
                                                    const TermRegionOptions& options);
  ~SoftTermRegion() override;

  RegionKind kind() const override { return kind_; }
  uint64_t pages() const override { return header().pages.load(std::memory_order_acquire); }
  RKey rkey() const override { return rkey_; }
  RegionKeys keys(bool network) const override;
  LKey frames_lkey() const override { return frames_lkey_; }

  uint32_t max_frames() const override { return static_cast<uint32_t>(max_pages_); }
  std::byte* frame(FrameIndex frame) override;
  Status Commit(FrameIndex first, uint32_t count) override;
  void Decommit(FrameIndex first, uint32_t count) override;
  void Revoke(FrameIndex first, uint32_t count) override;
  void Restore(FrameIndex first, uint32_t count) override;

  void Publish(PageIndex page, FrameIndex frame) override;
  void BeginWrite(PageIndex page) override;
  void Hide(PageIndex page) override;
  void FailFault(PageIndex page) override { faults_->Finish(page, false); }

  RKey bitmap_rkey() const override { return bitmap_rkey_; }
  size_t bitmap_bytes() const override { return BitmapBytes(pages()); }
  std::span<const std::atomic<uint64_t>> bitmap() const override { return {bitmap_words(), bitmap_bytes() / 8}; }

  Pattern pattern() const override;
  Status SetPattern(const Pattern& pattern) override EXCLUDES(pattern_mutex_);
  TermRegionMemory memory() override;
  Result<UniqueFd> FramesFd() const override { return frames_->ReadOnlyFd(); }
  Status Keep() override;
  Status Resize(uint64_t pages) override EXCLUDES(room_mutex_);
  Status MakeRoom(uint64_t pages) override EXCLUDES(room_mutex_);

 private:
  SoftTermRegion(std::shared_ptr<Registry> registry, std::shared_ptr<RnicThread> rnic, const TermRegionOptions& options)
      : registry_(std::move(registry)),
        rnic_(std::move(rnic)),
        kind_(options.kind),
        sparse_(options.sparse_frames),
        max_pages_(options.max_pages),
        validated_(options.network_way == ReadWay::kValidated && AllowsOneSidedRead(options.kind) &&
                   options.kind != RegionKind::kOdp && !options.sparse_frames),
        resumed_(options.resume) {}
  static size_t BitmapBytes(uint64_t pages) { return (pages + 63) / 64 * 8; }
  Status AllocateObjects(const TermRegionOptions& options);
  Status Register(uint32_t domain);

  PageTableHeader& header() const { return *reinterpret_cast<PageTableHeader*>(table_->data()); }
  PageTableEntry& entry(PageIndex page) const;
  std::atomic<uint64_t>* bitmap_words() const {
    return reinterpret_cast<std::atomic<uint64_t>*>(bitmap_object_->data());
  }

  const std::shared_ptr<Registry> registry_;
  const std::shared_ptr<RnicThread> rnic_;
  const RegionKind kind_;
  const bool sparse_;
  const uint64_t max_pages_;
  const bool validated_;  // peers over the network do
  const bool resumed_;
  std::shared_ptr<SharedObject> table_;
  std::shared_ptr<SharedObject> frames_;
  std::shared_ptr<SharedObject> bitmap_object_;
  std::shared_ptr<WaitingFaults> faults_;
  RKey rkey_;
  RKey bitmap_rkey_;
  std::unique_ptr<FrameChunks> chunks_;  // with validated_, as the next
  RKey table_rkey_;
  LKey frames_lkey_;
  mutable Mutex pattern_mutex_;
  // Page table and bitmap get memory as the region grows, and keep it when it shrinks: generations never restart. Bytes
  // from their beginnings; and the pages whose entries were made ready.
  Mutex room_mutex_;
  size_t table_allocated_ GUARDED_BY(room_mutex_) = 0;
  size_t bitmap_allocated_ GUARDED_BY(room_mutex_) = 0;
  uint64_t hidden_pages_ GUARDED_BY(room_mutex_) = 0;
};

}  // namespace termfs::driver::softnic

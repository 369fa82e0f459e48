// SPDX-License-Identifier: Apache-2.0
//
// A region that peers over the network READ through a TeRM memory region of the device's. Frame p is page p's, in an
// object as large as the region, which is mapped twice: the server reads and writes it through one mapping, the device
// goes by the page table of the other, read-only one.
//
//   Publish     the bytes are complete; the device is told to show the page
//   BeginWrite  the page goes from the device's mapping, so that it shows the pattern; the bytes stay in the object,
//   and
//               are changed through the other mapping. So a READ sees the old page, the pattern, or the new page
//   Hide        the same, before the memory is given back
//
// The kernel takes pages out of the mapping for reasons of its own, too, and moves them; they show the pattern then,
// and are shown again in turns, a part of the region at a time. Which pages may be shown at all is known by the bits
// `readable_`, under a lock for each 64 pages: nothing is shown that is being written or hidden.
//
// As long as no queue pair over the network has been made the device is told of nothing.
//
// Thread-safety, errors: driver/nic.h. The region cannot outgrow what is registered (Resize: ENOTSUP), and has the
// driver's pattern (SetPattern: EOPNOTSUPP).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "driver/device.h"
#include "driver/paired/key_map.h"
#include "driver/paired/term_region.h"

namespace termfs::driver::paired {

class SparseRegion final : public PairedTermRegion {
 public:
  // `peers`: whether the network has had any. `registered` hears of the device's region. `device` outlives this.
  static Result<std::unique_ptr<TermRegion>> Create(
      std::unique_ptr<TermRegion> local, DeviceDomain& device, std::shared_ptr<KeyMap> keys,
      std::shared_ptr<const std::atomic<bool>> peers,
      const std::function<void(const std::shared_ptr<DeviceTermRegion>&)>& registered);
  ~SparseRegion() override;
  SparseRegion(const SparseRegion&) = delete;
  SparseRegion& operator=(const SparseRegion&) = delete;

  RegionKeys keys(bool network) const override;
  void Publish(PageIndex page, FrameIndex frame) override;
  void BeginWrite(PageIndex page) override;
  void Hide(PageIndex page) override;
  Status SetPattern(const Pattern& pattern) override;
  Status Resize(uint64_t pages) override;
  Status MakeRoom(uint64_t pages) override;

 private:
  struct alignas(64) Stripe {
    Mutex mutex;
  };
  static constexpr size_t kStripes = 256;

  SparseRegion(std::unique_ptr<TermRegion> local, std::shared_ptr<KeyMap> keys,
               std::shared_ptr<const std::atomic<bool>> peers)
      : PairedTermRegion(std::move(local)), keys_(std::move(keys)), peers_(std::move(peers)) {}
  Status Register(DeviceDomain& device);
  Status CheckRoom(uint64_t pages) const;
  Mutex& LockOf(PageIndex page) { return stripes_[page.value / 64 % kStripes].mutex; }
  bool Shown(PageIndex page) const { return (term_->ShownOf64(page.value / 64) >> (page.value % 64) & 1) != 0; }
  // The device shows the pattern from now on; under the page's lock.
  void TakeFromView(PageIndex page);
  uint32_t ShowReadable(uint64_t word);
  // Shows what is readable and not shown of the next part of the region; how many pages those were.
  uint32_t ShowNextPart();
  bool Pause(std::chrono::milliseconds longest) EXCLUDES(mutex_);
  void Run();

  const std::shared_ptr<KeyMap> keys_;
  const std::shared_ptr<const std::atomic<bool>> peers_;
  std::byte* shown_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<DeviceTermRegion> term_;
  std::unique_ptr<MemoryRegion> bitmap_;
  std::unique_ptr<std::atomic<uint64_t>[]> readable_;
  std::array<Stripe, kStripes> stripes_;
  uint64_t next_word_ = 0;  // of the thread
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace termfs::driver::paired

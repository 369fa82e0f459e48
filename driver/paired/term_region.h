// SPDX-License-Identifier: Apache-2.0
//
// PairedTermRegion: the software RNIC's region, as it is, for peers of this host; what the device adds is up to the
// classes derived from it.
//
// Thread-safety, errors: driver/nic.h.
#pragma once

#include <memory>
#include <utility>

#include "driver/nic.h"

namespace termfs::driver::paired {

class PairedTermRegion : public TermRegion {
 public:
  explicit PairedTermRegion(std::unique_ptr<TermRegion> region) : region_(std::move(region)) {}

  RegionKind kind() const override { return region_->kind(); }
  uint64_t pages() const override { return region_->pages(); }
  RKey rkey() const override { return region_->rkey(); }
  LKey frames_lkey() const override { return region_->frames_lkey(); }
  uint32_t max_frames() const override { return region_->max_frames(); }
  std::byte* frame(FrameIndex frame) override { return region_->frame(frame); }
  Status Commit(FrameIndex first, uint32_t count) override { return region_->Commit(first, count); }
  void Decommit(FrameIndex first, uint32_t count) override { region_->Decommit(first, count); }
  void Publish(PageIndex page, FrameIndex frame) override { region_->Publish(page, frame); }
  void BeginWrite(PageIndex page) override { region_->BeginWrite(page); }
  void Hide(PageIndex page) override { region_->Hide(page); }
  void FailFault(PageIndex page) override { region_->FailFault(page); }
  RKey bitmap_rkey() const override { return region_->bitmap_rkey(); }
  size_t bitmap_bytes() const override { return region_->bitmap_bytes(); }
  std::span<const std::atomic<uint64_t>> bitmap() const override { return region_->bitmap(); }
  Pattern pattern() const override { return region_->pattern(); }
  Status SetPattern(const Pattern& pattern) override { return region_->SetPattern(pattern); }
  Status Resize(uint64_t pages) override { return region_->Resize(pages); }
  Status MakeRoom(uint64_t pages) override { return region_->MakeRoom(pages); }
  Status Keep() override { return region_->Keep(); }
  TermRegionMemory memory() override { return region_->memory(); }
  Result<UniqueFd> FramesFd() const override { return region_->FramesFd(); }

 protected:
  TermRegion& local() const { return *region_; }

 private:
  const std::unique_ptr<TermRegion> region_;
};

}  // namespace termfs::driver::paired

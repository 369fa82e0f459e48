// SPDX-License-Identifier: Apache-2.0
//
// CrashNic: another NIC, whose regions with a page table pass crash points around every change of an entry and of the
// frames' memory: nic.begin_write, nic.publish, nic.hide, nic.commit, nic.decommit, nic.keep before; nic.begun_write,
// nic.published, nic.hidden, nic.committed, nic.decommitted, nic.kept after; and nic.register, nic.registered, and
// nic.frames where it is asked how many there may be: while a region is made.
//
// Thread-safety, errors: the other NIC's. Ownership: borrows the NIC and the points.
#pragma once

#include <memory>
#include <utility>

#include "driver/nic.h"
#include "tests/fakes/crash_points.h"

namespace termfs::driver {

class CrashTermRegion final : public TermRegion {
 public:
  CrashTermRegion(std::unique_ptr<TermRegion> region, CrashPoints& points)
      : region_(std::move(region)), points_(points) {}
  RegionKind kind() const override { return region_->kind(); }
  uint64_t pages() const override { return region_->pages(); }
  RKey rkey() const override { return region_->rkey(); }
  RegionKeys keys(bool network) const override { return region_->keys(network); }
  LKey frames_lkey() const override { return region_->frames_lkey(); }
  uint32_t max_frames() const override {
    points_.Pass("nic.frames");
    return region_->max_frames();
  }
  std::byte* frame(FrameIndex frame) override { return region_->frame(frame); }
  Status Commit(FrameIndex first, uint32_t count) override {
    points_.Pass("nic.commit");
    Status status = region_->Commit(first, count);
    points_.Pass("nic.committed");
    return status;
  }
  void Decommit(FrameIndex first, uint32_t count) override {
    points_.Pass("nic.decommit");
    region_->Decommit(first, count);
    points_.Pass("nic.decommitted");
  }
  void Revoke(FrameIndex first, uint32_t count) override { region_->Revoke(first, count); }
  void Restore(FrameIndex first, uint32_t count) override { region_->Restore(first, count); }
  void Publish(PageIndex page, FrameIndex frame) override {
    points_.Pass("nic.publish");
    region_->Publish(page, frame);
    points_.Pass("nic.published");
  }
  void BeginWrite(PageIndex page) override {
    points_.Pass("nic.begin_write");
    region_->BeginWrite(page);
    points_.Pass("nic.begun_write");
  }
  void Hide(PageIndex page) override {
    points_.Pass("nic.hide");
    region_->Hide(page);
    points_.Pass("nic.hidden");
  }
  void FailFault(PageIndex page) override { region_->FailFault(page); }
  RKey bitmap_rkey() const override { return region_->bitmap_rkey(); }
  size_t bitmap_bytes() const override { return region_->bitmap_bytes(); }
  std::span<const std::atomic<uint64_t>> bitmap() const override { return region_->bitmap(); }
  Pattern pattern() const override { return region_->pattern(); }
  Status SetPattern(const Pattern& pattern) override { return region_->SetPattern(pattern); }
  Status Resize(uint64_t pages) override {
    points_.Pass("nic.resize");
    Status status = region_->Resize(pages);
    points_.Pass("nic.resized");
    return status;
  }
  Status MakeRoom(uint64_t pages) override { return region_->MakeRoom(pages); }
  Status Keep() override {
    points_.Pass("nic.keep");
    Status status = region_->Keep();
    points_.Pass("nic.kept");
    return status;
  }

 private:
  const std::unique_ptr<TermRegion> region_;
  CrashPoints& points_;
};

class CrashDomain final : public ProtectionDomain {
 public:
  CrashDomain(std::unique_ptr<ProtectionDomain> domain, CrashPoints& points)
      : domain_(std::move(domain)), points_(points) {}
  Result<std::unique_ptr<MemoryRegion>> RegisterMemory(std::byte* data, size_t size, Access access) override {
    return domain_->RegisterMemory(data, size, access);
  }
  Result<std::unique_ptr<TermRegion>> RegisterTermRegion(const TermRegionOptions& options) override {
    points_.Pass("nic.register");
    ASSIGN_OR_RETURN(std::unique_ptr<TermRegion> region, domain_->RegisterTermRegion(options));
    points_.Pass("nic.registered");
    return std::unique_ptr<TermRegion>(std::make_unique<CrashTermRegion>(std::move(region), points_));
  }
  Result<std::unique_ptr<QueuePair>> CreateQueuePair(const QueuePairOptions& options) override {
    return domain_->CreateQueuePair(options);
  }
  Result<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      const SharedReceiveQueueOptions& options) override {
    return domain_->CreateSharedReceiveQueue(options);
  }

 private:
  const std::unique_ptr<ProtectionDomain> domain_;
  CrashPoints& points_;
};

class CrashNic final : public Nic {
 public:
  CrashNic(Nic& nic, CrashPoints& points) : nic_(nic), points_(points) {}
  std::string transport(bool network) const override { return nic_.transport(network); }
  Result<std::unique_ptr<Memory>> AllocateMemory(const MemoryOptions& options) override {
    return nic_.AllocateMemory(options);
  }
  Result<std::unique_ptr<ProtectionDomain>> CreateProtectionDomain() override {
    ASSIGN_OR_RETURN(std::unique_ptr<ProtectionDomain> domain, nic_.CreateProtectionDomain());
    return std::unique_ptr<ProtectionDomain>(std::make_unique<CrashDomain>(std::move(domain), points_));
  }
  Result<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t capacity) override {
    return nic_.CreateCompletionQueue(capacity);
  }

 private:
  Nic& nic_;
  CrashPoints& points_;
};

}  // namespace termfs::driver

// SPDX-License-Identifier: Apache-2.0
//
// FakeNic: the part of the NIC seam that storage uses, in plain memory: registered memory, and a TermRegion whose page
// table a test can look into (what would a one-sided READ of this page see now?). No queue pairs.
//
// Thread-safety: as the seam's.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "driver/nic.h"

namespace termfs::driver {

class FakeMemory final : public Memory {
 public:
  explicit FakeMemory(size_t bytes) : size_(bytes) {
    data_ = static_cast<std::byte*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    TERMFS_CHECK(data_ != MAP_FAILED);
  }
  ~FakeMemory() override { munmap(data_, size_); }
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;
  std::byte* data() override { return data_; }
  size_t size() const override { return size_; }

 private:
  std::byte* data_;
  const size_t size_;
};

class FakeMemoryRegion final : public MemoryRegion {
 public:
  FakeMemoryRegion(std::byte* data, size_t size) : data_(data), size_(size) {}
  LKey lkey() const override { return {7}; }
  RKey rkey() const override { return {7}; }
  std::byte* data() override { return data_; }
  size_t size() const override { return size_; }

 private:
  std::byte* const data_;
  const size_t size_;
};

class FakeTermRegion final : public TermRegion {
 public:
  explicit FakeTermRegion(const TermRegionOptions& options)
      : options_(options),
        memory_(options.max_pages * kPageSize),
        pages_(options.pages),
        entries_(options.max_pages),
        committed_(options.max_pages),
        bitmap_(options.max_pages / 64 + 1) {}

  // What a READ of the page would find: its frame's bytes; nullptr for magic or writing.
  const std::byte* Published(PageIndex page) const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const Entry& entry = entries_[page.value];
    return entry.state == kFrame ? data() + uint64_t{entry.frame} * kPageSize : nullptr;
  }
  size_t committed_frames() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return static_cast<size_t>(std::count(committed_.begin(), committed_.end(), true));
  }
  void RaiseFault(PageIndex page) { options_.fault_handler(page); }
  std::set<uint64_t> failed_faults() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return failed_faults_;
  }
  // Called at the beginning of each Commit; may be null.
  void SetOnCommit(std::function<void()> on_commit) { on_commit_ = std::move(on_commit); }
  // There is memory for the frames before `first` only.
  void FailCommitsFrom(uint32_t first) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    fail_commits_from_ = first;
  }

  RegionKind kind() const override { return options_.kind; }
  uint64_t pages() const override { return pages_.load(); }
  RKey rkey() const override { return {8}; }
  LKey frames_lkey() const override { return {8}; }
  uint32_t max_frames() const override { return static_cast<uint32_t>(options_.max_pages); }
  std::byte* frame(FrameIndex frame) override { return data() + uint64_t{frame.value} * kPageSize; }
  Status Commit(FrameIndex first, uint32_t count) override EXCLUDES(mutex_) {
    if (on_commit_) {
      on_commit_();
    }
    MutexLock lock(mutex_);
    if (first.value + count > fail_commits_from_) {
      return Status::Error(ENOMEM, "injected: commit frames");
    }
    for (uint32_t i = first.value; i < first.value + count; i++) {
      TERMFS_CHECK(!committed_[i]);
      committed_[i] = true;
    }
    return Status::Ok();
  }
  void Decommit(FrameIndex first, uint32_t count) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (uint32_t i = first.value; i < first.value + count; i++) {
      TERMFS_CHECK(committed_[i]);
      committed_[i] = false;
      for (const Entry& entry : entries_) {
        TERMFS_CHECK(entry.state == kMagic || entry.frame != i);  // no page may be in it
      }
    }
    TERMFS_CHECK(options_.network_way != ReadWay::kValidated || revoked_.erase(first.value) == 1);
    std::memset(frame(first), 0, uint64_t{count} * kPageSize);
  }
  // With ReadWay::kValidated, in whole chunks.
  RegionKeys keys(bool network) const override EXCLUDES(mutex_) {
    RegionKeys keys = TermRegion::keys(network);
    if (network && options_.network_way == ReadWay::kValidated) {
      MutexLock lock(mutex_);
      keys.way = ReadWay::kValidated;
      keys.chunk_epoch = chunk_epoch_;
    }
    return keys;
  }
  void Revoke(FrameIndex first, uint32_t count) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    TERMFS_CHECK(count <= ChunkFramesOf(max_frames()) && committed_[first.value]);
    revoked_.insert(first.value);
    chunk_epoch_++;
  }
  void Restore(FrameIndex first, uint32_t) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    TERMFS_CHECK(revoked_.erase(first.value) == 1);
  }
  void Publish(PageIndex page, FrameIndex frame) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (options_.sparse_frames) {
      frame = {static_cast<uint32_t>(page.value)};
    }
    TERMFS_CHECK(committed_[frame.value]);
    entries_[page.value] = {kFrame, frame.value};
    bitmap_[page.value / 64].fetch_or(uint64_t{1} << (page.value % 64));
  }
  void BeginWrite(PageIndex page) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    TERMFS_CHECK(entries_[page.value].state == kFrame);
    entries_[page.value].state = kWriting;
  }
  void Hide(PageIndex page) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    entries_[page.value] = {kMagic, 0};
    bitmap_[page.value / 64].fetch_and(~(uint64_t{1} << (page.value % 64)));
  }
  void FailFault(PageIndex page) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    failed_faults_.insert(page.value);
  }
  RKey bitmap_rkey() const override { return {9}; }
  size_t bitmap_bytes() const override { return bitmap_.size() * 8; }
  std::span<const std::atomic<uint64_t>> bitmap() const override { return bitmap_; }
  Pattern pattern() const override { return options_.pattern; }
  Status SetPattern(const Pattern& pattern) override {
    options_.pattern = pattern;
    return Status::Ok();
  }
  Status Resize(uint64_t pages) override EXCLUDES(mutex_) {
    RETURN_IF_ERROR(MakeRoom(pages));
    MutexLock lock(mutex_);
    for (uint64_t page = pages; page < pages_.load(); page++) {
      TERMFS_CHECK(entries_[page].state == kMagic);
    }
    pages_.store(pages);
    return Status::Ok();
  }
  Status MakeRoom(uint64_t pages) override {
    return pages <= options_.max_pages ? Status::Ok() : Status::Error(EINVAL, "no room to grow");
  }

 private:
  enum EntryState { kMagic, kWriting, kFrame };
  struct Entry {
    EntryState state = kMagic;
    uint32_t frame = 0;
  };
  std::byte* data() const { return const_cast<FakeMemory&>(memory_).data(); }

  TermRegionOptions options_;
  FakeMemory memory_;
  std::atomic<uint64_t> pages_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
  std::vector<bool> committed_ GUARDED_BY(mutex_);
  std::set<uint64_t> failed_faults_ GUARDED_BY(mutex_);
  std::set<uint32_t> revoked_ GUARDED_BY(mutex_);  // chunks, by their first frames
  uint64_t chunk_epoch_ GUARDED_BY(mutex_) = 1;
  std::function<void()> on_commit_;
  uint32_t fail_commits_from_ GUARDED_BY(mutex_) = UINT32_MAX;
  std::vector<std::atomic<uint64_t>> bitmap_;
};

class FakeNic final : public Nic, public ProtectionDomain {
 public:
  std::string transport(bool) const override { return "fake"; }
  Result<std::unique_ptr<Memory>> AllocateMemory(const MemoryOptions& options) override {
    return std::unique_ptr<Memory>(std::make_unique<FakeMemory>(RoundUpToPage(options.bytes)));
  }
  Result<std::unique_ptr<ProtectionDomain>> CreateProtectionDomain() override { return NotHere(); }
  Result<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t) override { return NotHere(); }
  Result<std::unique_ptr<MemoryRegion>> RegisterMemory(std::byte* data, size_t size, Access) override {
    return std::unique_ptr<MemoryRegion>(std::make_unique<FakeMemoryRegion>(data, size));
  }
  Result<std::unique_ptr<TermRegion>> RegisterTermRegion(const TermRegionOptions& options) override {
    return std::unique_ptr<TermRegion>(std::make_unique<FakeTermRegion>(options));
  }
  Result<std::unique_ptr<QueuePair>> CreateQueuePair(const QueuePairOptions&) override { return NotHere(); }

 private:
  static Status NotHere() { return Status::Error(ENOTSUP, "the fake has no queue pairs"); }
};

}  // namespace termfs::driver

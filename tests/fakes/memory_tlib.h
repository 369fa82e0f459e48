// SPDX-License-Identifier: Apache-2.0
//
// MemoryServer: tlib without NIC and SSD, for tests of what is above it. The region is a byte array; clients are in the
// same process; requests run as real tasks on a real worker, so everything that waits does so as in production.
//
// A test can mute a client (it does not answer callbacks any more, and gets expelled) and look at the region's bytes.
//
// Thread-safety: as tlib::server::Server; sessions and channels as their interfaces say.
// Ownership:     end all sessions before the server.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <thread>

#include "base/mutex.h"
#include "tlib/client/session.h"
#include "tlib/server/server.h"
#include "tlib/server/worker.h"

namespace termfs {

class MemorySession;

class MemoryServer final : public tlib::server::Server, private tlib::server::RegionIo {
 public:
  explicit MemoryServer(uint64_t pages);
  ~MemoryServer() override;

  void Serve(tlib::server::Service& service);
  Result<std::unique_ptr<tlib::client::Session>> Connect(tlib::client::CallbackHandler* handler);
  // Its client answers no callback from now on.
  void Mute(uint64_t session);
  // WriteFrom fails (EIO) after so many more pages, once.
  void FailWriteAfter(int64_t pages) { pages_until_failure_ = pages; }
  uint64_t last_session() const { return next_session_ - 1; }
  bool PageIsZero(PageIndex page);
  uint64_t zeroed_pages() const { return zeroed_pages_; }

  Status Stop() override;
  tlib::server::RegionIo& region() override { return *this; }
  Status RunInCoroutine(std::function<Status()> task) override;
  void Spawn(std::function<void()> task) override { worker_->Spawn(std::move(task)); }
  Result<std::vector<std::byte>> CallClient(tlib::server::SessionId session, uint16_t opcode,
                                            std::span<const std::byte> body,
                                            std::chrono::milliseconds timeout) override;
  void Expel(tlib::server::SessionId session, const std::string& why) override;
  std::vector<tlib::server::SessionInfo> Sessions() const override { return {}; }
  Status SetDramRatio(double) override { return Status::Ok(); }
  Status Grow(uint64_t pages) override { return Resize(pages); }
  Status Shrink(uint64_t pages) override { return Resize(pages); }
  Status SetFrameChoice(tlib::server::FrameChoice) override { return Status::Ok(); }
  Status SetPattern(const driver::Pattern&) override { return Status::Ok(); }
  std::vector<MetricValue> Metrics() const override { return {}; }

 private:
  friend class MemorySession;
  friend class MemoryChannel;
  friend class MemoryCall;

  Status Read(RegionOffset offset, std::span<std::byte> to) override;
  Status Write(RegionOffset offset, std::span<const std::byte> from) override;
  Status WriteFrom(tlib::server::Call& call, RegionOffset offset, uint32_t in_offset, uint32_t length,
                   const std::function<Status()>& check) override;
  Status ReadTo(tlib::server::Call& call, RegionOffset offset, uint32_t out_offset, uint32_t length) override;
  Status Zero(std::span<const tlib::server::PageRange> ranges) override;
  Status Flush(std::span<const tlib::server::PageRange>) override { return Status::Ok(); }

  Status Resize(uint64_t pages) EXCLUDES(region_mutex_);
  uint64_t Pages() EXCLUDES(region_mutex_) {
    MutexLock lock(region_mutex_);
    return bytes_.size() >> kPageBits;
  }
  // Page by page, each as one.
  template <typename PerPage>
  Status ForPages(RegionOffset offset, uint64_t length, PerPage per_page);
  std::shared_ptr<MemorySession> Find(uint64_t session);
  void Close(const std::shared_ptr<MemorySession>& session);

  std::vector<std::byte> bytes_;
  Mutex region_mutex_;
  tlib::server::Service* service_ = nullptr;
  std::unique_ptr<tlib::server::Worker> worker_;
  std::atomic<uint64_t> next_session_{1};
  std::atomic<uint64_t> zeroed_pages_{0};
  std::atomic<int64_t> pages_until_failure_{-1};  // negative: never
  Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<MemorySession>> sessions_ GUARDED_BY(mutex_);
  std::vector<std::thread> closers_ GUARDED_BY(mutex_);
};

}  // namespace termfs

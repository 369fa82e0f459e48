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

#include <sys/eventfd.h>

#include <atomic>
#include <deque>
#include <map>
#include <thread>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "tlib/client/session.h"
#include "tlib/server/server.h"
#include "tlib/server/worker.h"

namespace termfs {

class MemorySession;
struct MemoryPost;

class MemoryServer final : public tlib::server::Server, private tlib::server::RegionIo {
 public:
  explicit MemoryServer(uint64_t pages);
  ~MemoryServer() override;

  // `epoch`: of this start.
  void Serve(tlib::server::Service& service, uint64_t epoch = 1);
  // `client`: tlib::client::SessionOptions' client, which would wait for a lost server for a minute.
  Result<std::unique_ptr<tlib::client::Session>> Connect(tlib::client::CallbackHandler* handler, uint64_t client = 0,
                                                         uint32_t reconnect_seconds = 60);
  // The next request with this opcode is carried out, but its session is lost before the reply arrives; `then` runs
  // before the client knows.
  void LoseReplyOf(uint16_t opcode, std::function<void()> then) EXCLUDES(mutex_);
  // The next request with this opcode is carried out, and its reply arrives only after `then`.
  void DelayReplyOf(uint16_t opcode, std::function<void()> then) EXCLUDES(mutex_);
  // Its caller gives the next request with this opcode up; it is carried out, and its reply comes late.
  void GiveUp(uint16_t opcode) { given_up_opcode_ = opcode; }
  // BeginRead leaves its reads under way until AnswerReads, which reads what is there then.
  void HoldReads() { holding_ = true; }
  void AnswerReads();
  // What is posted does not arrive until DeliverPosts, which says how much that was, and returns when it is answered.
  void HoldPosts() EXCLUDES(mutex_);
  size_t DeliverPosts() EXCLUDES(mutex_);
  // The same, each beside the others, and the last first.
  size_t DeliverPostsTheOtherWayRound() EXCLUDES(mutex_);
  // AwaitReads and PollReads of channels with reads under way fail so, once. ETIMEDOUT: the first of them is late.
  void FailReads(int code) { reads_failure_ = code; }
  // Every session is lost, as by the death of the server: the service hears nothing of it, and nobody can connect until
  // the next Serve. Waits for the requests that are under way.
  void Die() EXCLUDES(mutex_);
  // What new sessions say whose region it is.
  void Rename(const std::string& volume) EXCLUDES(mutex_);
  // The next so many channels cannot be opened: ENETUNREACH, ETIMEDOUT, or another reason.
  void CutOff(int code = ENETUNREACH, int channels = 1) {
    unreachable_ = code;
    cut_off_ = channels;
  }
  // Its client answers no callback from now on.
  void Mute(uint64_t session);
  // The connection that callbacks go over has ended.
  void BreakCallbacks(uint64_t session);
  // WriteFrom, or Write, fails (EIO) after so many more pages, once.
  void FailWriteAfter(int64_t pages) { pages_until_failure_ = pages; }
  // The next one fails (EIO), and its bytes stay as they were.
  void FailNextFlush() { flush_fails_ = true; }
  // Flushes do not end, while it is on; the service stops only after it is off again.
  void HoldFlushes(bool on) { holding_flushes_ = on; }
  // The server's own reads of the region, as for a copy, do not begin while it is on; one-sided ones do.
  void HoldServerReads(bool on) { holding_server_reads_ = on; }
  int held_server_reads() const { return held_server_reads_; }
  // One that nobody waited for.
  void FailFlush() { failed_flushes_++; }
  uint64_t last_session() const { return next_session_ - 1; }
  // It is being ended, or has been.
  bool IsLost(uint64_t session);
  // The service has heard of its end.
  bool HasEnded(uint64_t session) { return Find(session) == nullptr; }
  bool PageIsZero(PageIndex page);
  // The region has the bytes that were flushed, and none that were written since. REQUIRES: no server runs.
  void ForgetUnflushed();
  uint64_t zeroed_pages() const { return zeroed_pages_; }
  uint64_t detached() const { return detached_; }  // channels
  uint64_t region_pages() EXCLUDES(region_mutex_) {
    MutexLock lock(region_mutex_);
    return bytes_.size() >> kPageBits;
  }

  Status Stop() override;
  tlib::server::RegionIo& region() override { return *this; }
  uint64_t memory() const override { return 1; }
  Status RunInCoroutine(std::function<Status()> task) override;
  void Spawn(std::function<void()> task) override { worker_->Spawn(std::move(task)); }
  Result<std::vector<std::byte>> CallClient(tlib::server::SessionId session, uint16_t opcode,
                                            std::span<const std::byte> body,
                                            std::chrono::milliseconds timeout) override;
  void Expel(tlib::server::SessionId session, const std::string& why) override;
  void Lose(tlib::server::SessionId session, const std::string& why) override;
  std::vector<tlib::server::SessionInfo> Sessions() const override { return {}; }
  Status SetDramRatio(double) override { return Status::Ok(); }
  Status Grow(uint64_t pages) override { return pages > region_pages() ? Resize(pages) : Status::Ok(); }
  Status CheckShrink() const override { return Status::Ok(); }
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
  Status Flush(std::span<const tlib::server::PageRange> ranges) override;
  uint64_t failed_flushes() const override { return failed_flushes_; }

  Result<std::vector<std::byte>> Carry(MemorySession& session, const tlib::client::CallRequest& request,
                                       uint32_t& out_bytes);
  void Deliver(std::shared_ptr<MemoryPost> posted) EXCLUDES(mutex_);
  void CarryPost(MemoryPost& posted);
  std::vector<std::shared_ptr<MemoryPost>> TakePosts() EXCLUDES(mutex_);
  void Withdraw(const std::shared_ptr<MemoryPost>& posted) EXCLUDES(mutex_);
  Status Resize(uint64_t pages) EXCLUDES(region_mutex_);
  // Of a page: its bytes, how many were before them, how many they are.
  using PerPage = std::function<Status(std::byte* bytes, uint64_t done, uint64_t part)>;
  // Page by page, each as one.
  Status ForPages(RegionOffset offset, uint64_t length, const PerPage& per_page);
  std::shared_ptr<MemorySession> Find(uint64_t session);
  void Close(const std::shared_ptr<MemorySession>& session, tlib::server::SessionEnd::How how);
  // What happens when the reply to a request with the opcode is ready.
  struct Strike {
    uint16_t opcode = 0;  // 0: of no request
    std::function<void()> then;
  };
  std::function<void()> Take(Strike MemoryServer::*strike, uint16_t opcode) EXCLUDES(mutex_);

  std::vector<std::byte> bytes_;
  std::vector<std::byte> flushed_;
  Mutex region_mutex_;
  std::atomic<tlib::server::Service*> service_{nullptr};
  std::unique_ptr<tlib::server::Worker> worker_;
  std::atomic<uint64_t> next_session_{1};
  std::atomic<uint64_t> zeroed_pages_{0};
  std::atomic<uint64_t> detached_{0};
  std::atomic<int64_t> pages_until_failure_{-1};  // negative: never
  std::atomic<uint64_t> failed_flushes_{0};
  std::atomic<bool> flush_fails_{false};
  std::atomic<bool> holding_flushes_{false};
  std::atomic<bool> holding_server_reads_{false};
  std::atomic<int> held_server_reads_{0};
  std::atomic<uint16_t> given_up_opcode_{0};
  std::atomic<bool> holding_{false};
  std::atomic<int> reads_failure_{0};
  std::atomic<int> unreachable_{0};
  std::atomic<int> cut_off_{0};
  UniqueFd answers_{eventfd(0, EFD_CLOEXEC)};  // readable: none are held
  Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<MemorySession>> sessions_ GUARDED_BY(mutex_);
  std::vector<std::thread> closers_ GUARDED_BY(mutex_);
  std::string volume_ GUARDED_BY(mutex_) = "memory";
  bool dead_ GUARDED_BY(mutex_) = false;
  uint64_t epoch_ GUARDED_BY(mutex_) = 1;
  bool holding_posts_ GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<MemoryPost>> held_posts_ GUARDED_BY(mutex_);
  void End(tlib::server::SessionId session, tlib::server::SessionEnd::How how) EXCLUDES(mutex_);
  Strike loss_ GUARDED_BY(mutex_);
  Strike delay_ GUARDED_BY(mutex_);
};

}  // namespace termfs

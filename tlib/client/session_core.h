// SPDX-License-Identifier: Apache-2.0
//
// SessionCore: what a session and its channels share, and hold on to together. It outlives the session when channels
// do; they answer ENOTCONN then.
//
// Thread-safety: any thread, once Connect returned.
// Ownership:     shared by the session and its channels. The Nic outlives it.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/nic.h"
#include "tlib/client/channel_counters.h"
#include "tlib/client/control_client.h"
#include "tlib/client/frame_chunks.h"
#include "tlib/client/heat_exporter.h"
#include "tlib/client/page_table_view.h"
#include "tlib/client/patterns.h"
#include "tlib/client/session.h"
#include "tlib/rpc/message_seal.h"

namespace termfs::tlib::client {

// The region as the server described it.
struct RegionFacts {
  driver::RegionKind kind = driver::RegionKind::kTerm;
  uint64_t pages = 0;      // when the session began
  uint64_t max_pages = 0;  // what they may grow to
  driver::RKey region_rkey;
  driver::RKey bitmap_rkey;
  uint64_t bitmap_bytes = 0;
  driver::ReadWay way{};
  uint64_t entries_offset = 0;  // kValidated: driver::RegionKeys
};

class SessionCore {
 public:
  // Connects, says Hello, learns the region; over a network finds out how large segments may be.
  static Result<std::shared_ptr<SessionCore>> Connect(driver::Nic& nic, const ServerAddress& address,
                                                      const SessionOptions& options);
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  driver::Nic& nic() { return nic_; }
  driver::ProtectionDomain& domain() { return *domain_; }
  ControlClient& control() { return *control_; }
  bool over_network() const { return path_.has_value(); }
  const SessionOptions& options() const { return options_; }
  const RegionFacts& region() const { return region_; }
  uint64_t id() const { return id_; }
  uint64_t epoch() const { return epoch_; }
  const std::string& transport() const { return transport_; }
  const std::string& volume() const { return volume_; }
  Patterns& patterns() { return patterns_; }
  MetricsRegistry& metrics() { return metrics_; }
  std::chrono::nanoseconds call_timeout() const { return options_.call_timeout; }
  // `patience`: 0: the call timeout.
  ControlClient::TimePoint CallDeadline(std::chrono::milliseconds patience = {}) const {
    return std::chrono::steady_clock::now() + (patience.count() > 0 ? patience : options_.call_timeout);
  }

  // Whether channels look at a bitmap at all: not in the rpc kinds, not where absent pages fault, and not where there
  // are the entries.
  BitmapMode bitmap_mode() const;
  // The pulled bitmap; empty in the other modes.
  std::span<std::atomic<uint64_t>> pulled_bitmap() { return {pulled_bitmap_.get(), pulled_words_}; }
  // The copy of the page table; null unless READs are validated.
  PageTableView* table() { return table_.get(); }
  FrameChunks& chunks() { return chunks_; }

  // A connected queue pair, and what seals its messages, where they are.
  struct OpenPair {
    std::unique_ptr<driver::QueuePair> pair;
    std::unique_ptr<MessageSeal> seal;
  };
  // `cpu`: that the calling thread is bound to and will wait on; -1: none. `patience` with the server; 0: the call
  // timeout. `interruption` of the thread that calls, or null.
  Result<OpenPair> OpenQueuePair(wire::Purpose purpose, driver::QueuePairOptions options, int cpu = -1,
                                 std::chrono::milliseconds patience = {}, const Interruption* interruption = nullptr);
  bool sealed() const { return sealed_; }  // messages are

  // The region's size as last heard of. A server makes its region larger without telling; so who is asked for bytes
  // beyond that asks the server before he refuses.
  uint64_t region_bytes() const { return region_bytes_.load(std::memory_order_acquire); }
  // EINVAL: the range is not in the region; otherwise why the server could not be asked, with that patience.
  Status CheckInRegion(RegionOffset offset, uint64_t length, std::chrono::milliseconds patience = {});

  // Asks for the patterns in use and the keys of frames anew. Once the callback queue pair is there the server tells of
  // every change; one that came between Welcome and then would be missed. So keys of frames are not taken from Welcome.
  Status RefreshRegion();

  // The session is lost: channels answer ENOTCONN, those asleep wake up. The first reason stays.
  void MarkLost(const Status& why) EXCLUDES(mutex_);
  Status why_lost() const EXCLUDES(mutex_);
  // Readable, for ever, once the session is lost.
  int lost_fd() const { return lost_event_.get(); }

  // A channel has not been answered at once. True: none was waiting within the last half of a millisecond, so the
  // server has gone to sleep by now if it has no other client.
  bool NoteWait(std::chrono::steady_clock::time_point now) {
    constexpr std::chrono::steady_clock::rep kFresh = std::chrono::nanoseconds(std::chrono::microseconds(100)).count();
    constexpr std::chrono::steady_clock::rep kOld = std::chrono::nanoseconds(std::chrono::microseconds(500)).count();
    const auto at = now.time_since_epoch().count();
    const auto age = at - last_wait_.load(std::memory_order_relaxed);
    if (age > kFresh) {  // not each time: others' threads look at it
      last_wait_.store(at, std::memory_order_relaxed);
    }
    return age > kOld;
  }
  // Who waits for the server spins for a while, but not many at once for long: the server needs a CPU, too. False: too
  // many do.
  bool BeginSpinning() {
    if (spinning_.fetch_add(1, std::memory_order_relaxed) < max_spinning_) {
      return true;
    }
    EndSpinning();
    return false;
  }
  void EndSpinning() { spinning_.fetch_sub(1, std::memory_order_relaxed); }

  Status StartHeat();
  HeatExporter* heat() { return heat_.get(); }
  // Rings when the session is used that has not been for a while.
  ActivityBell& bell() { return bell_; }

  std::shared_ptr<ChannelCounters> AddChannel() EXCLUDES(mutex_);
  void RemoveChannel(const std::shared_ptr<ChannelCounters>& counters) EXCLUDES(mutex_);
  ReadTotals read_totals() const EXCLUDES(mutex_);
  std::vector<MetricValue> Metrics() const EXCLUDES(mutex_);

 private:
  void SumChannels(ChannelCounters& sum) const EXCLUDES(mutex_);
  SessionCore(driver::Nic& nic, const SessionOptions& options) : nic_(nic), options_(options) {}
  static Result<std::shared_ptr<SessionCore>> ConnectOnce(driver::Nic& nic, const ServerAddress& address,
                                                          const SessionOptions& options, uint32_t segment_limit);
  Status SayHello();
  Status Learn(const wire::WelcomeT& welcome);
  Status LearnWay(const wire::RegionInfoT& info);
  Status LearnPatterns(const wire::RegionInfoT& info);
  Result<OpenPair> TryOpenQueuePair(wire::Purpose purpose, const driver::QueuePairOptions& options, int cpu,
                                    const ControlClient::Wait& wait);
  Status LearnChunks(wire::RegionInfoT& info);

  driver::Nic& nic_;
  const SessionOptions options_;
  std::unique_ptr<ControlClient> control_;
  std::optional<driver::NetworkPath> path_;
  bool sealed_ = false;
  // A server with an RDMA device sends to the one port of RoCE: the first of its refusals says so.
  std::atomic<bool> own_ports_{true};
  std::unique_ptr<driver::ProtectionDomain> domain_;
  ActivityBell bell_;
  std::unique_ptr<HeatExporter> heat_;
  RegionFacts region_;
  std::atomic<uint64_t> region_bytes_{0};  // stored after what table_ covers, which is never less
  uint64_t id_ = 0;
  uint64_t epoch_ = 0;
  std::string transport_;
  std::string volume_;
  Patterns patterns_;
  std::unique_ptr<std::atomic<uint64_t>[]> pulled_bitmap_;
  size_t pulled_words_ = 0;
  std::unique_ptr<PageTableView> table_;
  FrameChunks chunks_;
  UniqueFd lost_event_;
  std::atomic<std::chrono::steady_clock::rep> last_wait_{0};
  const unsigned max_spinning_ = std::max(1U, std::thread::hardware_concurrency() / 2);
  std::atomic<unsigned> spinning_{0};
  MetricsRegistry metrics_;
  mutable Mutex mutex_;
  Status why_lost_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ChannelCounters>> channels_ GUARDED_BY(mutex_);
  ChannelCounters closed_channels_ GUARDED_BY(mutex_);
};

}  // namespace termfs::tlib::client

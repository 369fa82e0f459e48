// SPDX-License-Identifier: Apache-2.0
//
// ServerLink: the one way from a client to its server, across the server's restarts. Every request goes through it.
// When the session is lost, callers wait until one thread has made a new one, and their requests are sent again; when
// that takes longer than SessionOptions::reconnect they fail with EIO, and so do all that follow, until a later attempt
// succeeds.
//
//   up --lost--> down: callers wait --attempt succeeds--> up
//                  |                                      ^
//                  +--time over--> given up: EIO ---------+  (attempts go on, slowly)
//
// Each attempt has a generation of its own, that of the session it leads to. What a session granted is void from the
// moment a later generation begins (Listener::BeginGeneration): that is where everything that the client, or its
// kernel, cached under grants of the session has to be dropped.
//
// A request whose effect must not happen twice carries a mark: the slot of the lane it is sent on, and the next
// sequence of that slot. Sent again it has the same mark, and the server knows whether it has carried it out.
//
// A lane that nobody uses does not hold on to a lost server: the link detaches its channel.
//
// Thread-safety: any thread, each with a lane of its own.
// Ownership:     owns the session and its thread. Lanes are closed before it; the listener outlives it.
// Errors:        EIO: the time was over, or the link was lost time after time during one request; EINTR: the lane's
//                interruption was requested; ENOTCONN: Abandon; ETIMEDOUT and others: of the request itself.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/result.h"
#include "fs/client/file_system.h"
#include "fs/client/inode_cache.h"
#include "fs/client/kept_by_kernel.h"
#include "fs/client/reads_under_way.h"
#include "fs/proto/data.h"
#include "tlib/client/session.h"

namespace termfs::fs::client {

// A lane: a channel of the session of some generation; moved to a later one when a request finds its session lost.
class VolumeLane final : public Lane {
 public:
  // As Channel's.
  Status Read(std::span<const tlib::client::ReadRequest> reads) EXCLUDES(in_use_) {
    const SpinHold hold(in_use_);
    return channel_->Read(reads);
  }
  Status BeginRead(std::span<const tlib::client::ReadRequest> reads, std::vector<std::byte*>& under_way)
      EXCLUDES(in_use_) {
    const SpinHold hold(in_use_);
    return channel_->BeginRead(reads, under_way);
  }
  Status AwaitReads(std::vector<std::byte*>& done) EXCLUDES(in_use_) {
    const SpinHold hold(in_use_);
    return channel_->AwaitReads(done);
  }
  Status PollReads(std::vector<std::byte*>& done) EXCLUDES(in_use_) {
    const SpinHold hold(in_use_);
    return channel_->PollReads(done);
  }
  bool ArmReads(tlib::client::ReadsFds& fds) EXCLUDES(in_use_) {
    const SpinHold hold(in_use_);
    armed_ = channel_->ArmReads(fds);
    return armed_;
  }
  void DisarmReads() EXCLUDES(in_use_) {
    const SpinHold hold(in_use_);
    if (std::exchange(armed_, false)) {
      channel_->DisarmReads();
    }
  }
  size_t ReadRoom() EXCLUDES(in_use_) {
    const SpinHold hold(in_use_);
    return channel_->ReadRoom();
  }
  void DropReads() EXCLUDES(in_use_) {
    const SpinHold hold(in_use_);
    channel_->DropReads();
  }
  // How often what was under way has become void, with this channel and with former ones. Grows with each buffer.
  uint64_t voids() EXCLUDES(in_use_) {
    const SpinHold hold(in_use_);
    return former_voids_ + channel_->voids();
  }
  ReadsUnderWay& reads_under_way() { return reads_under_way_; }
  // What it takes to post a request whose effect must not happen twice.
  struct PostPlace {
    size_t index = 0;
    tlib::RequestMark mark{};
  };
  // One in the session of that generation; none: all are in use, or the lane is of another session.
  std::optional<PostPlace> TakePostPlace(uint64_t generation) EXCLUDES(in_use_);
  void ReturnPostPlace(const PostPlace& place) EXCLUDES(in_use_) {
    const SpinHold hold(in_use_);
    posts_[place.index].taken = false;
  }
  void AfterGivenUp(tlib::client::LateReply late) EXCLUDES(in_use_) {
    const SpinHold hold(in_use_);
    channel_->AfterGivenUp(std::move(late));
  }
  std::span<std::byte> buffer() override { return channel_->buffer(); }
  uint64_t buffer_number() override { return voids(); }
  // What every operation but reads under way may use.
  std::span<std::byte> before_places() { return channel_->buffer().first(buffer_bytes_); }
  std::span<std::byte> places() override { return channel_->buffer().subspan(buffer_bytes_, place_bytes_); }
  Interruption& interruption() override { return *interruption_; }
  void TellOfWaits(ServerWait* wait) override { wait_ = wait; }
  ServerWait* wait() const { return wait_; }  // null: none
  uint64_t generation() const { return generation_; }
  bool by_map() const { return by_map_; }  // see FileSystem::OpenLaneByMap
  // Counts one more; how many there were before.
  uint64_t CountRead() { return reads_++; }
  Keep keep(const Attributes* attributes) const override { return grants_.keep(attributes); }
  // Of the last request, as it was sent the last time.
  LaneGrants& grants() { return grants_; }
  ~VolumeLane() override;

  // While one lives the memory of former channels stays: the caller's data may lie in it.
  class Hold {
   public:
    explicit Hold(VolumeLane& lane) : lane_(lane) { lane_.holds_++; }
    ~Hold() {
      if (--lane_.holds_ == 0) {
        lane_.former_.clear();
      }
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    VolumeLane& lane_;
  };

 private:
  friend class ServerLink;
  struct Slot {
    uint16_t number = 0;
    uint64_t sequence = 0;  // of the last request
  };
  VolumeLane(class ServerLink& link, KeptByKernel& kept, std::unique_ptr<Interruption> interruption, Slot slot,
             size_t buffer_bytes, size_t place_bytes, bool by_map)
      : link_(link),
        interruption_(std::move(interruption)),
        buffer_bytes_(buffer_bytes),
        place_bytes_(place_bytes),
        by_map_(by_map),
        grants_(kept),
        slot_(slot) {}

  static constexpr size_t kPosts = 4;
  struct Post {
    std::optional<Slot> slot{};  // of its own: a mark has to be known until it is answered
    bool taken = false;          // until it is answered
  };
  size_t channel_bytes() const { return buffer_bytes_ + place_bytes_; }

  ServerLink& link_;
  const std::unique_ptr<Interruption> interruption_;
  const size_t buffer_bytes_;  // before the places
  const size_t place_bytes_;
  const bool by_map_;
  LaneGrants grants_;
  ServerWait* wait_ = nullptr;
  Slot slot_;
  std::array<Post, kPosts> posts_{};
  SpinLock in_use_;  // by its thread, for as long as a request takes; or by the link, which only tries
  std::unique_ptr<tlib::client::Channel> channel_;
  uint64_t generation_ = 0;
  int holds_ = 0;
  uint64_t reads_ = 0;
  std::vector<std::unique_ptr<tlib::client::Channel>> former_;
  ReadsUnderWay reads_under_way_;
  uint64_t former_voids_ = 0;
  std::chrono::steady_clock::time_point next_join_{};  // by maps: not before
  bool armed_ GUARDED_BY(in_use_) = false;             // its thread polls descriptors of the channel
};

class ServerLink {
 public:
  using Connector =
      std::function<Result<std::unique_ptr<tlib::client::Session>>(tlib::client::CallbackHandler* handler)>;

  struct Resumption {
    uint64_t files_reopened = 0;
    uint64_t files_lost = 0;
  };

  // Called on the link's thread, except HandleCallback, and before any lane is moved to the new session.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual Result<std::vector<std::byte>> HandleCallback(uint64_t generation, uint16_t opcode,
                                                          std::span<const std::byte> body) = 0;
    // Nothing that was granted in earlier generations holds any more; see the head of this file.
    virtual void BeginGeneration(uint64_t generation) = 0;
    // Brings the state that the server keeps for a session to the new one.
    virtual Result<Resumption> Resume(tlib::client::Channel& channel, uint64_t generation) = 0;
    // What sessions before that generation wrote and nobody synced is gone: the server has not the memory of the one
    // that took it. After Resume.
    virtual void WritesLost(uint64_t generation) = 0;
    // Callers go on. Over the same channel.
    virtual void Resumed(tlib::client::Channel& channel, uint64_t generation) = 0;
    // The time is over, right after BeginGeneration. Returns how many open files are lost, whatever comes later.
    virtual uint64_t GiveUp() = 0;
  };

  struct Reply {
    std::span<const std::byte> body;  // as CallReply's
    std::span<const std::byte> out;   // the bulk bytes that came, in the lane's buffer
  };

  // Makes the first session; fails when that fails. `kept` outlives it.
  static Result<std::unique_ptr<ServerLink>> Connect(Connector connect, std::chrono::seconds reconnect,
                                                     Listener& listener, KeptByKernel& kept);
  ~ServerLink();
  ServerLink(const ServerLink&) = delete;
  ServerLink& operator=(const ServerLink&) = delete;

  enum class Opens : uint8_t {
    kNow,
    kLate,   // with its first request
    kByMap,  // now: FileSystem::OpenLaneByMap
  };
  // A lane by maps needs a session, ENOTCONN; another one is there without, and waits with its first request.
  Result<std::unique_ptr<VolumeLane>> OpenLane(size_t buffer_bytes, size_t place_bytes = 0, Opens opens = Opens::kNow)
      EXCLUDES(mutex_);

  // `once`: the effect must not happen twice. request.mark is set here.
  Result<Reply> Call(VolumeLane& lane, tlib::client::CallRequest request, bool once);
  // The same in one session only, which may still be being resumed: ENOTCONN when it is gone.
  Status CallIn(uint64_t generation, VolumeLane& lane, const tlib::client::CallRequest& request);
  // As Channel::Post, in one session only: ENOTCONN when it is gone, EAGAIN also when it is not there yet.
  Status PostIn(uint64_t generation, VolumeLane& lane, const tlib::client::CallRequest& request);

  // As Channel::AwaitPosted, in one session only: ENOTCONN when it is gone.
  Status AwaitPosted(uint64_t generation, VolumeLane& lane);

  // As Channel::Post; the place is given back when it is answered, or if this fails.
  Status PostOnce(VolumeLane& lane, const VolumeLane::PostPlace& place, tlib::client::CallRequest request,
                  tlib::client::LateReply late);

  // Moves a lane by maps, whose session is lost, to the next one if that is there already. What is under way in it
  // becomes void.
  bool RejoinAtOnce(VolumeLane& lane, const Status& why) EXCLUDES(mutex_);

  // Every call fails with ENOTCONN from now on, and those that wait return.
  void Abandon(const std::string& why) EXCLUDES(mutex_);

  uint64_t generation() const EXCLUDES(mutex_);  // of the last session that there was
  bool waiting() const EXCLUDES(mutex_);         // for the server, which is not given up
  uint64_t max_pages() const { return max_pages_.load(std::memory_order_relaxed); }
  std::string transport() const EXCLUDES(mutex_);
  // The session's, and link_up, link_given_up (0 or 1), link_down_seconds, link_reconnections_total,
  // link_files_reopened_total, link_files_lost_total, link_memory_losses_total.
  std::vector<MetricValue> Metrics() const EXCLUDES(mutex_);

 private:
  friend class VolumeLane;
  using TimePoint = std::chrono::steady_clock::time_point;
  using SessionPtr = std::shared_ptr<tlib::client::Session>;
  enum class State : uint8_t { kUp, kDown, kGivenUp, kAbandoned };
  class Handler;
  struct Joined;

  ServerLink(Connector connect, std::chrono::seconds reconnect, Listener& listener, KeptByKernel& kept)
      : connect_(std::move(connect)), reconnect_(reconnect), listener_(listener), kept_(kept) {}
  Result<SessionPtr> Open(uint64_t generation);
  void Run() EXCLUDES(mutex_);
  void Reconnect() EXCLUDES(mutex_);
  Status Attempt(uint64_t generation) EXCLUDES(mutex_);
  // `last_start`: of the server, in which the last session was.
  Status Resume(const SessionPtr& session, uint64_t generation, uint64_t last_start) EXCLUDES(mutex_);
  void GiveUp(const Status& why) EXCLUDES(mutex_);
  void ReportLost(uint64_t generation, const Status& why) EXCLUDES(mutex_);
  // What a channel of it has said; if that is that the session is lost, it is reported.
  Status NoteLoss(uint64_t generation, Status status) EXCLUDES(mutex_);
  // After a Call of the lane's channel that has failed: in the next session.
  Result<Reply> CallAgain(VolumeLane& lane, tlib::client::CallRequest request, Status why);
  // Moves the lane to the session of now, for which it waits.
  Status Rejoin(VolumeLane& lane, const Status& why) EXCLUDES(mutex_);
  // To the session of now, if there is one: ENOTCONN.
  Status JoinNow(VolumeLane& lane) EXCLUDES(mutex_);
  static Status OpenLate(VolumeLane& lane, Status why);
  Status OpenInSession(VolumeLane& lane) EXCLUDES(mutex_);
  Result<std::pair<SessionPtr, uint64_t>> AwaitSession(VolumeLane& lane) EXCLUDES(mutex_);
  Status Join(VolumeLane& lane, const SessionPtr& session, uint64_t generation);
  enum class Phase : uint8_t { kResuming, kResumed };
  // `from`: EAGAIN when the session has not come that far.
  Status JoinIn(uint64_t generation, VolumeLane& lane, Phase from) EXCLUDES(mutex_);
  // Lanes that are not in use and still of a session before that generation.
  void DetachIdle(uint64_t generation) EXCLUDES(mutex_);
  void Remove(VolumeLane& lane) EXCLUDES(mutex_);
  // One of those that are left beyond a reserve; none: too many are in use.
  static constexpr size_t kSlotsForLanes = 512;
  std::optional<VolumeLane::Slot> TakeSlot(size_t reserve = 0) EXCLUDES(mutex_);
  void ReturnSlot(VolumeLane::Slot slot) EXCLUDES(mutex_);
  Status GivenUpStatus() const;

  const Connector connect_;
  const std::chrono::seconds reconnect_;
  Listener& listener_;
  KeptByKernel& kept_;
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar changed_;
  State state_ GUARDED_BY(mutex_) = State::kUp;
  Status why_ GUARDED_BY(mutex_);  // not up
  bool stopping_ GUARDED_BY(mutex_) = false;
  SessionPtr session_ GUARDED_BY(mutex_);
  uint64_t generation_ GUARDED_BY(mutex_) = 0;       // of session_
  uint64_t lost_generation_ GUARDED_BY(mutex_) = 0;  // sessions up to this one are lost
  SessionPtr resuming_ GUARDED_BY(mutex_);           // nothing, or the next session_
  uint64_t resuming_generation_ GUARDED_BY(mutex_) = 0;
  TimePoint down_since_ GUARDED_BY(mutex_);
  uint64_t start_ GUARDED_BY(mutex_) = 0;  // of the server, in which the last session was
  std::string volume_ GUARDED_BY(mutex_);
  std::string transport_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> max_pages_{0};
  std::vector<VolumeLane*> lanes_ GUARDED_BY(mutex_);
  std::vector<VolumeLane::Slot> free_slots_ GUARDED_BY(mutex_);
  uint16_t slots_ GUARDED_BY(mutex_) = 0;
  uint64_t reconnections_ GUARDED_BY(mutex_) = 0;
  uint64_t memory_losses_ GUARDED_BY(mutex_) = 0;
  Resumption resumed_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::client

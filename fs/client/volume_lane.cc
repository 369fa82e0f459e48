// SPDX-License-Identifier: Apache-2.0
//
// Lanes of a ServerLink: their channels in the session of now, and calls that outlast a session.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"
#include "fs/client/lost_channel.h"
#include "fs/client/server_link.h"

namespace termfs::fs::client {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using tlib::client::CallRequest;
using tlib::client::Channel;

namespace {

constexpr int kMostLosses = 8;                  // of the link, during one request
constexpr milliseconds kLook{50};               // at the interruption of a caller that waits
constexpr milliseconds kPatienceByMap{500};     // of a lane that waits for nobody
constexpr milliseconds kPatienceToJoin{10000};  // with a session that has steps of it time out, or more: see Rejoin
constexpr milliseconds kPauseOfJoins{1000};     // after one that took the server its time
constexpr uint16_t kMostSlots = 1024;

bool IsLoss(const Status& status) { return status.code() == ENOTCONN; }

// The server, or this process, has no descriptors, memory or connections to spare just now.
bool IsShort(const Status& status) {
  return status.code() == EMFILE || status.code() == ENFILE || status.code() == ENOMEM || status.code() == EUSERS;
}

// Of a new queue pair: there is no way to the server at the moment, or the server or something on the way there has
// ended its connection.
bool IsUnreachable(const Status& status) {
  constexpr std::array kCodes = {ENETUNREACH, EHOSTUNREACH, ENETDOWN, ECONNRESET, ECONNREFUSED, ECONNABORTED, EPIPE};
  return std::find(kCodes.begin(), kCodes.end(), status.code()) != kCodes.end();
}

class WaitTold {
 public:
  explicit WaitTold(ServerWait* wait) : wait_(wait) {}
  ~WaitTold() {
    if (begun_ && wait_ != nullptr) {
      wait_->End();
    }
  }
  WaitTold(const WaitTold&) = delete;
  WaitTold& operator=(const WaitTold&) = delete;
  bool begun() const { return begun_; }
  void Begin() {
    if (!std::exchange(begun_, true) && wait_ != nullptr) {
      wait_->Begin();
    }
  }

 private:
  ServerWait* const wait_;
  bool begun_ = false;
};

}  // namespace

VolumeLane::~VolumeLane() {
  link_.Remove(*this);
  const auto is_taken = [](const Post& post) { return post.taken; };
  if (std::any_of(posts_.begin(), posts_.end(), is_taken)) {
    if (const Status answered = link_.NoteLoss(generation_, channel_->AwaitPosted()); !answered.ok()) {
      LOG_DEBUG("what was posted is not answered: {}", answered.ToString());
    }
  }
  for (const Post& post : posts_) {
    if (post.slot.has_value() && !post.taken) {  // else its mark is still to be asked for
      link_.ReturnSlot(*post.slot);
    }
  }
  channel_.reset();
  link_.ReturnSlot(slot_);
}

std::optional<VolumeLane::PostPlace> VolumeLane::TakePostPlace(uint64_t generation) {
  const SpinHold hold(in_use_);
  if (generation_ != generation || by_map_) {
    return std::nullopt;
  }
  for (size_t i = 0; i < posts_.size(); ++i) {
    Post& post = posts_[i];
    if (post.taken) {
      continue;
    }
    if (!post.slot.has_value() && !(post.slot = link_.TakeSlot(ServerLink::kSlotsForLanes)).has_value()) {
      return std::nullopt;
    }
    post.taken = true;
    return PostPlace{.index = i, .mark = {.sequence = ++post.slot->sequence, .slot = post.slot->number}};
  }
  return std::nullopt;
}

Result<std::unique_ptr<VolumeLane>> ServerLink::OpenLane(size_t buffer_bytes, size_t place_bytes, Opens opens) {
  ASSIGN_OR_RETURN(auto interruption, Interruption::Create());
  const auto slot = TakeSlot();
  if (!slot.has_value()) {
    return Status::Error(EUSERS, "too many lanes");
  }
  std::unique_ptr<VolumeLane> lane(
      new VolumeLane(*this, kept_, std::move(interruption), *slot, buffer_bytes, place_bytes, opens == Opens::kByMap));
  RETURN_IF_ERROR(opens == Opens::kByMap ? JoinNow(*lane)
                  : opens == Opens::kNow ? OpenInSession(*lane)
                                         : OpenLate(*lane, Status::Error(ENOTCONN, "nothing was asked for yet")));
  MutexLock lock(mutex_);
  lanes_.push_back(lane.get());
  return lane;
}

// As if the session that it belongs to had been lost: its first request joins the present one.
Status ServerLink::OpenLate(VolumeLane& lane, Status why) {
  ASSIGN_OR_RETURN(lane.channel_, LostChannel::Create(std::move(why), lane.channel_bytes()));
  return Status::Ok();
}

Status ServerLink::OpenInSession(VolumeLane& lane) {
  const uint64_t now = generation();
  Status joined = JoinIn(now, lane, Phase::kResumed);
  if (joined.code() == ETIMEDOUT) {  // the first request tries again, for longer
    return OpenLate(lane, Status::Error(ENOTCONN, joined.ToString()));
  }
  if (!IsLoss(joined) && !IsUnreachable(joined)) {
    return joined;
  }
  ReportLost(now, joined);
  return OpenLate(lane, Status::Error(ENOTCONN, joined.ToString()));
}

void ServerLink::Remove(VolumeLane& lane) {
  MutexLock lock(mutex_);
  std::erase(lanes_, &lane);
}

void ServerLink::DetachIdle(uint64_t generation) {
  MutexLock lock(mutex_);
  for (VolumeLane* const lane : lanes_) {
    if (!lane->in_use_.TryLock()) {
      continue;  // its request will find the session lost
    }
    if (lane->generation_ < generation && !lane->armed_) {
      lane->channel_->Detach();
    }
    lane->in_use_.Unlock();
  }
}

std::optional<VolumeLane::Slot> ServerLink::TakeSlot(size_t reserve) {
  MutexLock lock(mutex_);
  if (free_slots_.size() + kMostSlots - slots_ <= reserve) {
    return std::nullopt;
  }
  if (!free_slots_.empty()) {
    const VolumeLane::Slot slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }
  return VolumeLane::Slot{.number = slots_++};
}

void ServerLink::ReturnSlot(VolumeLane::Slot slot) {
  MutexLock lock(mutex_);
  free_slots_.push_back(slot);
}

Result<ServerLink::Reply> ServerLink::Call(VolumeLane& lane, CallRequest request, bool once) {
  if (once) {
    request.mark = {.sequence = ++lane.slot_.sequence, .slot = lane.slot_.number};
  }
  const SpinHold in_use(lane.in_use_);
  lane.grants_.BeginRequest();
  auto reply = lane.channel_->Call(request);
  if (reply.ok()) [[likely]] {
    return Reply{.body = reply->body, .out = request.out.first(reply->out_bytes)};
  }
  if (!IsLoss(reply.status())) {
    return std::move(reply).status();
  }
  return CallAgain(lane, request, std::move(reply).status());
}

Result<ServerLink::Reply> ServerLink::CallAgain(VolumeLane& lane, CallRequest request, Status why) {
  const VolumeLane::Hold hold(lane);
  bool sent = !lane.channel_->unsent();
  for (int losses = 1; losses <= kMostLosses; ++losses) {
    const std::byte* const former = lane.buffer().data();
    RETURN_IF_ERROR(Rejoin(lane, why));
    std::byte* const buffer = lane.buffer().data();
    if (!request.in.empty() && buffer != former) {
      std::byte* const to = buffer + (request.in.data() - former);
      std::memcpy(to, request.in.data(), request.in.size());
      request.in = {to, request.in.size()};
    }
    if (!request.out.empty() && buffer != former) {
      request.out = {buffer + (request.out.data() - former), request.out.size()};
    }
    request.mark.sent_before = sent && request.mark.sequence != 0;
    lane.grants_.BeginRequest();
    auto reply = lane.channel_->Call(request);
    if (reply.ok()) {
      return Reply{.body = reply->body, .out = request.out.first(reply->out_bytes)};
    }
    if (!IsLoss(reply.status())) {
      return std::move(reply).status();
    }
    sent = sent || !lane.channel_->unsent();
    why = std::move(reply).status();
  }
  return Status::Error(EIO, "the connection was lost " + std::to_string(kMostLosses) + " times during one request");
}

Status ServerLink::CallIn(uint64_t generation, VolumeLane& lane, const CallRequest& request) {
  const SpinHold in_use(lane.in_use_);
  RETURN_IF_ERROR(JoinIn(generation, lane, Phase::kResuming));
  return NoteLoss(generation, lane.channel_->Call(request).status());
}

Status ServerLink::PostIn(uint64_t generation, VolumeLane& lane, const CallRequest& request) {
  const SpinHold in_use(lane.in_use_);
  RETURN_IF_ERROR(JoinIn(generation, lane, Phase::kResumed));
  return NoteLoss(generation, lane.channel_->Post(request));
}

Status ServerLink::AwaitPosted(uint64_t generation, VolumeLane& lane) {
  const SpinHold in_use(lane.in_use_);
  return lane.generation_ == generation ? NoteLoss(generation, lane.channel_->AwaitPosted())
                                        : Status::Error(ENOTCONN, "another session");
}

Status ServerLink::NoteLoss(uint64_t generation, Status status) {
  if (IsLoss(status)) {
    ReportLost(generation, status);
  }
  return status;
}

Status ServerLink::PostOnce(VolumeLane& lane, const VolumeLane::PostPlace& place, CallRequest request,
                            tlib::client::LateReply late) {
  const SpinHold in_use(lane.in_use_);
  request.mark = place.mark;
  VolumeLane::Post& post = lane.posts_[place.index];
  // Whoever calls it has the lane in use.
  Status posted =
      lane.channel_->Post(request, [&post, late = std::move(late)](const Result<std::span<const std::byte>>& reply) {
        post.taken = false;
        late(reply);
      });
  post.taken = post.taken && posted.ok();
  return posted;
}

Status ServerLink::JoinIn(uint64_t generation, VolumeLane& lane, Phase from) {
  if (lane.generation_ == generation) [[likely]] {
    return Status::Ok();
  }
  SessionPtr session;
  {
    MutexLock lock(mutex_);
    if (generation < generation_ || generation <= lost_generation_ || lane.generation_ > generation ||
        state_ == State::kAbandoned) {
      return Status::Error(ENOTCONN, "that session is gone");
    }
    if (generation_ == generation && state_ == State::kUp) {
      session = session_;
    } else if (from == Phase::kResuming && resuming_generation_ == generation) {
      session = resuming_;
    }
  }
  if (session == nullptr) {
    return Status::Error(EAGAIN, "that session is not there yet");
  }
  return Join(lane, session, generation);
}

bool ServerLink::RejoinAtOnce(VolumeLane& lane, const Status& why) {
  ReportLost(lane.generation_, why);
  if (steady_clock::now() < lane.next_join_) {
    return false;
  }
  const SpinHold in_use(lane.in_use_);
  const Status joined = JoinNow(lane);
  if (!joined.ok() && joined.code() != ENOTCONN) {  // the server took its time
    lane.next_join_ = steady_clock::now() + kPauseOfJoins;
  }
  return joined.ok();
}

Status ServerLink::JoinNow(VolumeLane& lane) {
  uint64_t generation = 0;
  {
    MutexLock lock(mutex_);
    if (state_ != State::kUp || generation_ <= std::max(lost_generation_, lane.generation_)) {
      return Status::Error(ENOTCONN, "there is no session now");
    }
    generation = generation_;
  }
  return JoinIn(generation, lane, Phase::kResumed);
}

Status ServerLink::Rejoin(VolumeLane& lane, const Status& why) {
  if (lane.channel_ != nullptr) {
    ReportLost(lane.generation_, why);
  }
  const auto began = steady_clock::now();
  const auto until = began + kPatienceToJoin;
  Status last;
  for (int attempt = 0; attempt < kMostLosses; ++attempt) {
    ASSIGN_OR_RETURN(const auto current, AwaitSession(lane));
    const auto& [session, generation] = current;
    last = Join(lane, session, generation);
    // Of a step of it that is shorter than a request's time: the server is busy, or dying; or no connection for data
    // gets through, while the session's own still seem to. Its loss will be noticed, so this waits as long as for that.
    if (last.code() == ETIMEDOUT && steady_clock::now() < std::max(until, began + reconnect_)) {
      if (lane.interruption_->requested()) {
        return Status::Error(EINTR, "the wait for the server was interrupted");
      }
      --attempt;
      continue;
    }
    if (IsShort(last)) {
      if (steady_clock::now() >= until) {
        return Status::Error(EIO, last.ToString());  // a program would take the code for its own shortage
      }
      if (lane.interruption_->requested()) {
        return Status::Error(EINTR, "the wait for the server was interrupted");
      }
      std::this_thread::sleep_for(kLook);
      --attempt;
      continue;
    }
    if (last.ok() || !(IsLoss(last) || IsUnreachable(last))) {
      return last;
    }
    ReportLost(generation, last);
  }
  return last.code() == ETIMEDOUT ? last : Status::Error(EIO, "the connection is lost time after time");
}

Result<std::pair<ServerLink::SessionPtr, uint64_t>> ServerLink::AwaitSession(VolumeLane& lane) {
  WaitTold told(lane.wait_);
  while (true) {
    {
      MutexLock lock(mutex_);
      if (state_ == State::kAbandoned) {
        return why_;
      }
      if (state_ == State::kUp && generation_ > lost_generation_) {
        return std::pair(session_, generation_);
      }
      const auto now = steady_clock::now();
      if (state_ == State::kGivenUp || (state_ == State::kDown && now >= down_since_ + reconnect_)) {
        return GivenUpStatus();
      }
      if (lane.interruption_->requested()) {
        return Status::Error(EINTR, "the wait for the server was interrupted");
      }
      if (told.begun()) {
        changed_.WaitFor(mutex_, kLook);
      }
    }
    told.Begin();  // it may open a lane
  }
}

Status ServerLink::Join(VolumeLane& lane, const SessionPtr& session, uint64_t generation) {
  ASSIGN_OR_RETURN(auto channel, session->OpenChannel({.buffer_bytes = lane.channel_bytes(),
                                                       .interruption = lane.interruption_.get(),
                                                       .patience = lane.by_map_ ? kPatienceByMap : milliseconds(0)}));
  if (lane.channel_ != nullptr) {
    lane.former_voids_ += lane.channel_->voids() + 1;
  }
  if (lane.channel_ != nullptr && lane.holds_ > 0) {
    lane.former_.push_back(std::move(lane.channel_));
  }
  lane.channel_ = std::move(channel);
  lane.generation_ = generation;
  return Status::Ok();
}

}  // namespace termfs::fs::client

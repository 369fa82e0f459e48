// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/session_thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/log.h"
#include "base/start_thread.h"

namespace termfs::tlib::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kForever{3'600'000};
// How often the rings are emptied: often enough that the fullest one is a quarter full by then, no oftener, as a thread
// that wakes up disturbs those that read. What does not fit when it suddenly fills faster is dropped.
constexpr int kMostDrains = 40;  // in a period
constexpr int kFewestDrains = 5;
constexpr milliseconds kShortestDrain{10};

// Nothing was read for so long.
constexpr std::chrono::seconds kUntilRest{3};
constexpr std::chrono::seconds kLongestRest{10};

constexpr driver::SendWorkRequest kRing{.opcode = driver::Opcode::kSend};

milliseconds PartOf(const SessionOptions& options) {
  return std::max(options.heat_period / HeatPace::kParts, milliseconds(1));
}

// `held`: what was in the fullest ring after `last`.
milliseconds NextDrain(milliseconds last, uint32_t held, milliseconds shortest, milliseconds longest) {
  const auto fills = last.count() * (AccessRing::kEntries / 4) / std::max<int64_t>(held, 1);
  return std::clamp(milliseconds(std::min<int64_t>(fills, 2 * last.count())), shortest, longest);
}

}  // namespace

Result<std::unique_ptr<SessionThread>> SessionThread::Start(std::shared_ptr<SessionCore> core) {
  std::unique_ptr<SessionThread> thread(new SessionThread(std::move(core)));
  RETURN_IF_ERROR(thread->Init());
  ASSIGN_OR_RETURN(thread->thread_, StartThread([raw = thread.get()] { raw->Run(); }));
  return thread;
}

Status SessionThread::Init() {
  stop_event_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event_.valid()) {
    return ErrnoStatus("create an eventfd");
  }
  ASSIGN_OR_RETURN(queue_, core_->nic().CreateCompletionQueue(16));
  ASSIGN_OR_RETURN(auto opened, core_->OpenQueuePair(
                                    wire::Purpose::Data,
                                    {.send_cq = queue_.get(), .recv_cq = queue_.get(), .max_send = 4, .max_recv = 4}));
  pair_ = std::move(opened.pair);  // it sends nothing but rings, so there is nothing to seal
  if (core_->bitmap_mode() == BitmapMode::kLive) {
    RETURN_IF_ERROR(pair_->SharedView(core_->region().bitmap_rkey).status());
  }
  if (core_->bitmap_mode() == BitmapMode::kPulled) {
    piece_ = std::make_unique<uint64_t[]>(piece_words_);
    ASSIGN_OR_RETURN(piece_region_,
                     core_->domain().RegisterMemory(reinterpret_cast<std::byte*>(piece_.get()),
                                                    piece_words_ * sizeof(uint64_t), driver::Access::kLocalWrite));
    RETURN_IF_ERROR(PullBitmap());
  }
  if (core_->table() != nullptr) {
    ASSIGN_OR_RETURN(table_puller_,
                     TablePuller::Create(*core_, std::min(core_->options().pull_pages, kMaxPullPages) / 8,
                                         [this](const driver::SendWorkRequest& read) { return Carry(read); }));
  }
  return core_->StartHeat();
}

SessionThread::~SessionThread() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(stop_event_.get(), &one, sizeof(one));  // an empty eventfd takes it
    thread_.join();
  }
  pair_.reset();
  queue_.reset();
}

void SessionThread::Run() {
  const SessionOptions& options = core_->options();
  const bool pulls =
      (core_->bitmap_mode() == BitmapMode::kPulled || table_puller_ != nullptr) && options.pull_period.count() > 0;
  const bool pings = core_->over_network();
  const TimePoint begin = steady_clock::now();
  if (pings) {
    answered_ping_ = begin;
  }
  used_ = begin;
  drain_period_ = std::max(options.heat_period / kMostDrains, kShortestDrain);
  due_ = {.pull = begin + (pulls ? options.pull_period : kForever),
          .drain = begin + (core_->heat() != nullptr ? drain_period_ : kForever),
          .part = begin + (core_->heat() != nullptr ? PartOf(options) : kForever),
          .ping = begin + (pings ? kPingPeriod : kForever)};
  while (SleepUntil(resting_ ? std::min(due_.ping, due_.part) : due_.first())) {
    const TimePoint now = steady_clock::now();
    if (now >= due_.ping) {
      due_.ping = now + (pings ? kPingPeriod : kForever);
      Ping();
    }
    if (resting_) {
      GoOn(now);
      continue;
    }
    if (now >= due_.pull) {
      due_.pull = now + (pulls ? options.pull_period : kForever);
      if (Status pulled = pulls ? PullInTurn() : Status::Ok(); !pulled.ok()) {
        core_->MarkLost(pulled);
      }
    }
    if (core_->heat() == nullptr) {
      due_.drain = due_.part = now + kForever;
      continue;
    }
    if (now >= due_.drain) {
      Drain(now);
    }
    if (now >= due_.part) {
      EndPart(now);
    }
  }
}

void SessionThread::Drain(TimePoint now) {
  const SessionOptions& options = core_->options();
  const milliseconds shortest = std::max(options.heat_period / kMostDrains, kShortestDrain);
  const milliseconds longest = std::max(options.heat_period / kFewestDrains, kShortestDrain);
  drain_period_ = NextDrain(drain_period_, core_->heat()->Drain(), shortest, longest);
  due_.drain = now + drain_period_;
}

void SessionThread::EndPart(TimePoint now) {
  due_.part = now + PartOf(core_->options());
  const ReadTotals totals = core_->read_totals();
  if (totals.hit_pages != seen_totals_.hit_pages || totals.missed_pages != seen_totals_.missed_pages) {
    seen_totals_ = totals;
    used_ = now;
  }
  TellHeat(totals, now);
  if (now - used_ >= std::max<std::chrono::nanoseconds>(kUntilRest, 2 * core_->options().heat_period)) {
    Rest(now);
  }
}

void SessionThread::TellHeat(const ReadTotals& totals, TimePoint now) {
  HeatExporter& heat = *core_->heat();
  if (!pace_.PartEnded(totals) && !heat.crowded()) {
    return;
  }
  heat.Drain();
  if (heat.Publish(totals)) {
    const bool rings = now - std::exchange(published_, now) >= kHeatPause;
    if (Status rung = rings ? Carry(kRing) : Status::Ok(); !rung.ok()) {
      core_->MarkLost(rung);
    }
  }
  heat.SetSampling(pace_.sampling());
}

// An access that is counted just now may not ring; the next does, and the look at kLongestRest.
void SessionThread::Rest(TimePoint now) {
  resting_ = true;
  due_.part = now + kLongestRest;
  core_->bell().Await();
  core_->heat()->AwaitAccess(core_->bell());
}

// The bell has rung, or it is time to see whether it should have, or to ping.
void SessionThread::GoOn(TimePoint now) {
  const ReadTotals totals = core_->read_totals();
  const bool used = totals.hit_pages != seen_totals_.hit_pages || totals.missed_pages != seen_totals_.missed_pages;
  if (!core_->bell().rung() && !used) {
    core_->bell().Settle();
    due_.part = now >= due_.part ? now + kLongestRest : due_.part;
    return;
  }
  resting_ = false;
  core_->bell().Silence();
  core_->heat()->SetSampling(pace_.sampling());
  used_ = now;
  due_.pull = std::min(due_.pull, now);
  due_.drain = now;
  due_.part = now + PartOf(core_->options());
}

bool SessionThread::SleepUntil(TimePoint due) {
  const bool lost = core_->patterns().lost();
  pollfd waited[3] = {{.fd = stop_event_.get(), .events = POLLIN, .revents = 0},
                      {.fd = resting_ ? core_->bell().fd() : -1, .events = POLLIN, .revents = 0},
                      {.fd = core_->control().fd(), .events = POLLRDHUP, .revents = 0}};
  const auto left = std::chrono::ceil<milliseconds>(due - steady_clock::now()).count();
  const int timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 10'000));
  const int ready = poll(waited, lost ? 2 : 3, timeout);  // once it is lost the socket would wake us for ever
  if (ready < 0 && errno != EINTR) {
    core_->MarkLost(ErrnoStatus("watch the control channel"));
    return false;
  }
  if (ready > 0 && waited[0].revents != 0) {
    return false;
  }
  if (ready > 0 && waited[2].revents != 0) {
    core_->MarkLost(Status::Error(ENOTCONN, "the server is gone, or closed the session"));
  }
  return true;
}

// Whether the server is there. It has answered within kServerSilence of the last question that it answered, or the
// session is lost.
void SessionThread::Ping() {
  if (!core_->over_network()) {
    return;
  }
  if (core_->patterns().lost()) {
    core_->control().Shutdown();  // so that the server learns it, too, whatever the reason was
    return;
  }
  const TimePoint asked = steady_clock::now();
  const Status answered =
      core_->control().Call<wire::DoneT>(wire::PingT(), std::max(asked, answered_ping_ + kServerSilence)).status();
  if (answered.ok()) {
    answered_ping_ = asked;
  } else {
    core_->MarkLost(answered);
    core_->control().Shutdown();
  }
}

Status SessionThread::PullBitmap() {
  do {
    RETURN_IF_ERROR(PullNextPiece());
  } while (next_word_ != 0);
  pulls_.Add();
  return Status::Ok();
}

Status SessionThread::PullInTurn() {
  if (table_puller_ != nullptr) {
    return table_puller_->PullInTurn();
  }
  RETURN_IF_ERROR(PullNextPiece());
  pulls_.Add();
  return Status::Ok();
}

Status SessionThread::PullNextPiece() {
  const uint64_t all_words = core_->pulled_bitmap().size();
  const uint64_t first_word = next_word_;
  const auto words = static_cast<uint32_t>(std::min(piece_words_, all_words - first_word));
  driver::SendWorkRequest read{.opcode = driver::Opcode::kRdmaRead};
  read.local = {.addr = piece_.get(), .length = words * 8, .lkey = piece_region_->lkey()};
  read.remote_offset = first_word * 8;
  read.rkey = core_->region().bitmap_rkey;
  RETURN_IF_ERROR(Carry(read));
  const auto pulled = core_->pulled_bitmap().subspan(first_word, words);
  for (uint32_t i = 0; i < words; i++) {
    pulled[i].store(piece_[i], std::memory_order_relaxed);
  }
  next_word_ = first_word + words == all_words ? 0 : first_word + words;
  pulled_bytes_.Add(words * sizeof(uint64_t));
  return Status::Ok();
}

Status SessionThread::Carry(const driver::SendWorkRequest& request) {
  RETURN_IF_ERROR(pair_->PostSend({&request, 1}));
  std::array<driver::WorkCompletion, 1> completion;
  Deadline deadline = answered_ping_ != TimePoint::max() ? Deadline(answered_ping_ + kServerSilence)  // pings wait
                                                         : Deadline(core_->call_timeout());
  RETURN_IF_ERROR(waiter_.Wait(
      *queue_, [&] { return queue_->Poll(completion) != 0; }, deadline, /*soon=*/true));
  if (completion[0].status != driver::WcStatus::kSuccess) {
    return Status::Error(ENOTCONN,
                         "a request of the session itself: " + std::string(driver::ToString(completion[0].status)));
  }
  return Status::Ok();
}

}  // namespace termfs::tlib::client

// SPDX-License-Identifier: Apache-2.0
#include "mount/fuse_carrier.h"

#include <linux/fuse.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "mount/cpu_list.h"
#include "mount/fuse_wire.h"

namespace termfs::mount {
namespace {

constexpr std::chrono::seconds kCarrierTurn{1};  // of a wait in a loop
constexpr int kLookMs = 1000;                    // a read that nobody answers is noticed at the next look
constexpr int kLongestPauseMs = 8000;            // between attempts to make what it needs
constexpr size_t kArrivals = 16;                 // at a time

}  // namespace

void FuseCarrier::Guest::BeginRequest(const RequestFacts& facts) {
  if (interruption != nullptr && interruption->operation() != facts.unique) {
    caller.store(facts.caller, std::memory_order_relaxed);
    interruption->Begin(facts.unique);  // after the caller: pairs with FuseServer::LookAtCallers
  }
}

void FuseCarrier::Guest::EndRequest() {
  if (interruption != nullptr) {
    interruption->End();
  }
  requests.Add();
}

Result<std::unique_ptr<FuseCarrier>> FuseCarrier::Create(int device, unsigned cpu, FuseReads::Factory make_reads) {
  std::unique_ptr<FuseCarrier> carrier(new FuseCarrier);
  carrier->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!carrier->wake_.valid()) {
    return ErrnoStatus("create an eventfd");
  }
  ASSIGN_OR_RETURN(carrier->thread_,
                   StartThread([raw = carrier.get(), device, cpu, make_reads = std::move(make_reads)] {
                     raw->Run(device, cpu, make_reads);
                   }));
  return carrier;
}

FuseCarrier::~FuseCarrier() {
  Stop();
  if (thread_.joinable()) {
    thread_.join();
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Other threads.

bool FuseCarrier::Carry(Guest& guest, FuseRing::Arrival& back) {
  MutexLock lock(mutex_);
  if (stopping_.load() || away_ == kMost) {
    return false;
  }
  away_++;
  guest.away_ = true;
  lent_.push_back(&guest);
  lent_any_.store(true);
  Wake();
  while (guest.away_) {
    guest.returned_.WaitFor(mutex_, kCarrierTurn);
  }
  back = guest.return_;
  return true;
}

void FuseCarrier::LookAtInterruptions() {
  if (ready()) {
    look_at_interruptions_.store(true);
    Wake();
  }
}

void FuseCarrier::Stop() {
  stopping_.store(true);
  Wake();
}

void FuseCarrier::Wake() {
  if (asleep_.exchange(false)) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(wake_.get(), &one, sizeof(one));  // full: it is awake
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The thread.

void FuseCarrier::Run(int device, unsigned cpu, const FuseReads::Factory& make_reads) {
  pthread_setname_np(pthread_self(), "termfs-carrier");
  BindToCpu(cpu);
  if (!Prepare(device, make_reads)) {
    ring_.reset();
    return;
  }
  ready_.store(true, std::memory_order_release);
  while (!stopping_.load()) {
    bool busy = TakeGuests();
    busy |= TakeArrivals(/*wait=*/false);
    busy |= TakeDone();
    if (look_at_interruptions_.exchange(false)) {
      ReturnInterrupted();
    }
    if (!busy) {
      Sleep();
    }
  }
  ring_->Submit();
  ring_.reset();
  reads_->Drop();
  ReturnAll();
}

bool FuseCarrier::Prepare(int device, const FuseReads::Factory& make_reads) {
  auto ring = FuseRing::Create(device, kMost, FuseRing::Sleep::kPoll);
  if (!ring.ok()) {
    LOG_WARNING("READs of one CPU wait one by one: {}", ring.status().ToString());
    return false;
  }
  ring_ = std::move(*ring);
  ring_->WakeBy(wake_.get());
  int pause = kLookMs;
  while (!stopping_.load()) {
    auto reads = make_reads();
    if (reads.ok()) {
      reads_ = std::move(*reads);
      return true;
    }
    LOG_DEBUG("READs of one CPU wait one by one for now: {}", reads.status().ToString());
    asleep_.store(true);
    pollfd woken{.fd = wake_.get(), .events = POLLIN, .revents = 0};
    poll(&woken, 1, stopping_.load() ? 0 : pause);  // only Stop wakes it
    pause = std::min(2 * pause, kLongestPauseMs);   // each attempt may take the server's time
  }
  return false;
}

bool FuseCarrier::TakeGuests() {
  if (!lent_any_.load()) {
    return false;
  }
  std::vector<Guest*> lent;
  {
    MutexLock lock(mutex_);
    lent.swap(lent_);
    lent_any_.store(false);
  }
  for (Guest* const guest : lent) {
    const auto place = static_cast<size_t>(std::find(guests_.begin(), guests_.end(), nullptr) - guests_.begin());
    guests_[place] = guest;  // there is one: no more than kMost are away
    Serve(place);
  }
  return !lent.empty();
}

bool FuseCarrier::TakeArrivals(bool wait) {
  std::array<FuseRing::Arrival, kArrivals> arrivals;
  const Result<size_t> count = ring_->Take(arrivals, wait);
  asleep_.store(false);
  if (!count.ok()) {
    LOG_ERROR("FUSE requests are not received any more: {}", count.status().ToString());
    stopping_.store(true);
    return false;
  }
  std::for_each_n(arrivals.begin(), *count, [this](const auto& arrival) { Handle(arrival); });
  return *count != 0;
}

void FuseCarrier::Handle(const FuseRing::Arrival& arrival) {
  if (arrival.event == FuseRing::Event::kWoken) {
    uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &wakes, sizeof(wakes));  // EAGAIN: read already
    return;
  }
  const auto is_its = [&](const Guest* guest) { return guest != nullptr && guest->command.get() == arrival.command; };
  const auto place = static_cast<size_t>(std::find_if(guests_.begin(), guests_.end(), is_its) - guests_.begin());
  TERMFS_CHECK(place < kMost);
  if (arrival.event == FuseRing::Event::kEnded) {
    return Return(place, arrival);
  }
  guests_[place]->received = std::chrono::steady_clock::now();
  guests_[place]->received_by_ring.Add();
  Serve(place);
}

void FuseCarrier::Serve(size_t place) {
  Guest& guest = *guests_[place];
  std::array<std::byte, FuseCommand::kHeadBytes> head;
  const std::span<const std::byte> message = guest.command->Head(head);
  const RequestFacts facts = Examine(message);
  const std::optional<ReadArguments> what = ReadOf(message);
  if (!what || what->size > FuseReads::kLargest) {
    return Return(place, {.command = guest.command.get(), .event = FuseRing::Event::kRequest});
  }
  guest.unique_ = facts.unique;
  guest.BeginRequest(facts);
  const auto begun = reads_->Begin({.what = *what, .caches = facts.caches, .received = guest.received}, place);
  if (begun.ok() && !begun->has_value()) {
    SetUnderWay(guest, true);
    if (guest.interruption != nullptr && guest.interruption->requested()) {  // before it was here to be looked at
      look_at_interruptions_.store(true);
    }
  } else {
    Answer(place, begun.ok() ? Result<std::span<const std::byte>>(**begun) : begun.status());
  }
}

void FuseCarrier::SetUnderWay(Guest& guest, bool is) {
  if (std::exchange(guest.under_way_, is) != is) {
    under_way_.fetch_add(is ? 1U : ~0U, std::memory_order_relaxed);
  }
}

void FuseCarrier::Answer(size_t place, const Result<std::span<const std::byte>>& data) {
  Guest& guest = *guests_[place];
  SetUnderWay(guest, false);
  if (data.status().code() == EAGAIN) {
    return Return(place, {.command = guest.command.get(), .event = FuseRing::Event::kRequest});
  }
  ReadReply reply(guest.unique_, data);
  guest.command->Put(reply.parts());  // fits
  guest.EndRequest();
  ring_->Send(*guest.command);
}

bool FuseCarrier::TakeDone() {
  if (!busy()) {
    return false;
  }
  done_.clear();
  reads_->Poll(done_);
  for (const FuseReads::Done& done : done_) {
    Answer(done.place, done.data);
  }
  return !done_.empty();
}

void FuseCarrier::Sleep() {
  asleep_.store(true);
  if (lent_any_.load() || stopping_.load() || look_at_interruptions_.load()) {
    asleep_.store(false);
    return;
  }
  if (!busy()) {
    TakeArrivals(/*wait=*/true);
    return;
  }
  std::array<int, 2> fds{};
  if (reads_->Arm(fds)) {
    pollfd waited[3] = {{.fd = ring_->fd(), .events = POLLIN, .revents = 0},
                        {.fd = fds[0], .events = POLLIN, .revents = 0},
                        {.fd = fds[1], .events = POLLIN, .revents = 0}};
    const bool woken = poll(waited, 3, kLookMs) > 0;
    reads_->Disarm();
    if (woken && under_way_.load(std::memory_order_relaxed) > 1) {
      give_way_();
    }
  }
  asleep_.store(false);
}

// ---------------------------------------------------------------------------------------------------------------
// Home again.

// `with` a request: it has begun, and may have been interrupted. Its thread goes on with that.
void FuseCarrier::Return(size_t place, const FuseRing::Arrival& with) {
  Guest* const guest = std::exchange(guests_[place], nullptr);
  MutexLock lock(mutex_);
  guest->away_ = false;
  guest->return_ = with;
  away_--;
  guest->returned_.NotifyOne();
}

void FuseCarrier::ReturnInterrupted() {
  const auto is_to_end = [](const Guest* guest) {
    return guest != nullptr && guest->under_way_ && guest->interruption != nullptr && guest->interruption->requested();
  };
  if (std::none_of(guests_.begin(), guests_.end(), is_to_end)) {
    return;
  }
  // One alone cannot be taken back.
  reads_->Drop();
  for (size_t place = 0; place < guests_.size(); place++) {
    Guest* const guest = guests_[place];
    if (guest != nullptr && guest->under_way_) {
      SetUnderWay(*guest, false);
      Return(place, {.command = guest->command.get(), .event = FuseRing::Event::kRequest});
    }
  }
}

// Those that have a request: what is under way, and who has come last.
void FuseCarrier::ReturnAll() {
  std::vector<Guest*> unseen;
  {
    MutexLock lock(mutex_);
    unseen.swap(lent_);
  }
  for (Guest* const guest : unseen) {
    *std::find(guests_.begin(), guests_.end(), nullptr) = guest;
    SetUnderWay(*guest, true);
  }
  for (size_t place = 0; place < guests_.size(); place++) {
    Guest* const guest = guests_[place];
    if (guest != nullptr && guest->under_way_) {
      SetUnderWay(*guest, false);
      Return(place, {.command = guest->command.get(), .event = FuseRing::Event::kRequest});
    } else if (guest != nullptr) {
      Return(place, {.command = guest->command.get(), .event = FuseRing::Event::kEnded, .error = ENOTCONN});
    }
  }
}

}  // namespace termfs::mount

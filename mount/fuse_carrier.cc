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

#include "base/log.h"
#include "mount/cpu_list.h"
#include "mount/fuse_wire.h"

namespace termfs::mount {
namespace {

constexpr int kLookMs = 1000;     // a read that nobody answers is noticed at the next look
constexpr size_t kArrivals = 16;  // at a time

}  // namespace

Result<std::unique_ptr<FuseCarrier>> FuseCarrier::Create(int device, unsigned cpu, std::unique_ptr<FuseReads> reads) {
  std::unique_ptr<FuseCarrier> carrier(new FuseCarrier(std::move(reads)));
  carrier->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!carrier->wake_.valid()) {
    return ErrnoStatus("create an eventfd");
  }
  carrier->thread_ = std::thread([raw = carrier.get(), device, cpu] { raw->Run(device, cpu); });
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
    guest.returned_.Wait(mutex_);
  }
  back = guest.return_;
  return true;
}

void FuseCarrier::LookAtInterruptions() {
  look_at_interruptions_.store(true);
  Wake();
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

void FuseCarrier::Run(int device, unsigned cpu) {
  pthread_setname_np(pthread_self(), "termfs-carrier");
  BindToCpu(cpu);
  auto ring = FuseRing::Create(device, kMost);
  if (ring.ok()) {
    ring_ = std::move(*ring);
    ring_->WakeBy(wake_.get());
  } else {
    LOG_DEBUG("absent pages of CPU {} are waited for one by one: {}", cpu, ring.status().ToString());
    stopping_.store(true);
  }
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
  ring_.reset();  // no command is in the kernel any more
  reads_->Drop();
  ReturnAll();
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
  const auto begun = reads_->Begin({.what = *what, .caches = facts.caches, .received = guest.received}, place);
  if (begun.ok() && !begun->has_value()) {
    guest.caller.store(facts.caller, std::memory_order_relaxed);
    SetUnderWay(guest, true);
  } else {
    Answer(place, begun.ok() ? Result<std::span<const std::byte>>(**begun) : begun.status());
  }
}

void FuseCarrier::SetUnderWay(Guest& guest, bool is) {
  guest.under_way_ = is;
  under_way_.fetch_add(is ? 1U : ~0U, std::memory_order_relaxed);
  if (guest.interruption != nullptr && is) {
    guest.interruption->Begin(guest.unique_);  // after the caller
  } else if (guest.interruption != nullptr) {
    guest.interruption->End();
  }
}

void FuseCarrier::Answer(size_t place, const Result<std::span<const std::byte>>& data) {
  Guest& guest = *guests_[place];
  if (guest.under_way_) {
    SetUnderWay(guest, false);
  }
  if (data.status().code() == EAGAIN) {
    return Return(place, {.command = guest.command.get(), .event = FuseRing::Event::kRequest});
  }
  ReadReply reply(guest.unique_, data);
  guest.command->Put(reply.parts());  // fits
  guest.requests.Add();
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
    poll(waited, 3, kLookMs);
    reads_->Disarm();
    give_way_();
  }
  asleep_.store(false);
}

// ---------------------------------------------------------------------------------------------------------------
// Home again.

// `with` a request that is under way no more, though its interruption may still name it: its thread goes on with that.
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
    if (guest != nullptr && std::exchange(guest->under_way_, false)) {
      under_way_.fetch_sub(1, std::memory_order_relaxed);
      Return(place, {.command = guest->command.get(), .event = FuseRing::Event::kRequest});
    }
  }
}

void FuseCarrier::ReturnAll() {
  std::vector<Guest*> unseen;
  {
    MutexLock lock(mutex_);
    unseen.swap(lent_);
  }
  under_way_.store(0, std::memory_order_relaxed);
  for (Guest* const guest : unseen) {
    guest->under_way_ = true;
    *std::find(guests_.begin(), guests_.end(), nullptr) = guest;
  }
  for (size_t place = 0; place < guests_.size(); place++) {
    Guest* const guest = guests_[place];
    if (guest != nullptr && std::exchange(guest->under_way_, false)) {
      Return(place, {.command = guest->command.get(), .event = FuseRing::Event::kRequest});
    } else if (guest != nullptr) {
      Return(place, {.command = guest->command.get(), .event = FuseRing::Event::kEnded, .error = ENOTCONN});
    }
  }
}

}  // namespace termfs::mount

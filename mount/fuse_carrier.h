// SPDX-License-Identifier: Apache-2.0
//
// FuseCarrier: a thread that waits for absent pages in place of others of its queue. A thread with a ring that is about
// to read while somebody of the same queue waits already gives its command away and sleeps. The carrier answers what is
// in memory, waits for everything else together, and keeps the command: the next requests come to it directly, and so
// many READs share one wake-up, one message to the server and one system call. What is no small READ it does not
// answer: the command goes back to its thread, with the request. See "Carried together".
//
// Thread-safety: Carry by the guest's thread; the rest any thread.
// Ownership:     owns its thread, its ring and its FuseReads. Guests outlive their time with it.
// Errors:        of Create: no thread, no ring.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/give_way.h"
#include "base/interruption.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "mount/fuse_command.h"
#include "mount/fuse_reads.h"
#include "mount/fuse_ring.h"

namespace termfs::mount {

class FuseCarrier {
 public:
  // A thread's command, and what others know of the request that it has brought. The thread's; the carrier's from
  // Carry until it returns.
  struct Guest {
    std::unique_ptr<FuseCommand> command;
    Interruption* interruption = nullptr;  // its operation is the number of the request that is being answered
    std::atomic<uint32_t> caller{0};       // of that request
    Counter requests;                      // that were answered
    Counter received_by_ring;
    std::chrono::steady_clock::time_point received;  // the request

    // From then on it can be interrupted. Again is nothing: whoever goes on with it does so with what was requested.
    void BeginRequest(const RequestFacts& facts);
    void EndRequest();

   private:
    friend class FuseCarrier;
    bool away_ = false;         // the carrier's mutex guards this
    FuseRing::Arrival return_;  // and this
    CondVar returned_;
    bool under_way_ = false;  // this and the rest: the carrier's
    uint64_t unique_ = 0;
  };

  // Runs on `cpu`. `device`, the FUSE device, stays open as long as it lives.
  static Result<std::unique_ptr<FuseCarrier>> Create(int device, unsigned cpu, FuseReads::Factory make_reads);
  ~FuseCarrier();
  FuseCarrier(const FuseCarrier&) = delete;
  FuseCarrier& operator=(const FuseCarrier&) = delete;

  // It has what it needs by now.
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  // Takes the guest's command, with the request that it has brought, until its own thread has something to do: `back`
  // is a request that it is to answer, or says that the command has ended. False: it was not taken. REQUIRES: ready().
  bool Carry(Guest& guest, FuseRing::Arrival& back) EXCLUDES(mutex_);
  // READs wait here for absent pages.
  bool busy() const { return under_way_.load(std::memory_order_relaxed) != 0; }
  // An interruption of some guest was requested: it goes home with its request.
  void LookAtInterruptions();
  // Everything goes home, and nothing is taken any more.
  void Stop();

 private:
  static constexpr size_t kMost = FuseReads::kMost;
  FuseCarrier() = default;
  void Run(int device, unsigned cpu, const FuseReads::Factory& make_reads);
  // Until it has what it needs. False: it will not.
  bool Prepare(int device, const FuseReads::Factory& make_reads);
  // These say whether there was anything to do.
  bool TakeGuests() EXCLUDES(mutex_);
  bool TakeArrivals(bool wait);
  bool TakeDone();
  void Sleep();
  void Wake();
  void Handle(const FuseRing::Arrival& arrival);
  // The request that the guest at `place` has brought.
  void Serve(size_t place);
  void Answer(size_t place, const Result<std::span<const std::byte>>& data);
  void SetUnderWay(Guest& guest, bool is);
  void Return(size_t place, const FuseRing::Arrival& with) EXCLUDES(mutex_);
  void ReturnAll() EXCLUDES(mutex_);
  void ReturnInterrupted();

  UniqueFd wake_;  // an eventfd
  std::atomic<bool> ready_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> look_at_interruptions_{false};
  std::atomic<bool> lent_any_{false};
  std::atomic<bool> asleep_{false};  // it and the three above: sequentially consistent
  std::atomic<uint32_t> under_way_{0};
  Mutex mutex_;
  std::vector<Guest*> lent_ GUARDED_BY(mutex_);  // that the thread has not seen
  size_t away_ GUARDED_BY(mutex_) = 0;           // guests
  std::thread thread_;
  // Of the thread.
  std::unique_ptr<FuseReads> reads_;
  std::unique_ptr<FuseRing> ring_;
  std::array<Guest*, kMost> guests_{};  // by their places
  std::vector<FuseReads::Done> done_;
  GiveWay give_way_;
};

}  // namespace termfs::mount

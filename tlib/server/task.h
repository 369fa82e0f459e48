// SPDX-License-Identifier: Apache-2.0
//
// Task: one coroutine on one worker. The only file besides task.cc that other code needs to wait inside a request;
// task.cc is the only one that touches Boost.Coroutine2 (and tells the sanitizers when stacks switch).
//
//   waiting for something:  waiters.push_back(&Task::Current()); unlock; Task::Park();   // and look again
//   making it happen:       task->Unpark();                                              // from any thread
//
// A task holds one permit: Unpark gives it, Park takes it or waits for it. So an Unpark that comes first is not lost,
// and Park may return for an older reason: wait in a loop over the condition. A task must not end while somebody may
// still Unpark it.
//
// Thread-safety: Unpark: any thread. Current and Park: inside the task.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace termfs::tlib::server {

class Worker;

class Task {
 public:
  // The task that runs on this thread. REQUIRES: InTask().
  static Task& Current();
  static bool InTask();

  // Gives the worker to others until the permit is there. REQUIRES: InTask(), no Mutex held.
  static void Park();
  // As Park, but returns at the deadline at the latest; false when it came without a permit.
  static bool ParkUntil(std::chrono::steady_clock::time_point deadline);
  // Lets others run, then goes on.
  static void Yield();

  virtual void Unpark() = 0;
  virtual Worker& worker() = 0;

  // For whom it runs, as SessionTraffic has it; 0: the server itself.
  uint64_t owner() const { return owner_; }
  // As long as it lives, the current task runs for `owner`.
  class OwnedBy {
   public:
    explicit OwnedBy(uint64_t owner) : task_(Current()) { task_.owner_ = owner; }
    ~OwnedBy() { task_.owner_ = 0; }
    OwnedBy(const OwnedBy&) = delete;
    OwnedBy& operator=(const OwnedBy&) = delete;

   private:
    Task& task_;
  };

 protected:
  ~Task() = default;

 private:
  uint64_t owner_ = 0;
};

}  // namespace termfs::tlib::server

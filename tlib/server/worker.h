// SPDX-License-Identifier: Apache-2.0
//
// Worker: one thread that runs tasks (tlib/server/task.h) and polls what they wait for: completion queues, asynchronous
// disk I/O, timers, and what other threads hand over. It never blocks while there is anything to do; when there is
// nothing it spins for a short while and then sleeps in epoll.
//
// One round of the loop: ready tasks, sources, what was handed over; timers in every sixteenth.
//
// Thread-safety: Spawn, Post, MakeReady and Stop from any thread. AddSource and RemoveSource: on the worker's
//                thread, or before Start. Everything else: the worker's thread.
// Ownership:     owns its thread and its tasks; sources belong to the caller and outlive their registration.
// Errors:        set-up only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/give_way.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/spin_policy.h"
#include "base/unique_fd.h"
#include "tlib/server/task.h"
#include "tlib/server/task_pool.h"

namespace termfs::tlib::server {

// Something a worker polls. Called on the worker's thread only.
class EventSource {
 public:
  virtual ~EventSource() = default;
  // Sends out what was queued, handles what has arrived (mostly: Unpark of tasks); true when there was anything.
  virtual bool Poll() = 0;
  // Before the worker sleeps: from now on fd() becomes readable when something arrives. False: poll again first.
  virtual bool Arm() = 0;
  // After the worker woke up, before the next Poll.
  virtual void Disarm() = 0;
  virtual int fd() const = 0;
};

struct WorkerOptions {
  uint32_t index = 0;
  // Idle time before it sleeps, at most: see base/spin_policy.h. Writes of 1 MiB come 300 us apart.
  std::chrono::microseconds max_spin{350};
  size_t max_tasks = 8192;
  std::chrono::milliseconds longest_sleep{1000};  // a bound, should a wake-up ever be lost
};

class Worker {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  static Result<std::unique_ptr<Worker>> Create(const WorkerOptions& options);
  // As Stop.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The worker whose thread this is; null elsewhere.
  static Worker* Current();

  uint32_t index() const { return options_.index; }

  Status AddSource(EventSource& source);
  void RemoveSource(EventSource& source);

  // Starts the thread. REQUIRES: called once.
  void Start();
  // Ends when no task runs any more, and joins the thread. The caller sees to it that tasks end. Idempotent.
  void Stop();

  // Runs `function` in a new task.
  void Spawn(std::function<void()> function) EXCLUDES(mutex_);
  // Runs `function` on the worker's thread, outside of any task: short work that never waits.
  void Post(std::function<void()> function) EXCLUDES(mutex_);

  // Nothing is to be done but what runs now.
  bool has_nothing_else() const {
    return ready_.empty() && spawned_.empty() && elsewhere_ == 0 && !has_mail_.load(std::memory_order_relaxed);
  }

  // As long as it lives, a task of this thread's worker waits for another thread of this server: the worker gives way
  // while it has nothing else to do.
  class Elsewhere {
   public:
    Elsewhere() : worker_(*Current()) { worker_.elsewhere_++; }
    ~Elsewhere() { worker_.elsewhere_--; }
    Elsewhere(const Elsewhere&) = delete;
    Elsewhere& operator=(const Elsewhere&) = delete;

   private:
    Worker& worker_;
  };

  // For Task.
  void MakeReady(CoroutineTask& task) EXCLUDES(mutex_);
  void AddTimer(TimePoint deadline, CoroutineTask& task) { timers_.emplace(deadline, &task); }
  void RemoveTimer(TimePoint deadline, CoroutineTask& task) { timers_.erase({deadline, &task}); }
  size_t running_tasks() const { return tasks_.running(); }

 private:
  // From then on others that wait for this CPU may run in between: one may be the client that we wait for.
  static constexpr std::chrono::microseconds kSpinAlone{5};

  explicit Worker(const WorkerOptions& options)
      : options_(options), tasks_(*this, options.max_tasks), spin_(options.max_spin) {}

  void Run();
  bool RunReady();
  bool StartSpawned();
  bool PollSources();
  bool TakeHandedOver() EXCLUDES(mutex_);
  bool FireTimers();
  bool Spinning();
  void NoteWait();
  void Sleep();
  int SleepMilliseconds() const;
  bool ArmAll();
  void Wake();

  const WorkerOptions options_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::thread thread_;

  // The worker's thread only.
  std::vector<EventSource*> sources_;
  std::deque<CoroutineTask*> ready_;
  std::deque<std::function<void()>> spawned_;
  std::set<std::pair<TimePoint, CoroutineTask*>> timers_;
  TaskPool tasks_;
  bool stopping_ = false;
  uint32_t rounds_ = 0;
  uint32_t idle_rounds_ = 0;  // in a row
  TimePoint idle_since_{};    // from the sixteenth of them on
  TimePoint trim_due_{};      // of idle tasks' stacks
  SpinPolicy spin_;
  GiveWay give_way_;
  uint32_t elsewhere_ = 0;

  // Handed over by other threads. has_mail_ is stored (release) under the mutex and read without it, so that an empty
  // mailbox costs the loop one load.
  Mutex mutex_;
  std::vector<CoroutineTask*> mail_ready_ GUARDED_BY(mutex_);
  std::vector<std::function<void()>> mail_posts_ GUARDED_BY(mutex_);
  std::vector<std::function<void()>> mail_spawns_ GUARDED_BY(mutex_);
  std::atomic<bool> has_mail_{false};
  // Pairs with has_mail_ (both sequentially consistent): either the worker sees the mail before it sleeps, or the
  // sender sees that it sleeps and wakes it.
  std::atomic<bool> sleeping_{false};
};

}  // namespace termfs::tlib::server

// SPDX-License-Identifier: Apache-2.0
//
// Tasks on Boost.Coroutine2. This is the only file that sees Boost, and the only one that switches stacks; the
// sanitizers are told of every switch. (The build turns off TSan's function-entry bookkeeping for this file: a frame of
// Boost's is entered on one stack and left on another.)
//
// States of a task's permit:
//   kNone    running, no permit          Unpark -> kGiven
//   kGiven   running or ready, permit    Park takes it -> kNone
//   kParked  switched out, or about to   Unpark -> kGiven and onto the worker's ready queue; timer -> kNone, resumed
#include "tlib/server/task.h"

#include <sys/mman.h>

#include <atomic>
#include <boost/coroutine2/coroutine.hpp>
#include <memory>
#include <new>
#include <optional>

#include "base/check.h"
#include "base/page.h"
#include "tlib/server/task_pool.h"
#include "tlib/server/worker.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TERMFS_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if __has_feature(thread_sanitizer)
#define TERMFS_TSAN 1
#include <sanitizer/tsan_interface.h>
#endif
#endif

namespace termfs::tlib::server {
namespace {

using Coroutine = boost::coroutines2::coroutine<void>;

// One mapping: an inaccessible page, then the stack, which grows down towards it.
class Stack {
 public:
  Stack() {
    void* mapped = mmap(nullptr, kStackBytes + kPageSize, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      return;
    }
    if (mprotect(mapped, kPageSize, PROT_NONE) != 0) {
      munmap(mapped, kStackBytes + kPageSize);
      return;
    }
    mapped_ = static_cast<std::byte*>(mapped);
  }
  ~Stack() {
    if (mapped_ != nullptr) {
#if defined(TERMFS_ASAN)
      ASAN_UNPOISON_MEMORY_REGION(bottom(), kStackBytes);
#endif
      munmap(mapped_, kStackBytes + kPageSize);
    }
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  bool valid() const { return mapped_ != nullptr; }
  std::byte* bottom() const { return mapped_ + kPageSize; }

 private:
  std::byte* mapped_ = nullptr;
};

// Hands Boost the stack that the task owns.
struct BorrowedStack {
  Stack* stack;
  boost::context::stack_context allocate() {
    boost::context::stack_context context;
    context.size = kStackBytes;
    context.sp = stack->bottom() + kStackBytes;
    return context;
  }
  void deallocate(boost::context::stack_context&) noexcept {}
};

// What the sanitizers want to know about one of the two sides of a switch.
class SwitchNotes {
 public:
  // Before leaving this side for `to`. `for_good`: this side's stack ends.
  void Leave([[maybe_unused]] const SwitchNotes& to, [[maybe_unused]] bool for_good) {
#if defined(TERMFS_ASAN)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, to.bottom_, to.size_);
#endif
#if defined(TERMFS_TSAN)
    __tsan_switch_to_fiber(to.fiber_, 0);
#endif
  }
  // After arriving on this side; `from` learns its stack's place, which is known to the sanitizer only for a thread's.
  void Arrive([[maybe_unused]] SwitchNotes* from) {
#if defined(TERMFS_ASAN)
    const void* bottom = nullptr;
    size_t size = 0;
    __sanitizer_finish_switch_fiber(fake_stack_, &bottom, &size);
    fake_stack_ = nullptr;
    if (from != nullptr) {
      from->bottom_ = bottom;
      from->size_ = size;
    }
#endif
  }
  void SetThread() {
#if defined(TERMFS_TSAN)
    fiber_ = __tsan_get_current_fiber();
#endif
  }
  void SetStack([[maybe_unused]] const Stack& stack) {
#if defined(TERMFS_ASAN)
    bottom_ = stack.bottom();
    size_ = kStackBytes;
#endif
#if defined(TERMFS_TSAN)
    fiber_ = __tsan_create_fiber(0);
#endif
  }
  void ForgetStack() {
#if defined(TERMFS_TSAN)
    __tsan_destroy_fiber(fiber_);
#endif
  }

 private:
#if defined(TERMFS_ASAN)
  void* fake_stack_ = nullptr;
  const void* bottom_ = nullptr;
  size_t size_ = 0;
#endif
#if defined(TERMFS_TSAN)
  void* fiber_ = nullptr;
#endif
};

enum Permit : uint32_t { kNone, kGiven, kParked };

thread_local CoroutineTask* current_task = nullptr;

}  // namespace

class CoroutineTask final : public Task {
 public:
  CoroutineTask(TaskPool& pool, Worker& worker) : pool_(pool), worker_(worker) {}
  ~CoroutineTask() { Destroy(); }
  CoroutineTask(const CoroutineTask&) = delete;
  CoroutineTask& operator=(const CoroutineTask&) = delete;

  // A coroutine with a stack, where there is none.
  Status Init() {
    if (coroutine_.has_value()) {
      return Status::Ok();
    }
    stack_.emplace();
    if (!stack_->valid()) {
      stack_.reset();
      return Status::Errno(ENOMEM, "map a coroutine's stack");
    }
    here_.SetStack(*stack_);
    coroutine_.emplace(BorrowedStack{&*stack_}, [this](Coroutine::pull_type& out) { Body(out); });
    return Status::Ok();
  }
  // Gives them back. The task itself stays, for an Unpark that comes too late. REQUIRES: it is idle.
  void Release() {
    Destroy();
    stack_.reset();
  }
  bool has_stack() const { return stack_.has_value(); }

  void Unpark() override {
    if (permit_.exchange(kGiven, std::memory_order_acq_rel) == kParked) {
      worker_.MakeReady(*this);
    }
  }
  Worker& worker() override { return worker_; }

  // On the worker: runs the coroutine until it switches out.
  void SwitchIn() {
    CoroutineTask* const outer = std::exchange(current_task, this);
    thread_.SetThread();
    thread_.Leave(here_, false);
    (*coroutine_)();
    thread_.Arrive(nullptr);
    current_task = outer;
  }

  // The timer fired; false: a permit came first, and the task is in the ready queue or on its way there.
  bool TimeOut() {
    uint32_t expected = kParked;
    return permit_.compare_exchange_strong(expected, kNone, std::memory_order_acq_rel);
  }

  void Park() {
    if (BeginPark()) {
      SwitchOut();
      permit_.exchange(kNone, std::memory_order_acq_rel);  // acquires from a second Unpark too
    }
  }

  void Yield() {
    permit_.store(kParked, std::memory_order_relaxed);
    Unpark();  // stays given: a permit from before is not lost, and one too many does no harm
    SwitchOut();
  }

  bool ParkUntil(Worker::TimePoint deadline) {
    if (!BeginPark()) {
      return true;
    }
    worker_.AddTimer(deadline, *this);
    SwitchOut();
    worker_.RemoveTimer(deadline, *this);
    return permit_.exchange(kNone, std::memory_order_acq_rel) == kGiven;
  }

  std::function<void()> function;

 private:
  // True when the task has to switch out; false when the permit was there.
  bool BeginPark() {
    uint32_t expected = kNone;
    if (permit_.compare_exchange_strong(expected, kParked, std::memory_order_acq_rel)) {
      return true;
    }
    permit_.exchange(kNone, std::memory_order_acq_rel);
    return false;
  }

  void SwitchOut() {
    here_.Leave(thread_, false);
    struct OnReturn {  // also when Boost unwinds the stack of a task that is destroyed
      CoroutineTask* task;
      ~OnReturn() { task->here_.Arrive(&task->thread_); }
    } on_return{this};
    (*out_)();
  }

  void Body(Coroutine::pull_type& out) {
    here_.Arrive(&thread_);
    out_ = &out;
    try {
      while (true) {
        function();
        function = nullptr;
        pool_.running_--;
        pool_.idle_.push_back(this);
        SwitchOut();
      }
    } catch (const boost::context::detail::forced_unwind&) {
      here_.Leave(thread_, true);
      throw;
    }
  }

  void Destroy() {
    if (coroutine_.has_value()) {
      if (out_ != nullptr) {  // it has run: its stack is unwound by switching to it once more
        thread_.SetThread();
        thread_.Leave(here_, false);
        coroutine_.reset();
        thread_.Arrive(nullptr);
      } else {
        coroutine_.reset();
      }
      here_.ForgetStack();
      out_ = nullptr;
    }
  }

  TaskPool& pool_;
  Worker& worker_;
  std::optional<Stack> stack_;
  std::optional<Coroutine::push_type> coroutine_;
  Coroutine::pull_type* out_ = nullptr;
  SwitchNotes here_;
  SwitchNotes thread_;
  // Unpark's release pairs with the acquire of whoever takes the permit: what happened before Unpark is seen after
  // Park.
  std::atomic<uint32_t> permit_{kNone};
};

TaskPool::TaskPool(Worker& worker, size_t max_tasks) : worker_(worker), max_tasks_(max_tasks) {}
TaskPool::~TaskPool() { TERMFS_CHECK(running_ == 0); }

Status TaskPool::Start(std::function<void()>& function) {
  if (idle_.empty()) {
    if (tasks_.size() >= max_tasks_) {
      return Status::Error(ENOMEM, "too many tasks on one worker");
    }
    auto task = std::make_unique<CoroutineTask>(*this, worker_);
    idle_.push_back(task.get());
    tasks_.push_back(std::move(task));
  }
  CoroutineTask* const task = idle_.back();
  RETURN_IF_ERROR(task->Init());
  idle_.pop_back();
  least_idle_ = std::min(least_idle_, idle_.size());
  running_++;
  task->function = std::move(function);
  task->SwitchIn();
  return Status::Ok();
}

void TaskPool::Trim() {
  size_t released = 0;
  for (size_t i = 0; i + kStacksThatStay < least_idle_ && released < kReleasedAtOnce; i++) {
    if (idle_[i]->has_stack()) {
      idle_[i]->Release();
      released++;
    }
  }
  least_idle_ = idle_.size();
}

void TaskPool::Resume(CoroutineTask& task) { task.SwitchIn(); }

bool TaskPool::TimeOut(CoroutineTask& task) { return task.TimeOut(); }

bool Task::InTask() { return current_task != nullptr; }

Task& Task::Current() {
  TERMFS_CHECK(InTask());
  return *current_task;
}

void Task::Park() {
  TERMFS_CHECK(InTask());
  current_task->Park();
}

bool Task::ParkUntil(std::chrono::steady_clock::time_point deadline) {
  TERMFS_CHECK(InTask());
  return current_task->ParkUntil(deadline);
}

void Task::Yield() {
  TERMFS_CHECK(InTask());
  current_task->Yield();
}

}  // namespace termfs::tlib::server

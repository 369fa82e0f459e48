// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/worker.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace termfs::tlib::server {
namespace {

using std::chrono::steady_clock;

thread_local Worker* current_worker = nullptr;

constexpr uint32_t kRoundsPerClockRead = 16;
constexpr std::chrono::seconds kTrimPeriod{5};

void Relax() { __builtin_ia32_pause(); }

}  // namespace

Worker* Worker::Current() { return current_worker; }

Result<std::unique_ptr<Worker>> Worker::Create(const WorkerOptions& options) {
  std::unique_ptr<Worker> worker(new Worker(options));
  worker->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!worker->epoll_.valid()) {
    return ErrnoStatus("create a worker's epoll instance");
  }
  worker->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!worker->wake_.valid()) {
    return ErrnoStatus("create a worker's eventfd");
  }
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(worker->epoll_.get(), EPOLL_CTL_ADD, worker->wake_.get(), &event) != 0) {
    return ErrnoStatus("watch a worker's eventfd");
  }
  return worker;
}

Worker::~Worker() { Stop(); }

Status Worker::AddSource(EventSource& source) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, source.fd(), &event) != 0) {
    return ErrnoStatus("watch a worker's event source");
  }
  sources_.push_back(&source);
  return Status::Ok();
}

void Worker::RemoveSource(EventSource& source) {
  if (std::erase(sources_, &source) != 0) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, source.fd(), nullptr);
  }
}

void Worker::Start() {
  TERMFS_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void Worker::Stop() {
  if (thread_.joinable()) {
    Post([this] { stopping_ = true; });
    thread_.join();
  }
}

void Worker::Spawn(std::function<void()> function) {
  if (current_worker == this) {
    spawned_.push_back(std::move(function));
    return;
  }
  {
    MutexLock lock(mutex_);
    mail_spawns_.push_back(std::move(function));
    has_mail_.store(true);
  }
  Wake();
}

void Worker::Post(std::function<void()> function) {
  {
    MutexLock lock(mutex_);
    mail_posts_.push_back(std::move(function));
    has_mail_.store(true);
  }
  Wake();
}

void Worker::MakeReady(CoroutineTask& task) {
  if (current_worker == this) {
    ready_.push_back(&task);
    return;
  }
  {
    MutexLock lock(mutex_);
    mail_ready_.push_back(&task);
    has_mail_.store(true);
  }
  Wake();
}

void Worker::Wake() {
  if (current_worker != this && sleeping_.exchange(false)) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(wake_.get(), &one, sizeof(one));  // full: a wake-up is pending anyway
  }
}

void Worker::Run() {
  current_worker = this;
  bool was_busy = true;
  while (true) {
    bool busy = RunReady();
    busy |= PollSources();
    busy |= TakeHandedOver();
    busy |= StartSpawned();
    busy |= FireTimers();
    if (!busy && stopping_ && tasks_.running() == 0 && spawned_.empty()) {
      break;
    }
    if (busy && !was_busy) {
      NoteWait();
    }
    if (!busy && !Spinning()) {
      Sleep();
    }
    was_busy = busy;
  }
  current_worker = nullptr;
}

bool Worker::RunReady() {
  // Those that become ready meanwhile wait for the next round, so that sources are polled in between.
  const size_t count = ready_.size();
  for (size_t i = 0; i < count; i++) {
    CoroutineTask* const task = ready_.front();
    ready_.pop_front();
    tasks_.Resume(*task);
  }
  return count != 0;
}

bool Worker::PollSources() {
  bool busy = false;
  for (size_t i = 0; i < sources_.size(); i++) {  // by index: a source may add another one
    busy |= sources_[i]->Poll();
  }
  return busy;
}

bool Worker::TakeHandedOver() {
  if (!has_mail_.load(std::memory_order_acquire)) {
    return false;
  }
  std::vector<CoroutineTask*> ready;
  std::vector<std::function<void()>> posts;
  std::vector<std::function<void()>> spawns;
  {
    MutexLock lock(mutex_);
    ready.swap(mail_ready_);
    posts.swap(mail_posts_);
    spawns.swap(mail_spawns_);
    has_mail_.store(false, std::memory_order_relaxed);
  }
  ready_.insert(ready_.end(), ready.begin(), ready.end());
  std::move(spawns.begin(), spawns.end(), std::back_inserter(spawned_));
  for (auto& post : posts) {
    post();
  }
  return true;
}

bool Worker::StartSpawned() {
  bool busy = false;
  while (!spawned_.empty()) {
    std::function<void()> function = std::move(spawned_.front());
    spawned_.pop_front();
    if (Status started = tasks_.Start(function); !started.ok()) {
      spawned_.push_front(std::move(function));
      if (tasks_.running() == 0) {
        LOG_ERROR("worker {}: {}", options_.index, started.ToString());
      }
      break;  // when another task has ended
    }
    busy = true;
  }
  return busy;
}

bool Worker::FireTimers() {
  // While it gives way a round may last long.
  if (timers_.empty() || (elsewhere_ == 0 && ++rounds_ % kRoundsPerClockRead != 0)) {
    return false;
  }
  const TimePoint now = steady_clock::now();
  bool busy = false;
  while (!timers_.empty() && timers_.begin()->first <= now) {
    CoroutineTask* const task = timers_.begin()->second;
    timers_.erase(timers_.begin());
    if (TaskPool::TimeOut(*task)) {
      tasks_.Resume(*task);
      busy = true;
    }
  }
  return busy;
}

// Waits that were too short for a look at the clock count as none.
void Worker::NoteWait() {
  const bool known = idle_rounds_ >= kRoundsPerClockRead;
  spin_.Waited(known ? steady_clock::now() - idle_since_ : TimePoint::duration(0));
  idle_rounds_ = 0;
}

bool Worker::Spinning() {
  if (elsewhere_ != 0) {
    sched_yield();
  }
  Relax();
  if (++idle_rounds_ % kRoundsPerClockRead != 0) {
    return true;
  }
  const TimePoint now = steady_clock::now();
  if (idle_rounds_ == kRoundsPerClockRead) {
    idle_since_ = now;
  }
  const auto idle = now - idle_since_;
  if (idle >= spin_.length()) {
    return false;
  }
  if (idle > kSpinAlone) {
    sched_yield();
  }
  return true;
}

int Worker::SleepMilliseconds() const {
  const int64_t longest = options_.longest_sleep.count();
  if (timers_.empty()) {
    return static_cast<int>(longest);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, longest));
}

bool Worker::ArmAll() {
  bool armed = true;
  for (EventSource* source : sources_) {
    armed &= source->Arm();  // all of them: Disarm follows for all
  }
  return armed;
}

void Worker::Sleep() {
  const bool armed = ArmAll();
  sleeping_.store(true);
  if (armed && !has_mail_.load() && ready_.empty()) {
    const TimePoint begin = steady_clock::now();
    if (begin >= trim_due_) {
      tasks_.Trim();
      trim_due_ = begin + kTrimPeriod;
    }
    std::array<epoll_event, 16> events{};
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), SleepMilliseconds());
    if (count < 0 && errno != EINTR) {
      LOG_ERROR("worker {}: {}", options_.index, ErrnoStatus("wait for events").ToString());
    }
  }
  sleeping_.store(false);
  uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &wakes, sizeof(wakes));  // EAGAIN: nobody woke us
  for (EventSource* source : sources_) {
    source->Disarm();
  }
  if (tasks_.running() > timers_.size() + 1) {
    give_way_();
  }
}

}  // namespace termfs::tlib::server

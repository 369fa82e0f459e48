// SPDX-License-Identifier: Apache-2.0
//
// Stand-ins: a request that waits for another process, for a lock or for a server that is gone, may wait for any time,
// and the request that ends its wait must find a thread: the unlock, or what a program closes that was killed. So
// before a thread waits it sees to it that as many as there were at first go on serving its queue. Those that are added
// stay: they are what the next such waits need.
#include <algorithm>

#include "base/log.h"
#include "mount/fuse_server.h"

namespace termfs::mount {

FuseServer::Wait::~Wait() {
  if (worker_ != nullptr) {
    worker_->server->EndWait(*worker_);
  }
}

Status FuseServer::Wait::Prepare() {
  TERMFS_CHECK(current_ != nullptr && worker_ == nullptr);
  RETURN_IF_ERROR(current_->server->BeginWait(*current_));
  worker_ = current_;
  return Status::Ok();
}

void FuseServer::Wait::Begin() {
  worker_->any_signal.store(true);
  if (worker_->guest.interruption != nullptr && worker_->signalled.load() == worker_->facts.unique) {
    worker_->guest.interruption->Interrupt(worker_->facts.unique);
  }
}

void FuseServer::Wait::End() { worker_->any_signal.store(false); }

FuseServer::Queue& FuseServer::QueueOf(const Worker& worker) {
  const int cpu = worker.over_ring ? worker.cpu : -1;
  const auto [place, is_new] = queues_.try_emplace(cpu);
  if (is_new) {
    const auto serves = [&](const auto& other) { return other->cpu == cpu; };
    place->second.least =
        cpu < 0 ? readers_.load() : static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(), serves));
    place->second.serving = place->second.least;
  }
  return place->second;
}

Status FuseServer::BeginWait(const Worker& worker) {
  MutexLock lock(stand_ins_mutex_);
  Queue& queue = QueueOf(worker);
  if (queue.serving <= queue.least) {
    if (stopping_.load(std::memory_order_relaxed)) {
      return Status::Error(EINTR, "the mount ends");
    }
    const size_t added = workers_.size();
    if (added >= workers_.capacity()) {
      return Status::Error(ENOLCK, "too many threads wait");
    }
    Status made = AddWorker(make_thread_, worker.over_ring ? worker.cpu : -1);
    if (made.ok()) {
      made = Launch(added);
    }
    if (!made.ok()) {
      workers_.resize(added);  // without a thread it is of no use
      LOG_WARNING("no thread in place of one that has to wait: {}", made.ToDebugString());
      return Status::Error(ENOLCK, "no thread in place of one that has to wait");
    }
    queue.serving++;
  }
  queue.serving--;
  return Status::Ok();
}

void FuseServer::EndWait(const Worker& worker) {
  MutexLock lock(stand_ins_mutex_);
  QueueOf(worker).serving++;
}

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// FuseServer: when a thread with a ring gives its READ away. A carrier costs a thread and two queue pairs; so there is
// none before two threads of a queue have read at the same time. They run on one CPU, so one of them waits.
#include "base/log.h"
#include "mount/fuse_server.h"

namespace termfs::mount {
namespace {

constexpr size_t kMostCarriers = 64;       // with 600 queue pairs for a session, of which each queue has four without
constexpr std::chrono::seconds kPause{1};  // between attempts to make one

}  // namespace

FuseCarrier* FuseServer::CarrierToUse(const Worker& worker) {
  RingQueue* const queue = worker.queue;
  if (queue == nullptr || make_reads_ == nullptr || !IsRead(worker.facts)) {
    return nullptr;
  }
  FuseCarrier* carrier = queue->carrier.load(std::memory_order_acquire);
  if (queue->reading.load(std::memory_order_relaxed) == 0 && (carrier == nullptr || !carrier->busy())) {
    return nullptr;
  }
  const auto what = ReadOf({worker.aside.get(), FuseCommand::kHeadBytes});
  if (!what || what->size > FuseReads::kLargest) {
    return nullptr;
  }
  if (carrier == nullptr) {
    carrier = MakeCarrier(*queue);
  }
  return carrier != nullptr && carrier->ready() ? carrier : nullptr;
}

FuseCarrier* FuseServer::MakeCarrier(RingQueue& queue) {
  MutexLock lock(queue.mutex);
  const auto now = std::chrono::steady_clock::now();
  if (queue.owned == nullptr && !stopping_.load(std::memory_order_relaxed) && ring_queues_.size() <= kMostCarriers &&
      now >= queue.again) {
    auto carrier = FuseCarrier::Create(fuse_session_fd(session_), queue.cpu, make_reads_);
    if (!carrier.ok()) {
      LOG_DEBUG("READs of CPU {} wait one by one for now: {}", queue.cpu, carrier.status().ToString());
      queue.again = now + kPause;
      return nullptr;
    }
    queue.owned = std::move(*carrier);
    queue.carrier.store(queue.owned.get(), std::memory_order_release);
  }
  return queue.owned.get();
}

void FuseServer::StopCarriers() {
  for (const auto& queue : ring_queues_) {
    MutexLock lock(queue->mutex);
    if (queue->owned != nullptr) {
      queue->owned->Stop();
    }
  }
}

}  // namespace termfs::mount

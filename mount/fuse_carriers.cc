// SPDX-License-Identifier: Apache-2.0
//
// FuseServer: when a thread with a ring gives its READ away. A carrier costs a thread and two queue pairs; so there is
// none before two threads of a queue have read at the same time. They run on one CPU, so one of them waits.
#include "base/log.h"
#include "mount/fuse_server.h"

namespace termfs::mount {

FuseCarrier* FuseServer::CarrierToUse(Worker& worker) {
  RingQueue* const queue = worker.queue;
  if (queue == nullptr || make_reads_ == nullptr) {
    return nullptr;
  }
  FuseCarrier* const carrier = queue->carrier.load(std::memory_order_acquire);
  if (queue->reading.load(std::memory_order_relaxed) == 0 && (carrier == nullptr || !carrier->busy())) {
    return nullptr;
  }
  return carrier != nullptr ? carrier : MakeCarrier(*queue);
}

FuseCarrier* FuseServer::MakeCarrier(RingQueue& queue) {
  MutexLock lock(queue.mutex);
  if (queue.tried || stopping_.load(std::memory_order_relaxed)) {
    return queue.owned.get();
  }
  queue.tried = true;
  auto reads = make_reads_();
  auto carrier = reads.ok() ? FuseCarrier::Create(fuse_session_fd(session_), queue.cpu, std::move(*reads))
                            : Result<std::unique_ptr<FuseCarrier>>(reads.status());
  if (!carrier.ok()) {
    LOG_INFO("absent pages for CPU {} are waited for one by one: {}", queue.cpu, carrier.status().ToString());
    return nullptr;
  }
  queue.owned = std::move(*carrier);
  queue.carrier.store(queue.owned.get(), std::memory_order_release);
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

// SPDX-License-Identifier: Apache-2.0
//
// WorkerSet: the server's workers, each with its disk and network, and whose turn it is. Beside those that take turns
// there is one bound to each CPU, for who waits there for the SSD. See "Woken where it sleeps".
//
// Thread-safety: Next, Near and Spawn from any thread; Start and Stop from one.
// Ownership:     owns it all. REQUIRES at Stop: every task ends, every connection is gone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/aio_context.h"
#include "tlib/server/network_port.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {

struct WorkerUnit {
  int cpu = -1;  // that the worker is bound to; -1: none
  std::unique_ptr<AioContext> aio;
  std::unique_ptr<NetworkPort> port;
  std::unique_ptr<Worker> worker;  // destroyed first: it polls the others
};

class WorkerSet {
 public:
  static constexpr size_t kMostBound = 32;

  // `count` workers that take turns, and one for each CPU that this thread may run on, up to kMostBound. `wakes`: by
  // what their tasks send.
  static Result<std::unique_ptr<WorkerSet>> Start(driver::Nic& nic, driver::ProtectionDomain& domain, uint32_t count,
                                                  WakesPeers wakes = WakesPeers::kOncePerRound);
  ~WorkerSet() { Stop(); }
  WorkerSet(const WorkerSet&) = delete;
  WorkerSet& operator=(const WorkerSet&) = delete;

  // Round robin.
  WorkerUnit& Next() { return *units_[next_.fetch_add(1, std::memory_order_relaxed) % units_.size()]; }
  // The worker that is bound to `cpu`; without one (-1 has none) as Next.
  WorkerUnit& Near(int cpu);
  // Starts a task: on this thread's worker if it is one, else on the next.
  void Spawn(std::function<void()> task);
  // Runs `task` in a task and waits for it. REQUIRES: not on a worker's thread.
  Status Run(const std::function<Status()>& task);
  // Idempotent.
  void Stop();

 private:
  WorkerSet() = default;
  static Result<std::unique_ptr<WorkerUnit>> MakeUnit(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                      uint32_t index, WakesPeers wakes);
  std::vector<std::unique_ptr<WorkerUnit>> units_;
  std::vector<std::unique_ptr<WorkerUnit>> bound_;
  std::atomic<uint32_t> next_{0};
};

}  // namespace termfs::tlib::server

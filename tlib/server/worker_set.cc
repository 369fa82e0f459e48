// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/worker_set.h"

#include <pthread.h>
#include <sched.h>

#include <future>

#include "base/check.h"
#include "base/log.h"

namespace termfs::tlib::server {
namespace {

constexpr uint32_t kAioDepth = 256;

// The CPUs to bind `count` workers to; none where they are not as many.
std::vector<int> CpusFor(uint32_t count) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && static_cast<uint32_t>(CPU_COUNT(&set)) == count) {
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
      if (CPU_ISSET(cpu, &set)) {
        cpus.push_back(cpu);
      }
    }
  }
  return cpus;
}

void BindThisThread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (const int error = pthread_setaffinity_np(pthread_self(), sizeof(set), &set); error != 0) {
    LOG_DEBUG("a worker cannot be bound to CPU {}: errno {}", cpu, error);
  }
}

}  // namespace

Result<std::unique_ptr<WorkerSet>> WorkerSet::Start(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                    uint32_t count) {
  if (count == 0) {
    return Status::Error(EINVAL, "a server needs at least one worker");
  }
  std::unique_ptr<WorkerSet> set(new WorkerSet);
  const std::vector<int> cpus = CpusFor(count);
  for (uint32_t i = 0; i < count; i++) {
    auto unit = std::make_unique<WorkerUnit>();
    unit->cpu = cpus.empty() ? -1 : cpus[i];
    ASSIGN_OR_RETURN(unit->aio, AioContext::Create(kAioDepth));
    ASSIGN_OR_RETURN(unit->port, NetworkPort::Create(nic, domain));
    ASSIGN_OR_RETURN(unit->worker, Worker::Create({.index = i}));
    RETURN_IF_ERROR(unit->worker->AddSource(*unit->aio));
    RETURN_IF_ERROR(unit->worker->AddSource(*unit->port));
    set->units_.push_back(std::move(unit));
  }
  for (auto& unit : set->units_) {
    if (unit->cpu >= 0) {
      unit->worker->Post([cpu = unit->cpu] { BindThisThread(cpu); });
    }
    unit->worker->Start();
  }
  return set;
}

void WorkerSet::Stop() {
  for (auto& unit : units_) {
    unit->worker->Stop();
  }
}

WorkerUnit& WorkerSet::Near(int cpu) {
  for (auto& unit : units_) {
    if (cpu >= 0 && unit->cpu == cpu) {
      return *unit;
    }
  }
  return Next();
}

void WorkerSet::Spawn(std::function<void()> task) {
  Worker* const current = Worker::Current();
  (current != nullptr ? *current : *Next().worker).Spawn(std::move(task));
}

Status WorkerSet::Run(const std::function<Status()>& task) {
  TERMFS_CHECK(Worker::Current() == nullptr);
  std::promise<Status> ended;
  Next().worker->Spawn([&] { ended.set_value(task()); });
  return ended.get_future().get();
}

}  // namespace termfs::tlib::server

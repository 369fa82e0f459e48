// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/worker_set.h"

#include <future>

#include "base/check.h"
#include "base/log.h"
#include "tlib/server/cpus.h"

namespace termfs::tlib::server {
namespace {

constexpr uint32_t kAioDepth = 256;

}  // namespace

Result<std::unique_ptr<WorkerSet>> WorkerSet::Start(driver::Nic& nic, driver::ProtectionDomain& domain, uint32_t count,
                                                    WakesPeers wakes) {
  if (count == 0) {
    return Status::Error(EINVAL, "a server needs at least one worker");
  }
  std::unique_ptr<WorkerSet> set(new WorkerSet);
  for (uint32_t i = 0; i < count; i++) {
    ASSIGN_OR_RETURN(auto unit, MakeUnit(nic, domain, i, wakes));
    set->units_.push_back(std::move(unit));
  }
  for (const int cpu : CpusOfThisThread(kMostBound)) {
    auto unit = MakeUnit(nic, domain, count + static_cast<uint32_t>(set->bound_.size()), wakes);
    if (!unit.ok()) {
      LOG_WARNING("reads on CPU {} are served by a worker elsewhere: {}", cpu, unit.status().ToString());
      continue;
    }
    (*unit)->cpu = cpu;
    (*unit)->worker->Post([cpu] { BindThisThread(cpu); });
    set->bound_.push_back(std::move(*unit));
  }
  for (auto* units : {&set->units_, &set->bound_}) {
    for (auto& unit : *units) {
      unit->worker->Start();
    }
  }
  return set;
}

Result<std::unique_ptr<WorkerUnit>> WorkerSet::MakeUnit(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                        uint32_t index, WakesPeers wakes) {
  auto unit = std::make_unique<WorkerUnit>();
  ASSIGN_OR_RETURN(unit->aio, AioContext::Create(kAioDepth));
  ASSIGN_OR_RETURN(unit->port, NetworkPort::Create(nic, domain, wakes));
  ASSIGN_OR_RETURN(unit->worker, Worker::Create({.index = index}));
  RETURN_IF_ERROR(unit->worker->AddSource(*unit->aio));
  RETURN_IF_ERROR(unit->worker->AddSource(*unit->port));
  return unit;
}

void WorkerSet::Stop() {
  for (auto* units : {&units_, &bound_}) {
    for (auto& unit : *units) {
      unit->worker->Stop();
    }
  }
}

WorkerUnit& WorkerSet::Near(int cpu) {
  for (auto& unit : bound_) {
    if (unit->cpu == cpu) {
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

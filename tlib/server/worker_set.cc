// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/worker_set.h"

#include <future>

#include "base/check.h"

namespace termfs::tlib::server {
namespace {

constexpr uint32_t kAioDepth = 256;

}  // namespace

Result<std::unique_ptr<WorkerSet>> WorkerSet::Start(driver::Nic& nic, driver::ProtectionDomain& domain,
                                                    uint32_t count) {
  if (count == 0) {
    return Status::Error(EINVAL, "a server needs at least one worker");
  }
  std::unique_ptr<WorkerSet> set(new WorkerSet);
  for (uint32_t i = 0; i < count; i++) {
    auto unit = std::make_unique<WorkerUnit>();
    ASSIGN_OR_RETURN(unit->aio, AioContext::Create(kAioDepth));
    ASSIGN_OR_RETURN(unit->port, NetworkPort::Create(nic, domain));
    ASSIGN_OR_RETURN(unit->worker, Worker::Create({.index = i}));
    RETURN_IF_ERROR(unit->worker->AddSource(*unit->aio));
    RETURN_IF_ERROR(unit->worker->AddSource(*unit->port));
    set->units_.push_back(std::move(unit));
  }
  for (auto& unit : set->units_) {
    unit->worker->Start();
  }
  return set;
}

void WorkerSet::Stop() {
  for (auto& unit : units_) {
    unit->worker->Stop();
  }
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

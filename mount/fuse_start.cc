// SPDX-License-Identifier: Apache-2.0
//
// FuseServer::Start: which transport it will be, and the threads for it. The order matters: once the kernel has heard
// in the reply to INIT that there will be rings, it sends nothing before each CPU's queue has one. So the rings are
// made first, then INIT is answered, then they are registered.
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <fstream>

#include "base/log.h"
#include "base/start_thread.h"
#include "mount/cpu_list.h"
#include "mount/fuse_server.h"

namespace termfs::mount {
namespace {

constexpr unsigned kDeviceThreads = 2;              // beside rings
constexpr unsigned kLeastThreads = 2;               // for each CPU
constexpr size_t kMostStandIns = 200;               // threads in place of those that wait; each costs two queue pairs
constexpr size_t kMostQueues = 128;                 // each costs four queue pairs; a session may have 600
constexpr std::chrono::seconds kStartPatience{30};  // with the kernel, for INIT
constexpr char kSwitch[] = "/sys/module/fuse/parameters/enable_uring";

// Ok when there is a point in trying.
Status RingsAllowed() {
  std::ifstream file(kSwitch);
  char value = 0;
  if (!file.get(value)) {
    return Status::Error(ENOTSUP, "this kernel has no FUSE over io_uring (6.14 has it)");
  }
  if (value != 'Y') {
    return Status::Error(ENOTSUP, std::string("FUSE over io_uring is switched off (echo Y > ") + kSwitch + ")");
  }
  return Status::Ok();
}

}  // namespace

bool ParseTransport(std::string_view text, FuseTransport& transport) {
  if (text == "auto") {
    transport = FuseTransport::kAuto;
  } else if (text == "io_uring") {
    transport = FuseTransport::kRing;
  } else if (text == "device") {
    transport = FuseTransport::kDevice;
  } else {
    return false;
  }
  return true;
}

Result<UniqueFd> FuseServer::CloneDevice() const {
  UniqueFd device(open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!device.valid()) {
    return ErrnoStatus("open /dev/fuse");
  }
  uint32_t master = static_cast<uint32_t>(fuse_session_fd(session_));
  if (ioctl(device.get(), FUSE_DEV_IOC_CLONE, &master) != 0) {
    return ErrnoStatus("clone the FUSE device for a thread");
  }
  return device;
}

Status FuseServer::AddWorker(const ThreadFactory& make_thread, int cpu) {
  auto worker = std::make_unique<Worker>();
  worker->server = this;
  worker->cpu = cpu;
  ASSIGN_OR_RETURN(worker->state, make_thread());
  TERMFS_CHECK(worker->state->buffer().size() >= kRequestBufferBytes);
  worker->guest.interruption = worker->state->interruption();
  worker->queue = cpu >= 0 ? ring_queues_[static_cast<size_t>(cpu)].get() : nullptr;
  worker->aside = std::make_unique_for_overwrite<std::byte[]>(kRequestBufferBytes);
  ASSIGN_OR_RETURN(worker->device, CloneDevice());
  workers_.push_back(std::move(worker));
  return Status::Ok();
}

Status FuseServer::AddRingWorkers(const ThreadFactory& make_thread) {
  ASSIGN_OR_RETURN(const std::vector<unsigned> possible, ReadCpuList("/sys/devices/system/cpu/possible"));
  ASSIGN_OR_RETURN(const std::vector<unsigned> online, ReadCpuList("/sys/devices/system/cpu/online"));
  if (possible.size() > kMostQueues || possible.back() + 1 != possible.size()) {
    return Status::Error(ENOTSUP, "FUSE over io_uring needs a queue for each possible CPU, and there are too many");
  }
  const auto share = static_cast<unsigned>((options_.threads + online.size() - 1) / online.size());
  for (const unsigned cpu : possible) {
    ring_queues_.push_back(std::make_unique<RingQueue>(cpu));
  }
  for (const unsigned cpu : possible) {
    const bool is_online = std::find(online.begin(), online.end(), cpu) != online.end();
    for (unsigned i = 0; i < (is_online ? std::max(share, kLeastThreads) : 1); i++) {
      RETURN_IF_ERROR(AddWorker(make_thread, static_cast<int>(cpu)));
    }
  }
  return Status::Ok();
}

Status FuseServer::Launch(size_t first) {
  for (size_t i = first; i < workers_.size(); i++) {
    ASSIGN_OR_RETURN(workers_[i]->thread, StartThread([this, &worker = *workers_[i]] { Serve(worker); }));
    launched_.store(i + 1, std::memory_order_release);
  }
  return Status::Ok();
}

// Until `done`, which is called with the mutex held; ETIMEDOUT.
template <typename Condition>
Status FuseServer::Await(const char* what, const Condition& done) {
  const auto deadline = std::chrono::steady_clock::now() + kStartPatience;
  while (!done()) {
    if (!changed_.WaitUntil(mutex_, deadline) && !done()) {
      return Status::Error(ETIMEDOUT, what);
    }
  }
  return Status::Ok();
}

// All but what Wait adds. Returns the number of threads with rings; `why_not`: there are none.
Result<unsigned> FuseServer::LaunchAll(const ThreadFactory& make_thread, Status& why_not) {
  MutexLock no_stand_ins(stand_ins_mutex_);
  make_thread_ = make_thread;
  if (why_not.ok()) {
    why_not = AddRingWorkers(make_thread);
  }
  const auto rings = static_cast<unsigned>(workers_.size());
  workers_.reserve(workers_.size() + kDeviceThreads + options_.threads + kMostStandIns);
  RETURN_IF_ERROR(Launch(0));
  if (rings > 0) {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(
        Await("FUSE threads did not start", [&]() REQUIRES(mutex_) { return agreement_.prepared == rings; }));
    agreement_.offer = why_not.ok() && agreement_.why_not.ok();
  }
  for (unsigned i = 0; i < (rings > 0 ? kDeviceThreads : options_.threads); i++) {
    RETURN_IF_ERROR(AddWorker(make_thread, -1));
  }
  RETURN_IF_ERROR(Launch(rings));
  return rings;
}

Status FuseServer::Start(const ThreadFactory& make_thread, const FuseReads::Factory& make_reads) {
  TERMFS_CHECK(mounted_ && workers_.empty() && options_.threads > 0);
  make_reads_ = make_reads;
  RETURN_IF_ERROR(PrepareSignals());
  Status why_not =
      options_.transport == FuseTransport::kDevice ? Status::Error(ENOTSUP, "not asked for") : RingsAllowed();
  ASSIGN_OR_RETURN(const unsigned rings, LaunchAll(make_thread, why_not));
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(
      Await("the kernel did not begin to speak FUSE", [&]() REQUIRES(mutex_) { return agreement_.answered; }));
  if (agreement_.rings) {
    RETURN_IF_ERROR(
        Await("the kernel did not take the rings", [&]() REQUIRES(mutex_) { return agreement_.registered >= rings; }));
  } else if (why_not.ok() && agreement_.why_not.ok()) {
    why_not = Status::Error(ENOTSUP, "the kernel does not offer it");
  }
  RETURN_IF_ERROR(StartWatch());
  return Report(agreement_.why_not.ok() ? why_not : agreement_.why_not);
}

Status FuseServer::Report(const Status& why_not) const {
  if (options_.transport == FuseTransport::kRing) {
    return why_not.ok() ? why_not : Status(why_not).WithContext("FUSE over io_uring");
  }
  if (options_.transport == FuseTransport::kAuto && !why_not.ok()) {
    LOG_INFO("FUSE requests come over /dev/fuse: {}", why_not.ToString());
  }
  return Status::Ok();
}

}  // namespace termfs::mount

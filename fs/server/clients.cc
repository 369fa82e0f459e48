// SPDX-License-Identifier: Apache-2.0
#include "fs/server/clients.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "base/log.h"
#include "tlib/rpc/messages.h"

namespace termfs::fs::server {

namespace {

using std::chrono::steady_clock;
using tlib::server::SessionEnd;

constexpr std::chrono::seconds kLongestPatience{3600};
// Of a client on another host whose kernel has closed the connection: the process has ended, and its mount with it; or
// somebody on the way has forged that, and the client does not know of it before kServerSilence.
constexpr std::chrono::seconds kLastMoments{2 * tlib::kServerSilence};

std::chrono::seconds PatienceOf(uint32_t seconds) { return std::min(std::chrono::seconds(seconds), kLongestPatience); }

// When the process was started, in clock ticks since the host was; 0: there is none, or it cannot be told.
uint64_t StartOf(uint32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) {
    return 0;
  }
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) {
    fields >> skipped;
  }
  uint64_t start = 0;
  fields >> start;
  return start;
}

bool HasEnded(const std::shared_ptr<const UniqueFd>& process) {
  if (process == nullptr || !process->valid()) {
    return false;
  }
  pollfd ended{.fd = process->get(), .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) > 0;
}

}  // namespace

Status Clients::Load() {
  ASSIGN_OR_RETURN(const auto known, names_.ListClients());
  {
    MutexLock lock(mutex_);
    held_until_ = steady_clock::now() + longest_grant_;
  }
  for (const metadata::ClientRecord& record : known) {
    Entry entry{.keeps_files = !record.expelled,
                .caches = record.caches,
                .expelled = record.expelled,
                .holds = record.caches,
                .locks = !record.expelled,
                .patience = PatienceOf(record.reconnect_seconds),
                .pid = record.pid,
                .started = record.started};
    entry.until = steady_clock::now() + entry.patience;
    if (record.pid != 0) {
      entry.process = std::make_shared<UniqueFd>(static_cast<int>(syscall(SYS_pidfd_open, record.pid, 0)));
      if (!entry.process->valid() || StartOf(record.pid) != record.started) {
        RETURN_IF_ERROR(names_.RemoveClient(record.client));
        continue;
      }
    }
    if (entry.locks) {
      any_locks_.store(true, std::memory_order_release);
    }
    if (entry.holds) {
      any_holds_.store(true, std::memory_order_release);
    }
    MutexLock lock(mutex_);
    entries_[record.client] = std::move(entry);
  }
  if (const size_t expected = away(); expected > 0) {
    LOG_INFO("clients of the last start that are expected back: {}; files they may have open are kept", expected);
  }
  return Status::Ok();
}

Result<Clients::Standing> Clients::Arrived(const tlib::server::SessionInfo& info) {
  if (info.client == 0 || info.reconnect_seconds == 0) {
    return Standing::kUnknown;
  }
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(info.client);
    if (found != entries_.end()) {
      Entry& entry = found->second;
      if (entry.session != 0) {
        return Status::Error(EBUSY, "a former session of the client has not ended yet");
      }
      entry.session = info.id.value;
      entry.resumed = false;
      entry.arrived = steady_clock::now();
      entry.until = EndOfResuming(entry);
      entry.process.reset();
      return Standing::kReturned;
    }
  }
  const uint64_t started = info.pid != 0 ? StartOf(info.pid) : 0;
  const Status noted = names_.AddClient({.client = info.client,
                                         .reconnect_seconds = info.reconnect_seconds,
                                         .pid = started != 0 ? info.pid : 0,
                                         .started = started});
  if (!noted.ok()) {
    LOG_WARNING("session {} could not come back after a loss: {}", info.id.value, noted.ToDebugString());
    return Standing::kUnknown;
  }
  MutexLock lock(mutex_);
  if (!entries_
           .try_emplace(info.client, Entry{.session = info.id.value,
                                           .patience = PatienceOf(info.reconnect_seconds),
                                           .pid = started != 0 ? info.pid : 0,
                                           .started = started})
           .second) {
    return Status::Error(EBUSY, "a session of the same client has just begun");
  }
  return Standing::kNew;
}

void Clients::Resuming(uint64_t client) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(client);
  if (found != entries_.end() && found->second.session != 0 && !found->second.resumed) {
    found->second.until = EndOfResuming(found->second);
  }
}

Clients::TimePoint Clients::EndOfResuming(const Entry& entry) const {
  const auto time = std::max<std::chrono::milliseconds>(entry.patience, least_to_resume_);
  return std::min(steady_clock::now() + time, entry.arrived + kLongestPatience);
}

metadata::ClientRecord Clients::RecordOf(uint64_t client, const Entry& entry) {
  return {.client = client,
          .reconnect_seconds = static_cast<uint32_t>(entry.patience.count()),
          .pid = entry.pid,
          .started = entry.started,
          .caches = entry.caches,
          .expelled = entry.expelled};
}

void Clients::NoteResumed(uint64_t client) {
  metadata::ClientRecord record;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(client);
    if (found == entries_.end() || !found->second.expelled) {
      return;
    }
    record = RecordOf(client, found->second);
    record.expelled = false;
  }
  if (const Status noted = names_.AddClient(record); !noted.ok()) {
    LOG_WARNING("after a restart a client will lose its locks: {}", noted.ToDebugString());
    return;
  }
  MutexLock lock(mutex_);
  if (const auto found = entries_.find(client); found != entries_.end()) {
    found->second.expelled = false;
  }
}

void Clients::Resumed(uint64_t client) {
  MutexLock lock(mutex_);
  if (const auto found = entries_.find(client); found != entries_.end()) {
    found->second.resumed = true;
    found->second.keeps_files = true;
    found->second.holds = false;
    found->second.locks = false;
  }
}

Status Clients::NoteCaches(uint64_t client) {
  metadata::ClientRecord record;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(client);
    if (found == entries_.end()) {
      return Status::Error(ENOTCONN, "the client is not known any more");
    }
    if (found->second.caches) {
      return Status::Ok();
    }
    record = RecordOf(client, found->second);
    record.caches = true;
  }
  RETURN_IF_ERROR(names_.AddClient(record));
  MutexLock lock(mutex_);
  if (const auto found = entries_.find(client); found != entries_.end()) {
    found->second.caches = true;
  }
  return Status::Ok();
}

bool Clients::AnyHolds() {
  if (!any_holds_.load(std::memory_order_acquire)) {
    return false;
  }
  MutexLock lock(mutex_);
  if (steady_clock::now() < held_until_ && std::any_of(entries_.begin(), entries_.end(), [](const auto& known) {
        return known.second.holds && !HasEnded(known.second.process);
      })) {
    return true;
  }
  any_holds_.store(false, std::memory_order_release);
  return false;
}

bool Clients::Holds(uint64_t client) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(client);
  return steady_clock::now() < held_until_ && found != entries_.end() && found->second.holds;
}

bool Clients::AnyLocks() {
  if (!any_locks_.load(std::memory_order_acquire)) {
    return false;
  }
  MutexLock lock(mutex_);
  if (std::any_of(entries_.begin(), entries_.end(),
                  [](const auto& known) { return known.second.locks && !HasEnded(known.second.process); })) {
    return true;
  }
  any_locks_.store(false, std::memory_order_release);
  return false;
}

bool Clients::HasResumed(uint64_t client) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(client);
  return found != entries_.end() && found->second.resumed;
}

bool Clients::WasKept(uint64_t client) const {
  MutexLock lock(mutex_);
  const auto found = entries_.find(client);
  return found != entries_.end() && found->second.keeps_files;
}

Clients::Expected Clients::Ended(uint64_t client, uint64_t session, const SessionEnd& end,
                                 const std::function<void(bool keeps)>& before) {
  Expected expected;
  std::optional<metadata::ClientRecord> expelled;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(client);
    if (found != entries_.end() && found->second.session == session) {
      Entry& entry = found->second;
      const bool silent = end.how == SessionEnd::How::kExpelled && entry.silent();
      expected.back = end.how != SessionEnd::How::kGoodbye && !silent && !HasEnded(end.process);
      // One that did not answer must not keep space for long. Nor has it anything before it has heard of that.
      const bool kept = entry.resumed || entry.keeps_files;
      expected.keeps_files = expected.back && end.how != SessionEnd::How::kExpelled && kept;
      if (expected.back && !expected.keeps_files && !entry.expelled) {
        expelled = RecordOf(client, entry);
        expelled->expelled = true;
      }
    } else {
      client = 0;
    }
  }
  if (expelled.has_value()) {
    const Status noted = names_.AddClient(*expelled);
    if (!noted.ok()) {
      LOG_WARNING("what an expelled client has locked is kept: {}", noted.ToDebugString());
      expelled.reset();
      expected.keeps_files = true;
    }
  }
  if (!expected.back) {
    if (client != 0) {
      Forget(client, [&before] { before(false); });
    } else {
      before(false);
    }
    return expected;
  }
  before(expected.keeps_files);
  MutexLock lock(mutex_);
  Entry& entry = entries_[client];
  const bool died = end.how == SessionEnd::How::kDied;
  entry.session = 0;
  entry.until = steady_clock::now() + (died ? std::min(entry.patience, kLastMoments) : entry.patience);
  entry.keeps_files = expected.keeps_files;
  entry.expelled |= expelled.has_value();
  entry.process = end.process;
  return expected;
}

void Clients::Expire(const std::function<void(uint64_t)>& before, const std::function<void(uint64_t)>& expel) {
  std::vector<uint64_t> over;
  std::vector<uint64_t> silent;
  {
    MutexLock lock(mutex_);
    const TimePoint now = steady_clock::now();
    for (auto& [client, entry] : entries_) {
      if (entry.session == 0 && (now >= entry.until || HasEnded(entry.process))) {
        entry.session = ~uint64_t{0};  // it does not arrive from here on
        over.push_back(client);
      } else if (entry.silent()) {
        silent.push_back(entry.session);
      }
    }
  }
  for (const uint64_t session : silent) {
    expel(session);
  }
  for (const uint64_t client : over) {
    Forget(client, [&before, client = client] { before(client); });
  }
}

void Clients::Forget(uint64_t client, const std::function<void()>& before) {
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(client);
    if (found == entries_.end()) {
      return;
    }
    found->second.session = ~uint64_t{0};  // nobody arrives while its receipts go
    found->second.resumed = true;
  }
  if (const Status removed = names_.RemoveClient(client); !removed.ok()) {
    LOG_WARNING("forgetting a client: {}", removed.ToDebugString());
  }
  before();
  MutexLock lock(mutex_);
  entries_.erase(client);
}

bool Clients::AnyExpected() const {
  MutexLock lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [](const auto& known) {
    const Entry& entry = known.second;
    return entry.keeps_files && (entry.session == 0 || !entry.resumed);
  });
}

size_t Clients::away() const {
  MutexLock lock(mutex_);
  return static_cast<size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const auto& known) { return known.second.session == 0; }));
}

}  // namespace termfs::fs::server

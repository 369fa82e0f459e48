// SPDX-License-Identifier: Apache-2.0
//
// Clients: who has a session, and who had one and may come back for what it had open. The store knows them too, so that
// a restarted server expects those of the one before.
//
//   Arrived --> [session] --Ended: goodbye, or its process has ended--> forgotten, with its receipts
//                  ^   |
//                  |   +--Ended: lost, expelled--> away --its time over, or its process ended--> forgotten
//                  |                                |
//                  +-------Arrived, Resumed---------+
//
// Thread-safety: any thread. Everything but Resumed and AnyExpected may block.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "metadata/namespace.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

class Clients {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit Clients(metadata::Namespace& names) : names_(names) {}

  // Those that the store knows are away from now on, as far as their processes live.
  Status Load() EXCLUDES(mutex_);

  enum class Standing : uint8_t {
    kUnknown,   // nothing is kept for it
    kNew,       // there was nothing to keep
    kReturned,  // its receipts are there
  };
  // A session begins. EBUSY: a former one of the same client has not ended yet.
  Result<Standing> Arrived(const tlib::server::SessionInfo& info) EXCLUDES(mutex_);
  // It has opened again what it had open.
  void Resumed(uint64_t client) EXCLUDES(mutex_);
  void Ended(uint64_t client, uint64_t session, const tlib::server::SessionEnd& end) EXCLUDES(mutex_);
  // Forgets those whose time is over or whose process has ended.
  void Expire() EXCLUDES(mutex_);
  // Somebody may still come back for a file that has no name any more: none may be freed.
  bool AnyExpected() const EXCLUDES(mutex_);
  size_t away() const EXCLUDES(mutex_);

 private:
  struct Entry {
    uint64_t session = 0;  // 0: away
    bool resumed = true;
    bool keeps_files = true;
    std::chrono::seconds patience{0};
    TimePoint until{};  // when away
    std::shared_ptr<const UniqueFd> process{};
  };
  void Forget(uint64_t client) EXCLUDES(mutex_);

  metadata::Namespace& names_;
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::server

// SPDX-License-Identifier: Apache-2.0
//
// Clients: who has a session, and who had one and may come back for what it had open. The store knows them too, so that
// a restarted server expects those of the one before.
//
//   Arrived --> [session] --Ended: goodbye, or its process has ended--> forgotten, with its receipts
//                  ^   |
//                  |   +--Ended: lost, expelled--> away --its time over, or its process ended--> forgotten
//                  |   |    died (on another host)  |     (its last moments: nobody can see that process)
//                  |                                |
//                  +-------Arrived, Resumed---------+
//
// Others wait for what it says until it has resumed. So one that has arrived again and does not resume in its time is
// expelled, and forgotten with its session.
//
// What kernels hold of grants of an earlier start is not known, so those clients that had asked for grants hold
// everything: until they have come back and resumed, their process has ended, or what the earlier server granted last
// has ended.
//
// Locks are the same: until then nobody is given any.
//
// Thread-safety: any thread. Everything but Resumed, HasResumed, WasKept and the Any... may block.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
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

  // Who has arrived again has as long to resume, though it said that it would not be patient.
  static constexpr std::chrono::seconds kLeastToResume{5};

  // `longest_grant`: so long the kernel of a client may use what it was granted.
  Clients(metadata::Namespace& names, std::chrono::milliseconds longest_grant,
          std::chrono::milliseconds least_to_resume = kLeastToResume)
      : names_(names), longest_grant_(longest_grant), least_to_resume_(least_to_resume) {}

  // Those that the store knows are away from now on, as far as their processes live.
  Status Load() EXCLUDES(mutex_);

  enum class Standing : uint8_t {
    kUnknown,   // nothing is kept for it
    kNew,       // there was nothing to keep
    kReturned,  // its receipts are there
  };
  // A session begins. EBUSY: a former one of the same client has not ended yet.
  Result<Standing> Arrived(const tlib::server::SessionInfo& info) EXCLUDES(mutex_);
  // It is about to be granted something. Only for one that is expected for as long as that lasts.
  Status NoteCaches(uint64_t client) EXCLUDES(mutex_);
  // It says what it had, and goes on doing so: its time begins anew, up to an hour after it has arrived.
  void Resuming(uint64_t client) EXCLUDES(mutex_);
  // It knows what has become of what it had: before Resumed. May block.
  void NoteResumed(uint64_t client) EXCLUDES(mutex_);
  // It has opened again what it had open, and its kernel has dropped what it was granted.
  void Resumed(uint64_t client) EXCLUDES(mutex_);
  struct Expected {
    bool back = false;         // it may come back
    bool keeps_files = false;  // and what it had is kept for it
  };
  // `before` is told whether what it had is kept. The client cannot come back meanwhile, and what is not kept is not
  // kept by a later start either.
  Expected Ended(uint64_t client, uint64_t session, const tlib::server::SessionEnd& end,
                 const std::function<void(bool keeps)>& before) EXCLUDES(mutex_);
  // Forgets those whose time is over or whose process has ended; `before` is called for each, which cannot come back
  // meanwhile, nor to a later start. `expel`: for sessions of those who should have resumed; again and again until they
  // have ended.
  void Expire(const std::function<void(uint64_t client)>& before, const std::function<void(uint64_t session)>& expel)
      EXCLUDES(mutex_);
  // Of one that has arrived again: what it had was kept until then.
  bool WasKept(uint64_t client) const EXCLUDES(mutex_);
  // It has said everything that it had in sessions before.
  bool HasResumed(uint64_t client) const EXCLUDES(mutex_);
  // Some client may still say what it locked in an earlier start.
  bool AnyLocks() EXCLUDES(mutex_);
  // Somebody may still come back for a file that has no name any more: none may be freed.
  bool AnyExpected() const EXCLUDES(mutex_);
  // Some kernel may use what was granted by an earlier start.
  bool AnyHolds() EXCLUDES(mutex_);
  // The same of this one.
  bool Holds(uint64_t client) const EXCLUDES(mutex_);
  size_t away() const EXCLUDES(mutex_);

 private:
  struct Entry {
    uint64_t session = 0;  // 0: away
    bool resumed = true;
    bool keeps_files = true;
    bool caches = false;    // the store knows that it does
    bool expelled = false;  // the store knows that what it had was not kept
    bool holds = false;     // grants of an earlier start
    bool locks = false;     // the same of locks
    std::chrono::seconds patience{0};
    TimePoint until{};  // when away, or not resumed
    TimePoint arrived{};
    std::shared_ptr<const UniqueFd> process{};
    uint32_t pid = 0;  // as in the store
    uint64_t started = 0;

    bool silent() const { return session != 0 && !resumed && std::chrono::steady_clock::now() >= until; }
  };
  void Forget(uint64_t client, const std::function<void()>& before) EXCLUDES(mutex_);
  static metadata::ClientRecord RecordOf(uint64_t client, const Entry& entry);
  // From now on, for one that is to resume.
  TimePoint EndOfResuming(const Entry& entry) const;

  metadata::Namespace& names_;
  const std::chrono::milliseconds longest_grant_;
  const std::chrono::milliseconds least_to_resume_;
  std::atomic<bool> any_holds_{false};  // false: no entry holds anything, nor ever will
  std::atomic<bool> any_locks_{false};
  mutable Mutex mutex_;
  TimePoint held_until_ GUARDED_BY(mutex_){};
  std::unordered_map<uint64_t, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::server

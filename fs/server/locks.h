// SPDX-License-Identifier: Apache-2.0
//
// LockTable: who holds which locks of which files, and who waits for some, over all clients. Record locks (fcntl) and
// those of flock are apart: neither sees the other.
//
//   Apply --no conflict--> held            Apply --conflict, no ticket--> refused
//     |                      ^
//     +--conflict, ticket--> queued --what is in its way goes--> granted, until it is asked for again by its ticket
//
// As the kernel's own locks: whoever asks for what is free gets it, also when others wait for more of the file; those
// who wait are served in the order in which they came. A record lock whose wait could not end is refused: its owner
// would wait for somebody who, through others perhaps, waits for that owner. A flock that changes its type is given up
// first.
//
// Thread-safety: none; guarded by whoever has it.
// Errors:        Apply: EDEADLK; ENOLCK: the holder has kMostLocks or kMostWaits.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "fs/lock_ranges.h"

namespace termfs::fs::server {

// A client, over all its sessions; or a session of a client that cannot come back.
struct LockHolder {
  uint64_t client = 0;
  uint64_t session = 0;
  auto operator<=>(const LockHolder&) const = default;
};

struct LockOwner {
  LockHolder holder;
  bool flock = false;
  uint64_t id = 0;  // the client's number for a process or an open file
  auto operator<=>(const LockOwner&) const = default;
};

struct LockRequest {
  uint64_t ino = 0;
  LockOwner owner;
  LockType type = LockType::kRead;
  uint64_t start = 0;
  uint64_t end = kLastLockByte;
  uint32_t pid = 0;
};

struct LockTicket {
  uint64_t session = 0;
  uint64_t number = 0;  // 0: none, does not wait
  auto operator<=>(const LockTicket&) const = default;
};

class LockTable {
 public:
  static constexpr size_t kMostLocks = 65536;  // ranges of one holder
  static constexpr size_t kMostWaits = 1024;   // of one holder

  enum class State : uint8_t { kDone, kQueued, kRefused };
  struct Answer {
    State state = State::kDone;
    // Changes of one owner's locks happened in the order of these numbers. For one that is done: its own; otherwise
    // that of giving up a flock.
    uint64_t change = 0;
  };
  using Tickets = std::vector<LockTicket>;

  // `first_change`: greater than any change of a server before.
  explicit LockTable(uint64_t first_change = 0) : changes_(first_change) {}

  // `granted` gets the tickets whose waits have ended by it. A ticket that waits already changes nothing.
  Result<Answer> Apply(const LockRequest& request, LockTicket ticket, Tickets& granted);
  // A lock that is in the way of it.
  struct Held {
    LockOwner owner;
    LockRange range;
  };
  std::optional<Held> Test(const LockRequest& request) const;

  // How long a lock may last whose file is closed: the kernel sends the release behind the close, without waiting.
  static constexpr std::chrono::milliseconds kMoment{100};
  // An owner whose file was still open after that time is not believed to close it again so soon.
  static constexpr std::chrono::seconds kStaysOpen{1};
  // A descriptor of the owner's file is being closed at `now`, perhaps the last one.
  void Closes(uint64_t ino, const LockOwner& owner, BootTime now);
  // What Test finds in the way may be gone in a moment, by a close before `now`.
  bool MayEnd(const LockRequest& request, BootTime now) const;
  // Ends a wait. False: it has ended by being granted, and is to be asked for again.
  bool Cancel(LockTicket ticket);

  // The holder neither has nor waits for any lock of the file.
  void DropFile(LockHolder holder, uint64_t ino, Tickets& granted);
  std::vector<uint64_t> FilesOf(LockHolder holder) const;  // of which it has locks
  void DropHolder(LockHolder holder, Tickets& granted);
  void DropWaits(uint64_t session);
  // The holder's locks are these, and no others. Returns files of which others have some; then it has none of those.
  std::vector<uint64_t> Replace(LockHolder holder, const std::vector<LockRequest>& locks, Tickets& granted);

  size_t locks() const { return locks_; }
  size_t waits() const { return waiting_.size(); }

 private:
  struct Waiter {
    LockRequest request;
    LockTicket ticket;
  };
  struct File {
    std::map<LockOwner, LockRanges> held;
    std::map<LockOwner, BootTime> closes;  // since when
    std::map<uint64_t, Waiter> waiting;    // in their order
  };
  struct Place {
    uint64_t ino = 0;
    uint64_t order = 0;
  };
  struct Granted {
    LockHolder holder;
    uint64_t change = 0;
  };
  struct Count {
    size_t locks = 0;
    size_t waits = 0;  // also those that were granted and have not been asked for since
  };
  using Files = std::map<uint64_t, File>;

  static const LockRange* ConflictWith(const LockOwner& holder, const LockRanges& held, const LockRequest& request);
  static bool Blocked(const File& file, const LockRequest& request);
  static std::vector<LockOwner> Blockers(const File& file, const LockRequest& request);
  bool Deadlocks(const LockRequest& request) const;
  Status CheckRoom(const File& file, const LockRequest& request) const;
  uint64_t Carry(File& file, const LockRequest& request);
  // What has become free goes to those who wait for it.
  void Serve(File& file, Tickets& granted);
  void Enqueue(File& file, const LockRequest& request, LockTicket ticket);
  void Dequeue(File& file, std::map<uint64_t, Waiter>::iterator waiter);
  void EndWait(LockHolder holder);
  bool DropOwners(LockHolder holder, File& file);  // false: it had none
  Files::iterator Forget(Files::iterator file);

  uint64_t changes_;
  uint64_t next_order_ = 0;
  size_t locks_ = 0;
  Files files_;
  std::map<LockTicket, Place> waiting_;
  std::map<LockTicket, Granted> granted_;
  std::map<LockOwner, std::set<LockTicket>> waits_of_;
  std::map<LockHolder, Count> counts_;
};

}  // namespace termfs::fs::server

// SPDX-License-Identifier: Apache-2.0
//
// Locks. The server holds them; who has to wait sleeps here, is called when the lock is its own, and asks for it.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "fs/client/volume_client.h"
#include "fs/proto/codec.h"
#include "fs/proto/lock_closes.h"

namespace termfs::fs::client {

namespace {

constexpr std::chrono::milliseconds kAskAgain{1000};  // should the server's call be lost
// Between questions whether a close, or all that others may hold, has been heard of; longer each time.
constexpr std::chrono::milliseconds kFirstLater{1};
constexpr std::chrono::milliseconds kLater{100};
constexpr size_t kLocksInMessage = 32;  // of about 60 bytes each

wire::LockT ToWire(const LockKey& key, const LockRange& range, LockType type, uint64_t ticket) {
  wire::LockT body;
  body.ino = key.ino;
  body.flock = key.flock;
  body.owner = key.owner;
  body.type = static_cast<uint8_t>(type);
  body.start = range.start;
  body.end = range.end;
  body.pid = range.pid;
  body.ticket = ticket;
  return body;
}

LockKey KeyOf(const OpenFile& file, const FileLock& lock) {
  return {.ino = file.ino, .flock = lock.flock, .owner = lock.flock ? file.number : lock.owner};
}

LockRange RangeOf(const FileLock& lock) {
  return {.start = lock.start, .end = lock.end, .write = lock.type == LockType::kWrite, .pid = lock.pid};
}

// What is in the way of `lock`.
Result<std::optional<FileLock>> FoundLock(const FileLock& lock, const wire::LockT& held) {
  if (held.type >= static_cast<uint8_t>(LockType::kUnlock)) {
    return std::optional<FileLock>();
  }
  if (held.start > held.end || held.end > kLastLockByte) {
    return Status::Error(EBADMSG, "a lock of no range");
  }
  FileLock found = lock;
  found.type = static_cast<LockType>(held.type);
  found.start = held.start;
  found.end = held.end;
  found.pid = held.pid;
  return std::optional(found);
}

}  // namespace

// From before the first request until the lock is had or given up.
class VolumeClient::LockWaiting {
 public:
  static Result<std::unique_ptr<LockWaiting>> Begin(VolumeClient& client) {
    UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event.valid()) {
      return ErrnoStatus("create an eventfd");
    }
    MutexLock lock(client.lock_waits_mutex_);
    const uint64_t ticket = ++client.last_lock_ticket_;
    client.lock_waits_[ticket] = event.get();
    return std::unique_ptr<LockWaiting>(new LockWaiting(client, ticket, std::move(event)));
  }
  ~LockWaiting() {
    MutexLock lock(client_.lock_waits_mutex_);
    client_.lock_waits_.erase(ticket_);
  }
  uint64_t ticket() const { return ticket_; }

  // False: the interruption was requested.
  bool Sleep(Interruption& interruption, std::chrono::milliseconds limit) {
    pollfd woken[2] = {{.fd = interruption.fd(), .events = POLLIN, .revents = 0},
                       {.fd = event_.get(), .events = POLLIN, .revents = 0}};
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!interruption.requested()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (left.count() <= 0 || poll(woken, 2, static_cast<int>(left.count())) == 0) {
        break;
      }
      interruption.Drain();  // perhaps of a request that has ended
      uint64_t count = 0;
      if (read(event_.get(), &count, sizeof(count)) > 0) {
        break;
      }
    }
    return !interruption.requested();
  }

 private:
  LockWaiting(VolumeClient& client, uint64_t ticket, UniqueFd event)
      : client_(client), ticket_(ticket), event_(std::move(event)) {}
  VolumeClient& client_;
  const uint64_t ticket_;
  const UniqueFd event_;
};

void VolumeClient::LockGranted(uint64_t ticket) {
  MutexLock lock(lock_waits_mutex_);
  if (const auto wait = lock_waits_.find(ticket); wait != lock_waits_.end()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(wait->second, &one, sizeof(one));  // full: it will wake
  }
}

Status VolumeClient::Lock(Lane& lane, OpenFile* file, const FileLock& lock, LockSleep* sleep) {
  if (CheckUsable(file).ok() && !lock.flock && lock.type != LockType::kUnlock) {
    file->NoteRecordOwner(lock.owner);
  }
  RETURN_IF_ERROR(CheckUsable(file));
  std::unique_ptr<LockWaiting> waiting;
  if (sleep != nullptr) {
    ASSIGN_OR_RETURN(waiting, LockWaiting::Begin(*this));
  }
  HeldLocks::Asking asking(held_locks_, KeyOf(*file, lock), file->number);
  const bool waits = lock.wait && waiting != nullptr;
  std::chrono::milliseconds later = kFirstLater;
  for (bool prepared = false;;) {
    const auto state = AskForLock(lane, *file, lock, waits ? waiting->ticket() : 0, asking);
    if (!state.ok() || *state == wire::LockState::Done || *state == wire::LockState::Refused) {
      return !state.ok() ? EndWait(lane, *file, lock, waits ? waiting->ticket() : 0, asking, state.status())
             : *state == wire::LockState::Done ? Status::Ok()
                                               : Status::Error(EBUSY, "another has it locked");
    }
    Status slept = waiting == nullptr ? Status::Error(EBUSY, "other clients may have it locked") : Status::Ok();
    if (slept.ok() && !prepared) {
      slept = sleep->Prepare();
      prepared = slept.ok();
    }
    if (slept.ok()) {
      sleep->Begin();
      const bool on = waiting->Sleep(lane.interruption(), *state == wire::LockState::Later ? later : kAskAgain);
      sleep->End();
      later = std::min(later * 2, kLater);
      slept = on ? CheckUsable(file) : Status::Error(EINTR, "the wait for a lock was interrupted");
    }
    if (!slept.ok()) {
      return EndWait(lane, *file, lock, *state == wire::LockState::Queued ? waiting->ticket() : 0, asking, slept);
    }
  }
}

// A reply may be noted after the next session's server was told what is held. That server does not know of it then, or
// knows what has been given up; to be told twice does no harm.
Result<wire::LockState> VolumeClient::AskForLock(Lane& lane, const OpenFile& file, const FileLock& lock,
                                                 uint64_t ticket, HeldLocks::Asking& asking) {
  auto state = AskOnce(lane, file, lock, ticket, asking);
  while (state.ok() && *state == wire::LockState::Done && Of(lane).generation() < begun_.load() &&
         CheckUsable(&file).ok()) {
    const uint64_t before = Of(lane).generation();
    state = AskOnce(lane, file, lock, ticket, asking);
    if (Of(lane).generation() == before) {
      break;
    }
  }
  return state;
}

Result<wire::LockState> VolumeClient::AskOnce(Lane& lane, const OpenFile& file, const FileLock& lock, uint64_t ticket,
                                              HeldLocks::Asking& asking) {
  const uint64_t now = asking.Now();
  const auto reply =
      Call(lane, kFsLock, Encode<wire::Lock>(ToWire(KeyOf(file, lock), RangeOf(lock), lock.type, ticket)));
  if (!reply.ok()) {
    if (GivenUp(reply.status()) || reply.status().code() == EIO) {
      asking.Doubt(lock.type);
    }
    return reply.status();
  }
  ASSIGN_OR_RETURN(const auto locked, Decode<wire::Locked>(reply->body));
  if (locked.state == wire::LockState::Done) {
    asking.Done(RangeOf(lock), lock.type, locked.change);
  } else if (lock.flock && locked.change != 0) {
    asking.Done(RangeOf(lock), LockType::kUnlock, locked.change);  // what it was to replace is gone already
  }
  if (locked.state != wire::LockState::Done) {
    asking.NotYet(now);
  }
  return locked.state;
}

// Nobody interrupts this: the operation has no number any more. If the session is gone, so is the wait.
Status VolumeClient::EndWait(Lane& lane, const OpenFile& file, const FileLock& lock, uint64_t ticket,
                             HeldLocks::Asking& asking, const Status& why) {
  if (ticket == 0 || (!GivenUp(why) && why.code() != ENOLCK && why.code() != EIO)) {
    return why;
  }
  lane.interruption().End();
  wire::TicketT body;
  body.ticket = ticket;
  const auto encoded = Encode<wire::Ticket>(body);
  const Status cancelled =
      link_->CallIn(Of(lane).generation(), Of(lane), {.opcode = kFsCancelLock, .body = encoded, .in = {}, .out = {}});
  if (cancelled.ok()) {  // it has been granted
    const auto state = AskForLock(lane, file, lock, ticket, asking);
    return state.ok() && *state == wire::LockState::Done ? Status::Ok() : why;
  }
  if (cancelled.code() != ENOENT && cancelled.code() != ENOTCONN) {
    asking.Doubt(lock.type);
  }
  return why;
}

Result<std::optional<FileLock>> VolumeClient::TestLock(Lane& lane, OpenFile* file, const FileLock& lock,
                                                       LockSleep* sleep) {
  RETURN_IF_ERROR(CheckUsable(file));
  const auto asked = Encode<wire::Lock>(ToWire(KeyOf(*file, lock), RangeOf(lock), lock.type, 0));
  std::unique_ptr<LockWaiting> waiting;
  std::chrono::milliseconds later = kFirstLater;
  while (true) {
    ASSIGN_OR_RETURN(const CallReply reply, Call(lane, kFsTestLock, asked));
    ASSIGN_OR_RETURN(const auto held, Decode<wire::Lock>(reply.body));
    if (!held.later) {
      return FoundLock(lock, held);
    }
    if (sleep == nullptr) {
      return Status::Error(EBUSY, "other clients may have it locked");
    }
    if (waiting == nullptr) {
      RETURN_IF_ERROR(sleep->Prepare());
      ASSIGN_OR_RETURN(waiting, LockWaiting::Begin(*this));
    }
    sleep->Begin();
    const bool on = waiting->Sleep(lane.interruption(), later);
    sleep->End();
    later = std::min(later * 2, kLater);
    RETURN_IF_ERROR(on ? CheckUsable(file) : Status::Error(EINTR, "asking for a lock was interrupted"));
  }
}

Status VolumeClient::Flush(Lane& lane, OpenFile* file, uint64_t owner) {
  Status unlocked;  // every write has reached the server before it returned
  const bool usable = CheckUsable(file).ok();
  if (usable && held_locks_.Any({.ino = file->ino, .flock = false, .owner = owner})) {
    unlocked = Lock(lane, file, {.owner = owner, .type = LockType::kUnlock}, nullptr);
  }
  if (unlocked.ok()) {
    file->ForgetRecordOwner(owner);  // which may lock by another handle before this one is released
  }
  if (!usable) {
    return unlocked;
  }
  // What is left ends with the release, which comes when close has returned.
  const auto closes = [&](const LockKey& key) {
    if (held_locks_.Any(key)) {
      wire::LockT body = ToWire(key, {}, LockType::kUnlock, 0);
      body.type = kLockCloses;
      const auto told = Call(lane, kFsLock, Encode<wire::Lock>(body));
      if (!told.ok()) {
        LOG_DEBUG("closing inode {}: {}", file->ino, told.status().ToDebugString());
      }
    }
  };
  for (const uint64_t other : file->record_owners()) {
    closes({.ino = file->ino, .flock = false, .owner = other});
  }
  closes({.ino = file->ino, .flock = true, .owner = file->number});
  return unlocked;
}

std::vector<LockKey> VolumeClient::TakeLocks(OpenFile& file, Closed& closed) {
  std::vector<LockKey> keys;
  const auto take = [&](const LockKey& key, std::vector<uint64_t>& owners) {
    if (held_locks_.EndWith(key, file.number)) {
      keys.push_back(key);
      owners.push_back(key.owner);
    }
  };
  for (const uint64_t owner : file.record_owners()) {
    take({.ino = file.ino, .flock = false, .owner = owner}, closed.record_owners);
  }
  take({.ino = file.ino, .flock = true, .owner = file.number}, closed.flock_owners);
  return keys;
}

// Returns the files that are not locked any more.
Result<std::vector<uint64_t>> VolumeClient::ReclaimLocks(tlib::client::Channel& channel) {
  const std::vector<HeldLocks::Held> all = held_locks_.All();
  std::vector<uint64_t> lost;
  for (size_t done = 0; done < all.size();) {
    wire::ReclaimT body;
    for (; done < all.size() && body.locks.size() < kLocksInMessage; ++done) {
      const LockRange& range = all[done].range;
      body.locks.push_back(std::make_unique<wire::LockT>(
          ToWire(all[done].key, range, range.write ? LockType::kWrite : LockType::kRead, 0)));
    }
    body.last = done == all.size();
    const auto encoded = Encode<wire::Reclaim>(body);
    ASSIGN_OR_RETURN(const auto reply, channel.Call({.opcode = kFsReclaim, .body = encoded, .in = {}, .out = {}}));
    ASSIGN_OR_RETURN(const auto reclaimed, Decode<wire::Reclaimed>(reply.body));
    lost.insert(lost.end(), reclaimed.lost.begin(), reclaimed.lost.end());
    for (size_t i = 0; reclaimed.all_lost && i < all.size(); ++i) {
      lost.push_back(all[i].key.ino);
    }
  }
  return lost;
}

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
//
// Leases of data: which sessions' kernels may have pages of an inode, and how a change waits until none has. See
// "Pages under a lease" in docs/design_notes.md.
//
//   none --CachePages, Open--> leased --a change: kFsInvalidate, kFsInvalidated--> none
//
// A lease is taken inside the gate, alone, so never while something changes; a change looks inside the gate that there
// are none. Until it finds none it holds nothing: the kernel of a holder may have to read or write first, before it can
// drop a page. So a lease that is asked for while its kernel is told so is given, and taken back once more; else who
// asks waits until the changes have passed that were there before.
#include <algorithm>

#include "base/log.h"
#include "fs/proto/codec.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

namespace {

// Two rounds are common where pages are read all the time. If so many are not enough, which nothing is known to bring
// about, the change goes on, and what kernels have then is dropped afterwards: until then a reader may be shown a page
// of before up to a size of after.
constexpr int kMostRounds = 1000;
constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::milliseconds kLookAtExpelled{20};

// A change that waits for the gate and for kernels.
class Waiting {
 public:
  explicit Waiting(Inode& inode) : inode_(inode) {
    MutexLock lock(inode_.mutex);
    number_ = inode_.next_change++;
    inode_.waiting_changes.push_back(number_);
  }
  ~Waiting() {
    MutexLock lock(inode_.mutex);
    std::erase(inode_.waiting_changes, number_);
    inode_.change_entered.NotifyAll();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Inode& inode_;
  uint64_t number_ = 0;
};

// Until the changes that wait now have entered the gate, or the session's kernel may be waiting for who asks: it is
// told to drop pages, and was not through with that when it asked.
Status AwaitEarlierChanges(Inode& inode, const Session& session, uint64_t dropped) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(inode.mutex);
  const uint64_t next = inode.next_change;
  const auto is_told = [&]() REQUIRES(inode.mutex) {
    const auto opener = inode.opens.find(session.id);
    return opener == inode.opens.end() || std::any_of(opener->second.drops.begin(), opener->second.drops.end(),
                                                      [dropped](uint64_t ticket) { return ticket > dropped; });
  };
  while (!is_told() && std::any_of(inode.waiting_changes.begin(), inode.waiting_changes.end(),
                                   [next](uint64_t number) { return number < next; })) {
    const auto now = std::chrono::steady_clock::now();
    if (session.expelled.load(std::memory_order_relaxed)) {
      return Status::Error(ECANCELED, "the session is gone");
    }
    if (now >= deadline) {
      return Status::Error(ETIMEDOUT, "waiting for changes of the inode");
    }
    inode.change_entered.WaitUntil(inode.mutex, std::min(deadline, now + kLookAtExpelled));
  }
  return Status::Ok();
}

}  // namespace

bool FileService::TakeLease(Inode& inode, const Session& session) {
  MutexLock lock(inode.mutex);
  const auto opener = inode.opens.find(session.id);
  if (opener == inode.opens.end()) {
    return false;
  }
  opener->second.caches = true;
  ++opener->second.leases;
  return true;
}

Result<Bytes> FileService::CachePages(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::CachePages>(request.call.body()));
  ASSIGN_OR_RETURN(const InodeRef inode, FindOpen(request, body.ino));
  RETURN_IF_ERROR(AwaitEarlierChanges(*inode, request.session, body.dropped));
  ASSIGN_OR_RETURN(const GateHold hold, GateHold::Enter(*inode, GateMode::kExclusive, request.session));
  if (!TakeLease(*inode, request.session)) {
    return Status::Error(EBADF, "the session has closed the file");
  }
  return Bytes{};
}

// Where that would cost a wait its first read asks.
wire::Caching FileService::LeaseAtOpen(Inode& inode, const Session& session) {
  if (!session.caches.load(std::memory_order_relaxed)) {
    return wire::Caching::No;
  }
  {
    MutexLock lock(inode.mutex);
    if (!inode.waiting_changes.empty()) {
      return wire::Caching::OnceAsked;
    }
  }
  if (!inode.gate.TryEnter(GateMode::kExclusive)) {
    return wire::Caching::OnceAsked;
  }
  const bool taken = TakeLease(inode, session);
  inode.gate.Leave(GateMode::kExclusive);
  return taken ? wire::Caching::Yes : wire::Caching::OnceAsked;
}

Status FileService::TellReopened(const Request& request, Inode& inode) {
  ASSIGN_OR_RETURN(const metadata::Attributes attributes, request.Blocking([&] { return names_.GetAttr(inode.ino); }));
  ShrunkFile reopened(coherence_, inode, request.session.id);
  reopened.BeginReopened(attributes.generation);
  return Status::Ok();
}

Result<GateHold> FileService::EnterToChange(const Request& request, Inode& inode, GateMode mode,
                                            ShrunkFile::Whose whose) {
  // Of an earlier start anybody may have pages. They do not wait for themselves: a first write comes before that.
  if (request.session.client == 0 || clients_.HasResumed(request.session.client)) {
    coherence_.AwaitEarlier();
  }
  const Waiting waiting(inode);
  for (int round = 0;;) {
    ASSIGN_OR_RETURN(GateHold hold, GateHold::Enter(inode, mode, request.session));
    if (const auto others = ShrunkFile::Look(inode, request.session, whose); others != ShrunkFile::Others::kKnow)
        [[unlikely]] {
      hold.Leave();
      if (others == ShrunkFile::Others::kAreToBeTold) {
        RETURN_IF_ERROR(TellReopened(request, inode));
      }
      RETURN_IF_ERROR(ShrunkFile::Await(inode, request.session, whose));
      continue;
    }
    const std::vector<PageHolder> holders = coherence_.HoldersOf(inode, request.session.id);
    const bool own = whose == ShrunkFile::Whose::kAll && Coherence::MayHavePages(inode, request.session.id);
    if (holders.empty() && !own) {
      return hold;
    }
    if (round++ == kMostRounds) {
      if (const auto left_out = impatient_.Next()) {
        LOG_WARNING("inode {} changes while kernels have pages of it, after {} rounds ({} more since the last line)",
                    inode.ino, kMostRounds, *left_out);
      }
      return hold;
    }
    hold.Leave();
    if (own) {
      RETURN_IF_ERROR(coherence_.DropOwnPages(inode, request.session.id));
    }
    coherence_.DropPages(inode, holders);
  }
}

// What a kernel was given while the inode changes would have to be called back before the change returns; and until
// then a reader there could miss what another has seen. While a change waits, it would have to wait for that, too.
bool FileService::IsChanging(uint64_t ino) {
  const InodeRef inode = inodes_.Find(ino);
  if (!inode) {
    return false;
  }
  MutexLock lock(inode->mutex);
  return inode->gate.busy() || !inode->waiting_changes.empty();
}

bool FileService::HasOpen(uint64_t ino, const Session& session) {
  const InodeRef inode = inodes_.Find(ino);
  if (!inode) {
    return false;
  }
  MutexLock lock(inode->mutex);
  return inode->opens.contains(session.id);
}

}  // namespace termfs::fs::server

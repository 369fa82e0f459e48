// SPDX-License-Identifier: Apache-2.0
//
// Coherence: makes what other sessions cache void before an operation is acknowledged. Three kinds:
//
//   Revoke       the maps that sessions hold. Inside the inode's gate, before the change is visible. The client
//                needs nothing but its own memory to answer.
//   DropPages    pages that their kernels cache, and the attributes beside them. Before the change (page_leases.cc) and
//                after it, outside of the gate: the kernel may first write dirty pages back, and that write must get
//                through. The client acknowledges with kFsInvalidated.
//   TellShrunk   sizes that are greater than the file's now, by which kernels would go on. After the change, outside of
//                the gate. Acknowledged like pages, also by a client whose kernel cannot be made to.
//   Recall       attributes and directory entries that their kernels cache. After the change was committed, with
//                nothing held: the kernel may wait for locks of requests that wait for this server. Acknowledged like
//                pages.
//
// Whoever does not answer in time is expelled, and the wait goes on until it holds nothing: for maps until its session
// is gone, for what its kernel caches until its process is gone or the grant has ended. So a dead client delays others
// by seconds. See "Leases for what the kernel caches".
//
// Thread-safety: Revoke, DropPages and Recall inside a task; the others from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/metrics.h"
#include "base/unique_fd.h"
#include "fs/proto/codec.h"
#include "fs/proto/opcodes.h"
#include "fs/server/clients.h"
#include "fs/server/contended_directories.h"
#include "fs/server/grants.h"
#include "fs/server/inode.h"
#include "fs/server/newborns.h"
#include "fs/server/sessions.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

// A session whose kernel may have pages of an inode that it has open, or attributes of it that were granted since.
struct PageHolder {
  uint64_t session = 0;
  bool pages = false;
  uint64_t leases = 0;  // of its opener, when it was looked at
  std::vector<GrantTable::Holder> attributes{};
};

struct CoherenceTimeouts {
  std::chrono::milliseconds revoke{3000};
  std::chrono::milliseconds invalidate{5000};
  std::chrono::milliseconds expel{10000};
  std::chrono::milliseconds recall{3000};
  // What a grant of attributes or an entry lasts: to the client from its request on, here from the grant on, and longer
  // by `drift`, for clocks that differ and a reply that the kernel takes a while to look at.
  std::chrono::milliseconds lease{10000};
  std::chrono::milliseconds drift{2000};
};

class Coherence final : public Newborns::Sessions {
 public:
  // `last_ticket`: no ticket of a server before was greater.
  Coherence(SessionTable& sessions, Clients& clients, const Clock& clock, const CoherenceTimeouts& timeouts,
            MetricsRegistry& metrics, uint64_t last_ticket);

  void Attach(tlib::server::Server& server) { server_.store(&server, std::memory_order_release); }

  // Voids the maps of all sessions but `keep` (0: of all), and freezes the inode. REQUIRES: exclusive in the gate.
  Status Revoke(Inode& inode, uint64_t keep);
  // Voids the map of one that makes a change, which it keeps otherwise: the change has failed, so no reply brings it
  // another. REQUIRES: exclusive in the gate; in one of its requests, so its end is not waited for: if it does not
  // answer, the next change is to revoke all maps (Inode::map_in_doubt).
  void RevokeOwn(Inode& inode, uint64_t session);
  // Openers whose kernels may have pages, but `writer`; and of those that ever had, who may have attributes. Of
  // sessions that have ended everybody may have both who may have attributes.
  std::vector<PageHolder> HoldersOf(Inode& inode, uint64_t writer);
  // Has their kernels drop all of that. They have no lease then, unless they took another one meanwhile. REQUIRES: not
  // in the gate.
  void DropPages(Inode& inode, const std::vector<PageHolder>& holders);
  // Of the writer's own kernel, before it makes the file larger: else a reader there that learns of the new size first
  // would be shown the zeros behind the old end. ECANCELED: it did not answer, and is expelled; its end is not waited
  // for, as this is in one of its requests.
  Status DropOwnPages(Inode& inode, uint64_t session);
  static bool MayHavePages(Inode& inode, uint64_t session);
  void DropPages(Inode& inode, uint64_t writer) { DropPages(inode, HoldersOf(inode, writer)); }

  // Has the kernels of these sessions go by the size that the file has now, which is smaller than before. REQUIRES: not
  // in the gate.
  void TellShrunk(Inode& inode, const std::vector<uint64_t>& sessions, uint64_t generation);

  // Has the kernels of all sessions but `keep` (0: of all) drop the attributes of `inodes` (0: none) and the `entries`,
  // there or not. REQUIRES: the change is committed; nothing is held, no gate either.
  struct EntryName {
    uint64_t parent;
    std::string_view name;
  };
  // Waits first as AwaitEarlier does.
  void Recall(uint64_t keep, std::initializer_list<uint64_t> inodes, std::initializer_list<EntryName> entries);
  // Until no client of an earlier start may hold anything: what they hold is not known.
  void AwaitEarlier();
  bool AnyEarlier() { return clients_.AnyHolds(); }
  // For a change that nobody waits for: of those of an earlier start each sees it when its time is over.
  void RecallWithoutWait(uint64_t keep, std::initializer_list<uint64_t> inodes,
                         std::initializer_list<EntryName> entries);
  // Every session whose kernel caches counts as a holder of these attributes from now on: for what kernels keep beside
  // attributes without being granted it, and without a time, which is access control lists.
  void CountAllAsHolders(uint64_t ino);
  GrantTable& grants() { return grants_; }
  // The session is to be granted neither the attributes of the directory nor the names that a listing shows.
  bool IsContended(uint64_t directory, uint64_t session) const {
    return contended_.IsContended(directory, session, grants_.Now());
  }
  std::chrono::milliseconds longest_grant() const { return timeouts_.lease + timeouts_.drift; }

  // As Newborns::Sessions.
  Answer AskFirstWrite(uint64_t session, uint64_t ino, const Newborns::Asker& asker) override;
  void ExpelForFirstWrite(uint64_t session, const Newborns::Asker& asker) override;
  // What the session has posted could not be carried out. False: it cannot be told.
  bool TellFailedWrite(uint64_t session, uint64_t ino);

  // kFsInvalidated came from `session`. ENOENT: it had no such ticket.
  Status Acknowledge(uint64_t session, uint64_t ticket);
  // `pid`: of its process on this host, 0 for none.
  void SessionOpened(uint64_t session, uint32_t pid);
  // `caches`: its kernel may still use what it was granted, until the client has another session and says that it does
  // not.
  void SessionClosed(uint64_t session, uint64_t client, bool caches);
  void ClientDropped(uint64_t client);
  // Forgets sessions that have ended, when what they were granted, or their process, has ended, too. Now and then.
  void Expire();
  // Does not wait for its end. False: there is no such session.
  bool BeginExpel(uint64_t session, const char* why);

 private:
  enum class Reply { kNone, kDone, kGone };  // kGone: the session has ended
  struct Ticket {
    uint64_t session;
    Reply reply = Reply::kNone;
  };
  Status RevokeOne(uint64_t session, const RevokeBody& body);
  Reply AskToDrop(Inode& inode, uint64_t session);
  Status DropPagesOf(Inode& inode, uint64_t session, const std::vector<GrantTable::Holder>& attributes);
  struct Recalled {
    wire::RecallT message;
    std::vector<GrantTable::Holder> grants;
  };
  // `begin` (may be null) hears of the ticket before the session does.
  void RecallOne(uint64_t session, Recalled& recalled, const std::function<void(uint64_t)>& begin = nullptr);
  // The session's kernel is being told to give something up, by that ticket; so who reads there waits for no change.
  static void AddDrop(Inode& inode, uint64_t session, uint64_t ticket);
  static void EndDrop(Inode& inode, uint64_t session, uint64_t ticket);
  // Calls the session with a message that holds a ticket, and waits until it has acknowledged that.
  Reply CallAndWait(uint64_t session, Opcode opcode, const std::function<std::vector<std::byte>(uint64_t)>& encode,
                    std::chrono::milliseconds timeout);
  bool ProcessIsGone(uint64_t session) EXCLUDES(mutex_);
  // Until what a session that has ended was granted has ended, too, or its process has.
  void AwaitEndOf(uint64_t session, const std::vector<GrantTable::Holder>& granted) EXCLUDES(mutex_);
  // Takes out those of sessions that have not ended, or that are of the client of `writer`.
  void KeepLeft(uint64_t writer, std::vector<GrantTable::Holder>& granted) EXCLUDES(mutex_);
  Status Expel(uint64_t session, const char* why);
  // CallClient. Where the connection to the client has ended, so does the session, as after any loss: its client may
  // come back to what it had open and locked, of which an expulsion, which follows, would deprive it.
  Result<std::vector<std::byte>> CallClient(uint64_t session, Opcode opcode, std::span<const std::byte> body,
                                            std::chrono::milliseconds timeout);
  // Calls `one` for each session, side by side; the first error.
  Status ForEach(const std::vector<uint64_t>& sessions, const std::function<Status(uint64_t)>& one);
  tlib::server::Server& server() { return *server_.load(std::memory_order_acquire); }

  SessionTable& sessions_;
  Clients& clients_;
  const CoherenceTimeouts timeouts_;
  Counter& revocations_;
  Counter& invalidations_;
  Counter& expulsions_;
  Counter& recalls_;
  Counter& first_writes_asked_;
  GrantTable grants_;
  ContendedDirectories contended_;
  std::atomic<tlib::server::Server*> server_{nullptr};

  Mutex mutex_;
  uint64_t next_ticket_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Ticket> tickets_ GUARDED_BY(mutex_);
  TaskCondition acknowledged_ GUARDED_BY(mutex_);
  struct Process {
    UniqueFd handle;  // readable when it has ended, and so its kernel has nothing of this volume any more
    std::optional<BootTime> forget;  // the session is gone: keep it so long
  };
  std::unordered_map<uint64_t, Process> processes_ GUARDED_BY(mutex_);  // by session
  struct Left {
    uint64_t client;
    BootTime forget;
  };
  std::unordered_map<uint64_t, Left> left_ GUARDED_BY(mutex_);  // sessions that have ended and whose grants last
  std::atomic<bool> any_left_{false};                           // left_ is not empty; before their openers go
};

}  // namespace termfs::fs::server

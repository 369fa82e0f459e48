// SPDX-License-Identifier: Apache-2.0
//
// FileService: the file system on the server, where metadata and region meet. Requests arrive as coroutines on tlib's
// workers; each namespace operation is one transaction of the Namespace, on a blocking thread.
//
// A write (write.cc) goes this way:
//   1. Enter the inode's gate: shared when the bytes only replace bytes of allocated pages, exclusive when the file
//      grows or a hole is filled (and for every append, whose place is decided here).
//   2. Exclusive: give the holes space (space.cc), some of it ahead of a file that grows. Revoke the maps of the other
//      sessions (coherence.cc), which answer without coming back here. Nothing is held but the gate.
//   3. RegionIo pulls the bytes from the client and applies them page by page, each time after a look whether the
//      session is still there and the pages still belong to the file.
//   4. The size, when it grew, is committed to the store, then published in memory. mtime and ctime change in memory
//      only, and reach the store within a second, at fsync, or at the last close.
//   5. Leave the gate; have other kernels drop the attributes, and those of other openers the range; answer with the
//   new
//      map, so that the writer keeps its grant.
// A read that needs the server (read.cc) enters no gate: it reads, then looks whether pages left the file meanwhile.
//
//   service.cc dispatch, sessions      names.cc lookup to rename        directories.cc readdir
//   files.cc open, create, release     first_writes.cc those that clients answer
//                                      attributes.cc getattr, set       xattr.cc
//   read.cc  write.cc  truncate.cc     space.cc extents, allocation     fallocate.cc  sync.cc  copy.cc
//   coherence.h revocation             reclaimer.h what follows later   gate.h, inode.h the state of an inode
//   evacuation.h when the region gets smaller                       locking.cc, locks.h
//
// Thread-safety: as tlib::server::Service says; Attach, StopBackground and Finish from the owner's thread.
// Ownership:     borrows the Namespace, the Server and the Administrator.
#pragma once

#include <array>
#include <atomic>
#include <functional>

#include "base/clock.h"
#include "base/metrics.h"
#include "base/seldom.h"
#include "fs/proto/codec.h"
#include "fs/proto/opcodes.h"
#include "fs/server/clients.h"
#include "fs/server/coherence.h"
#include "fs/server/evacuation.h"
#include "fs/server/granting.h"
#include "fs/server/inode_table.h"
#include "fs/server/locks.h"
#include "fs/server/name_locks.h"
#include "fs/server/newborns.h"
#include "fs/server/reclaimer.h"
#include "fs/server/replaced.h"
#include "fs/server/request.h"
#include "fs/server/shrunk.h"
#include "fs/types.h"
#include "metadata/namespace.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

// What an administrator asks over the control channel; implemented by the volume's server.
class Administrator {
 public:
  virtual ~Administrator() = default;
  virtual Result<Bytes> HandleAdmin(uint16_t opcode, std::span<const std::byte> body) = 0;
};

struct ServiceOptions {
  const Clock& clock = Clock::System();
  CoherenceTimeouts timeouts;
  std::chrono::milliseconds space_timeout{20000};  // how long ENOSPC waits for freed space
  // What rename has replaced can be opened by its number for so long, while there are not more of them, and their data
  // is not more than this share of the region. See "A replaced name is always there".
  std::chrono::milliseconds grace{2000};
  size_t max_replaced = 8192;
  uint64_t replaced_share = 16;
  size_t max_segments = size_t{1} << 17;  // of what is known of an inode's extents that are kept in memory: 3 MiB
  uint32_t owner_uid = 0;                 // besides root: whose sessions may act for others
  uint64_t start = 0;                     // of the server; greater than those before: a map's version tells its start
};

class FileService final : public tlib::server::Service {
 public:
  FileService(metadata::Namespace& names, const ServiceOptions& options);

  // Before the server starts: who may come back from an earlier run.
  Status LoadClients() { return clients_.Load(); }
  // The server runs: requests are served from now on. No write that returned was lost since the start `kept_since`.
  void Attach(tlib::server::Server& server, Administrator* administrator, uint64_t kept_since);
  // Before the server stops.
  void StopBackground();
  // After the server has stopped: writes what is in memory only, and syncs.
  Status Finish() { return reclaimer_.Finish(); }
  // Counters and gauges named fs_...
  std::vector<MetricValue> Metrics() const;
  FileSystemStatus Space() const;
  // Of all directories with a quota: wire::Quotas. Reads the metadata, on the thread that calls.
  Result<Bytes> DescribeQuotas();
  // Of a session; null: there is no such one.
  std::shared_ptr<const Session> FindSession(tlib::server::SessionId id) { return sessions_.Find(id.value); }
  // Before the region gets smaller: Namespace::Confine; then as often as it takes, until Namespace::Shrink succeeds,
  // what files have beyond the line is moved. Once Attached; not from a task. EBUSY: what an earlier server left in
  // memory could not be flushed.
  Status Confine(uint64_t pages);
  Result<Evacuation::Pass> Evacuate(const std::function<bool()>& cancelled);

  Result<Bytes> Handle(tlib::server::Call& call) override;
  Result<Bytes> HandleAdmin(uint16_t opcode, std::span<const std::byte> body) override;
  Status SessionOpened(const tlib::server::SessionInfo& info) override;
  void SessionClosed(tlib::server::SessionId session, const tlib::server::SessionEnd& end) override;
  std::string OwnerOf(PageIndex page) override;
  bool AllowsRawWrites() const override { return false; }

 private:
  using Handler = Result<Bytes> (FileService::*)(const Request&);
  static Handler HandlerOf(uint16_t opcode);
  // Calls the handler, with what is known of a request that carries a mark.
  Result<Bytes> Answer(Handler handler, tlib::server::Call& call, Session& session);

  // names.cc
  Result<Bytes> Lookup(const Request& request);
  Result<Bytes> Make(const Request& request);
  Result<Bytes> ReadLink(const Request& request);
  Result<Bytes> Link(const Request& request);
  // What has no name gets one from who has it open only: until then it is nobody else's.
  Result<metadata::Attributes> AddLink(const Request& request, const wire::LinkT& body);
  Result<Bytes> Unlink(const Request& request);
  Result<Bytes> RemoveDirectory(const Request& request);
  // `ino`: what had the name, 0 if that is not known any more.
  Result<Bytes> ReplyRemoved(const Request& request, uint64_t parent, std::string_view name, uint64_t ino);
  Result<Bytes> Rename(const Request& request);
  void AfterRemoval(const metadata::Removed& removed, Nanoseconds now);
  // Begins the graces of what has lost a name and has another one.
  void AfterReplacement(const metadata::Renamed& renamed);
  // `ctime`: what the store has for the inode since the change.
  void NoteChanged(uint64_t ino, Nanoseconds ctime);
  // directories.cc
  Result<Bytes> ReadDirectory(const Request& request);
  // attributes.cc
  Result<Bytes> GetAttributes(const Request& request);
  Result<Bytes> Set(const Request& request);
  // access_times.cc: of a regular file that is open; of anything else, as its attributes were just read.
  // `knows`: the session whose kernel asks for the time after such an access; 0: none does.
  void NoteAccess(Inode& inode, uint64_t knows);
  void NoteAccess(const Request& request, const metadata::Attributes& attributes);
  // `has_acl`: the mode was changed, and an access control list with it.
  Result<metadata::Attributes> SetInGate(const Request& request, wire::SetT body, bool& has_acl);
  // What ClearPrivileges makes of the mode.
  Status NameMode(const Request& request, wire::SetT& body);
  Result<Bytes> Stat(const Request& request);
  Attributes Report(metadata::Attributes attributes);
  // Grants attributes that were read before it was known whose they are; reads them again if they may have changed.
  metadata::Attributes GrantAttributes(Granting& granting, const metadata::Attributes& read);
  wire::AttributesReplyT AttributesReply(const metadata::Attributes& attributes, const Granting& granting);
  Result<Bytes> ReplyAttributes(const metadata::Attributes& attributes, const Granting& granting);
  // The same for what was changed in `directory`.
  Result<Bytes> ReplyChange(const Request& request, const metadata::Attributes& attributes, const Granting& granting,
                            uint64_t directory);
  // Puts the directory's attributes, as they are after a change, into its reply: they will be asked for next.
  template <typename Reply>
  void BringDirectory(const Request& request, uint64_t directory, Reply& reply) {
    Granting granting(coherence_.grants(), request.session);
    if (coherence_.IsContended(directory, request.session.id) || !granting.Attributes(directory)) {
      return;
    }
    if (const auto now = names_.GetAttrInMemory(directory); now.ok()) {
      reply.directory = std::make_unique<wire::Attributes>(ToWire(Report(*now)));
      reply.directory_ms = Milliseconds(true);
    }
  }
  uint32_t Milliseconds(bool granted) const {
    return granted ? static_cast<uint32_t>(options_.timeouts.lease.count()) : 0;
  }
  // files.cc
  Result<Bytes> Open(const Request& request);
  Result<Bytes> Create(const Request& request);
  Result<Bytes> Release(const Request& request);
  Result<Bytes> MakeUnnamed(const Request& request);
  // Makes a regular file and opens it, as one.
  using MakeInode = std::function<Result<metadata::Attributes>(const metadata::NewInode& wanted)>;
  Result<metadata::Attributes> CreateOpen(const Request& request, const wire::MakeT& body, const MakeInode& make);
  Result<Bytes> DescribeOpened(const Request& request, const metadata::Attributes& granted, uint64_t parent,
                               const Granting& granting);
  Result<Bytes> OpenInode(const Request& request, uint64_t ino, int flags, bool caches);
  Result<metadata::Attributes> LoadOpened(const Request& request, Inode& inode, int flags);
  // For O_PATH: the inode stays while it is open, and that is all.
  static Result<metadata::Attributes> LoadHeld(const Request& request, metadata::Namespace& names, Inode& inode);
  Status CloseOne(const Request& request, Inode& inode);
  Result<Bytes> Reopen(const Request& request);
  // Opens what the client had open in a session before, also a file that has no name any more.
  Result<metadata::Attributes> ReopenInode(const Request& request, uint64_t ino, uint64_t count, bool notify);
  Result<Bytes> Resumed(const Request& request);
  // The inode, when the session has it open; EBADF.
  Result<InodeRef> FindOpen(const Request& request, uint64_t ino);
  // The same, but nobody waits for its first write.
  Result<InodeRef> FindOpenNow(const Request& request, uint64_t ino);
  // first_writes.cc: see newborns.h.
  // The session may post one to the inode, which is about to be made.
  bool ExpectFirst(const Request& request, uint64_t ino);
  bool HasQuota(uint64_t ino);
  // Before anybody looks at the size or the bytes. ECANCELED: the session is expelled.
  Status AwaitFirst(const Request& request, uint64_t ino) {
    return newborns_.any() ? newborns_.Settle(ino, AskerOf(request)) : Status::Ok();
  }
  Status AwaitAllFirst(const Request& request);
  static Newborns::Asker AskerOf(const Request& request) {
    return {.session = request.session.id, .expelled = &request.session.expelled};
  }
  // What the session says of its own, before a request of it about the inode.
  Status HearOfFirst(const Request& request, uint64_t ino, FirstWrite first);
  // For who does not know the inode yet. Before it is read: whether one may come at all; also clients of an earlier
  // start may have posted some. Afterwards, true: it has waited, and the attributes are to be read again.
  bool FirstMayCome() { return newborns_.any() || coherence_.AnyEarlier(); }
  // The same for who is about to change the inode.
  Status AwaitFirstToChange(const Request& request, uint64_t ino);
  Result<bool> AwaitFirst(const Request& request, bool may_come, const metadata::Attributes& read);
  // Pages that are about to be given to an inode, until the claim ends. Nobody takes what is promised to first writes:
  // where space is scarce this waits for those.
  class SpaceClaim {
   public:
    SpaceClaim(std::atomic<uint64_t>& claimed, uint64_t pages) : claimed_(claimed), pages_(pages) {
      claimed_.fetch_add(pages_);
    }
    ~SpaceClaim() { claimed_.fetch_sub(pages_); }
    SpaceClaim(const SpaceClaim&) = delete;
    SpaceClaim& operator=(const SpaceClaim&) = delete;

   private:
    std::atomic<uint64_t>& claimed_;
    const uint64_t pages_;
  };
  Status KeepPromisedSpace(const Request& request, Inode& inode);  // after the claim
  // While one lives no more are promised.
  class NoPromises {
   public:
    explicit NoPromises(std::atomic<uint64_t>& count) : count_(count) { count_.fetch_add(1); }
    ~NoPromises() { count_.fetch_sub(1); }
    NoPromises(const NoPromises&) = delete;
    NoPromises& operator=(const NoPromises&) = delete;

   private:
    std::atomic<uint64_t>& count_;
  };
  // Whether it may be carried out: it is expected, or has been before.
  Status TakeFirst(const Request& request, uint64_t ino);
  bool IsLate(const Request& request, uint64_t ino);
  void EndFirst(const Request& request, uint64_t ino, bool written);
  // read.cc, write.cc
  Result<Bytes> Read(const Request& request);
  Status Deliver(const Request& request, uint64_t offset, uint64_t length, const std::vector<Segment>& segments);
  Result<Bytes> Write(const Request& request);
  struct WriteWork;
  Result<Bytes> WriteAs(const Request& request, const WriteBody& body, WriteWork work);
  Result<Bytes> WriteFirst(const Request& request, const WriteBody& body);
  Result<Bytes> WriteOpen(const Request& request, Inode& inode, const WriteBody& body, WriteWork work);
  Status WriteInGate(const Request& request, Inode& inode, WriteWork& work);
  static bool CutToSize(Inode& inode, WriteWork& work);
  bool OnlyReplaces(Inode& inode, uint64_t offset, uint64_t length);
  // The set-id bits, if that is wanted. `cleared` is set when there were any.
  Status ClearPrivileges(const Request& request, Inode& inode, bool wanted, bool& cleared);
  Status Replace(const Request& request, Inode& inode, WriteWork& work);
  Status Grow(const Request& request, Inode& inode, WriteWork& work);
  Status Apply(const Request& request, Inode& inode, const WriteWork& work);
  // `offset`: for the receipt: where the bytes of an append went, which is decided with the size, or how many a copy
  // has copied.
  Status CommitSize(const Request& request, Inode& inode, uint64_t size, uint64_t offset, Nanoseconds now);
  // copy.cc
  Result<Bytes> Copy(const Request& request);
  struct CopyWork;
  Result<Bytes> CopyAs(const Request& request, const wire::CopyT& body, CopyWork& work);
  Status CopyInGate(const Request& request, const wire::CopyT& body, CopyWork& work);
  Status CopyRuns(const Request& request, CopyWork& work, uint64_t old_size, bool clears_privileges);
  // The next bytes that are all data or all a hole. Work that is done to its end: none are left.
  Status CopyRun(const Request& request, CopyWork& work);
  Status CopyData(const Request& request, CopyWork& work, uint64_t bytes);
  // What begins at `offset` of an inode whose gate need not be ours.
  struct Run {
    uint64_t bytes = 0;  // 0: the end of the file
    bool hole = false;
  };
  Result<Run> NextRun(const Request& request, Inode& inode, uint64_t offset, uint64_t limit);
  // Up to `to.size()` bytes, fewer only at the end of the file; the gate need not be ours.
  Result<size_t> ReadStable(const Request& request, Inode& inode, uint64_t offset, std::span<std::byte> to);
  // Gives `bytes` at `offset` space, or as many of the first as there is space for. ENOSPC: for none.
  Result<uint64_t> SpaceFor(const Request& request, Inode& inode, uint64_t offset, uint64_t bytes);
  Status WriteAllocated(const Request& request, Inode& inode, uint64_t offset, std::span<const std::byte> from);
  // truncate.cc. REQUIRES: exclusive in the gate.
  Status EnsureLoaded(const Request& request, Inode& inode);
  // `partly`: more is to be done for the request's stamp. `shrunk` is told if the size is smaller than before.
  Status Truncate(const Request& request, Inode& inode, uint64_t size, bool partly, ShrunkFile& shrunk);
  Status CleanTail(const Request& request, Inode& inode);
  Status ForgetCut(const Request& request, Inode& inode, const metadata::TailCut& cut);
  Status SettleCut(const Request& request, Inode& inode);
  // What is allocated ahead of the size. Alone in the gate, with the maps of all sessions revoked but for one that is
  // about to get a new one: none of them has pages beyond the size.
  Status GiveAheadBack(const Request& request, Inode& inode);
  // The bytes behind `size`, up to the end of its page.
  Result<bool> TailIsZero(const Request& request, Inode& inode, uint64_t size);
  Status ZeroTail(const Request& request, Inode& inode, uint64_t size);
  // Writes zeros over [begin, end) where it is allocated: whole pages, and parts of pages.
  Status ZeroBytes(const Request& request, Inode& inode, uint64_t begin, uint64_t end);
  // space.cc
  // Returns when every page of [page, end) was known at some time; from outside the gate, look again.
  Status LoadExtents(const Request& request, Inode& inode, uint64_t page, uint64_t end);
  // For the first time: what the store says of it, and what of the region's past concerns others.
  void LoadInode(Inode& inode, const metadata::Attributes& attributes) REQUIRES(inode.mutex);
  // Those of all pages of [page, end), cut to it. From outside the gate, `frees` tells what has left the file
  // meanwhile.
  Result<std::vector<Segment>> SegmentsOf(const Request& request, Inode& inode, uint64_t page, uint64_t end);
  // Fills the holes of [page, end), and if `ahead` > 0 as many pages behind it where there are none. REQUIRES:
  // exclusive.
  Status AllocatePages(const Request& request, Inode& inode, uint64_t page, uint64_t end, uint64_t ahead);
  // After ENOSPC, or EDQUOT: it has waited for what is being freed, and more may be had now.
  bool MayGetRoom(const Status& refused);
  uint64_t PagesAhead(Inode& inode, uint64_t offset, uint64_t end) const;
  // fallocate.cc, sync.cc
  Result<Bytes> Allocate(const Request& request);
  Status AllocateInGate(const Request& request, Inode& inode, int what, uint64_t begin, uint64_t end, bool keep_size,
                        uint64_t dropped);
  Status Preallocate(const Request& request, Inode& inode, uint64_t begin, uint64_t end, bool keep_size);
  Status ForgetAhead(const Request& request, Inode& inode);
  Status FillHoles(const Request& request, Inode& inode, uint64_t page, uint64_t end, std::span<const Segment> holes);
  Status FreePages(const Request& request, Inode& inode, uint64_t page, uint64_t end);
  Status Punch(const Request& request, Inode& inode, uint64_t begin, uint64_t end);
  Status ZeroRange(const Request& request, Inode& inode, uint64_t begin, uint64_t end, bool keep_size);
  Result<Bytes> Seek(const Request& request);
  Result<Bytes> Sync(const Request& request);
  Status SyncInode(const Request& request, Inode& inode, bool data_only);
  // What was written to [page, end) before the call is durable.
  Status FlushPages(const Request& request, Inode& inode, uint64_t page, uint64_t end);
  // xattr.cc
  Result<Bytes> SetXattr(const Request& request);
  void RecallXattr(const Request& request, const wire::XattrT& body);
  // Or that is not known. REQUIRES: a thread that may block.
  bool HasAcl(uint64_t ino);
  Status ChangeMode(const Request& request, uint64_t ino, const std::function<Status()>& change);
  Result<Bytes> GetXattr(const Request& request);
  Result<Bytes> ListXattr(const Request& request);
  // quota.cc
  Status SetQuota(const Request& request, uint64_t ino, std::string_view value);
  Result<std::string> GetQuota(const Request& request, uint64_t ino);
  wire::QuotaT Describe(const metadata::Quota& quota);
  // Without what ends as soon as the quota is needed.
  metadata::Quota WithoutReplaced(metadata::Quota quota) const;
  // What is left of `space` for an inode with a quota.
  FileSystemStatus WithinQuota(const Request& request, uint64_t ino, const FileSystemStatus& space);
  Result<Bytes> RemoveXattr(const Request& request);
  Result<Bytes> Invalidated(const Request& request);
  Result<Bytes> Grants(const Request& request);
  // locking.cc
  Result<Bytes> Lock(const Request& request) EXCLUDES(locks_mutex_);
  Result<Bytes> TestLock(const Request& request) EXCLUDES(locks_mutex_);
  Result<Bytes> CancelLock(const Request& request) EXCLUDES(locks_mutex_);
  Result<Bytes> Reclaim(const Request& request) EXCLUDES(locks_mutex_);
  static LockHolder HolderOf(const Session& session);
  // The session has said what it had locked, and open: locks of other files end. `keep`: the locks stay for its client.
  void BeginLockSession(const Request& request) EXCLUDES(locks_mutex_);
  void EndLockSession(const Session& session, bool keep) EXCLUDES(locks_mutex_);
  void DropLocks(LockHolder holder) EXCLUDES(locks_mutex_);
  void DropLocksOf(const Session& session, uint64_t ino, LockTable::Tickets& granted) EXCLUDES(locks_mutex_);
  Status ReleaseOwners(const Session& session, const wire::ReleaseT& body) EXCLUDES(locks_mutex_);
  void TellGranted(const LockTable::Tickets& granted) EXCLUDES(locks_mutex_);
  // From any thread; StopBackground waits for it, and nothing begins after that.
  void SpawnBackground(std::function<void()> work);
  // page_leases.cc
  Result<Bytes> CachePages(const Request& request);
  // REQUIRES: exclusive in the gate. False: it is not open.
  static bool TakeLease(Inode& inode, const Session& session);
  static wire::Caching LeaseAtOpen(Inode& inode, const Session& session);
  // Sessions that have reopened the inode, of the size that it has now. REQUIRES: not in the gate.
  Status TellReopened(const Request& request, Inode& inode);
  // Enters the gate when no other session's kernel has pages of the inode, or attributes beside them. Who changes the
  // contents or the size enters so, and calls Coherence::DropPages afterwards. `whose`: kAll: the session's own kernel
  // is to know of a smaller size, too, and to have no pages; where it may wait for the change this is not possible.
  Result<GateHold> EnterToChange(const Request& request, Inode& inode, GateMode mode,
                                 ShrunkFile::Whose whose = ShrunkFile::Whose::kOthers);
  bool IsChanging(uint64_t ino);
  bool HasOpen(uint64_t ino, const Session& session);
  // Attributes change behind the back of every kernel. From any thread.
  void RecallLater(uint64_t ino);

  // What the client sent as bulk, at most `limit` bytes.
  static Result<std::string> PullString(const Request& request, size_t limit);
  Nanoseconds Now() const { return options_.clock.RealTime(); }
  void Touch(Inode& inode, uint64_t begin, uint64_t end);
  tlib::server::RegionIo& region() { return server_.load(std::memory_order_acquire)->region(); }
  Status WaitForServer();

  metadata::Namespace& names_;
  const ServiceOptions options_;
  MetricsRegistry metrics_;
  SessionTable sessions_;
  Clients clients_;
  InodeTable inodes_;
  NameLocks name_locks_;
  Coherence coherence_;
  Newborns newborns_;
  std::atomic<uint64_t> claimed_pages_{0};  // sequentially consistent, with newborns_.any()
  std::atomic<uint64_t> no_promises_{0};    // likewise
  ReplacedInodes replaced_;
  Reclaimer reclaimer_;
  std::atomic<tlib::server::Server*> server_{nullptr};
  uint64_t kept_since_ = 0;  // set before server_
  std::atomic<Administrator*> administrator_{nullptr};
  std::atomic<uint64_t> versions_;
  std::atomic<uint64_t> background_{0};  // tasks that nobody waits for
  std::atomic<bool> stopping_{false};    // both sequentially consistent
  mutable Mutex locks_mutex_;
  LockTable locks_ GUARDED_BY(locks_mutex_);
  // Sessions that are saying what their clients held before.
  std::unordered_map<uint64_t, std::vector<LockRequest>> reclaimed_ GUARDED_BY(locks_mutex_);
  Seldom impatient_{std::chrono::seconds(10)};  // changes that do not wait for kernels: lines of the log
  Counter& requests_;
  Counter& reads_;
  Counter& read_bytes_;
  Counter& writes_;
  Counter& write_bytes_;
  Counter& copies_;
  Counter& copied_bytes_;
  Counter& errors_;
  Counter& replays_;
  Histogram& metadata_time_;
  Histogram& read_time_;
  Histogram& write_time_;
};

}  // namespace termfs::fs::server

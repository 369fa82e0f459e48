// SPDX-License-Identifier: Apache-2.0
//
// VolumeClient: FileSystem over one tlib session. Operation groups have a file each: names.cc, attributes.cc, files.cc,
// copy.cc, locks.cc, read.cc, write.cc, xattr.cc; volume_client.cc has the rest.
//
// Thread-safety and ownership: as FileSystem says.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/metrics.h"
#include "fs/client/bare_inodes.h"
#include "fs/client/directory_changes.h"
#include "fs/client/file_system.h"
#include "fs/client/first_writes.h"
#include "fs/client/held_locks.h"
#include "fs/client/inode_cache.h"
#include "fs/client/invalidator.h"
#include "fs/client/kept_by_kernel.h"
#include "fs/client/known_names.h"
#include "fs/client/known_pages.h"
#include "fs/client/server_link.h"
#include "fs/client/shared_opens.h"
#include "fs/proto/opcodes.h"

namespace termfs::fs::wire {
struct RecallT;
enum class LockState : uint8_t;
}  // namespace termfs::fs::wire

namespace termfs::fs::wire {
struct RenameT;
}

namespace termfs::fs::client {

// A call ended without the server's answer: it may still be carried out.
bool GivenUp(const Status& status);

class OpenFile {
 public:
  OpenFile(uint64_t inode, int open_flags, std::shared_ptr<InodeCache> inode_cache)
      : ino(inode), flags(open_flags), cache(std::move(inode_cache)), told(cache->writes().Told()) {
    cache->mappable() += MayMap() ? 1 : 0;
  }
  // One that the kernel caches. `dropping`: the number of the open among those at which it drops what it has, or 0.
  // `shares`: with others.
  OpenFile(const SharedOpens::Open& open, PageUse use, uint64_t dropping, bool shares)
      : ino(open->ino),
        flags(open->flags),
        pages(use),
        cache(open->cache),
        shared(shares ? open : nullptr),
        dropping_open(dropping),
        told(cache->writes().Told()) {}
  ~OpenFile() { cache->mappable() -= MayMap() ? 1 : 0; }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  const uint64_t ino;
  const int flags;
  const PageUse pages = PageUse::kNone;
  const std::shared_ptr<InodeCache> cache;
  const SharedOpens::Open shared;  // null: the open at the server is this handle's own
  const uint64_t dropping_open = 0;
  // No other handle's ever. The kernel's may be that of a later one before this one is released.
  const uint64_t number = next_number_.fetch_add(1, std::memory_order_relaxed);
  uint32_t told;  // of losses of what was written: WriteHistory's

  // Owners that took record locks by this handle, and have not closed it since. Any thread.
  void NoteRecordOwner(uint64_t owner) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    record_owners_.insert(owner);
  }
  void ForgetRecordOwner(uint64_t owner) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    record_owners_.erase(owner);
  }
  std::set<uint64_t> record_owners() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return record_owners_;
  }

  // Linux maps a file to store to it only through a handle that may read, too.
  bool MayMap() const { return (flags & O_ACCMODE) == O_RDWR; }

 private:
  static inline std::atomic<uint64_t> next_number_{1};
  Mutex mutex_;
  std::set<uint64_t> record_owners_ GUARDED_BY(mutex_);
};

class VolumeClient final : public FileSystem, private ServerLink::Listener {
 public:
  // How a session is made, given who answers the server's calls; each time the link is.
  using Connector = ServerLink::Connector;

  static Result<std::unique_ptr<FileSystem>> Create(const Connector& connect, const MountOptions& options,
                                                    KernelCache* cache);
  ~VolumeClient() override;

  Result<std::unique_ptr<Lane>> OpenLane(size_t place_bytes) override;
  Result<std::unique_ptr<Lane>> OpenLaneByMap(size_t place_bytes) override;
  Result<Attributes> Lookup(Lane& lane, uint64_t parent, std::string_view name) override;
  Result<Attributes> GetAttributes(Lane& lane, uint64_t ino) override;
  Result<Attributes> Set(Lane& lane, uint64_t ino, const SetAttributes& what, OpenFile* file) override;
  Result<Attributes> MakeDirectory(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                                   uint32_t mode) override;
  Result<Attributes> MakeNode(Lane& lane, Caller who, uint64_t parent, std::string_view name, uint32_t mode,
                              uint32_t rdev) override;
  Result<Attributes> Symlink(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                             std::string_view target) override;
  Result<std::string> ReadLink(Lane& lane, uint64_t ino) override;
  Result<Attributes> Link(Lane& lane, uint64_t ino, uint64_t new_parent, std::string_view new_name) override;
  Status Unlink(Lane& lane, uint64_t parent, std::string_view name) override;
  Status RemoveDirectory(Lane& lane, uint64_t parent, std::string_view name) override;
  Status Rename(Lane& lane, uint64_t parent, std::string_view name, uint64_t new_parent, std::string_view new_name,
                uint32_t flags) override;
  Status RenameLeavingWhiteout(Lane& lane, Caller who, uint64_t parent, std::string_view name, uint64_t new_parent,
                               std::string_view new_name, uint32_t flags) override;
  Result<std::vector<DirectoryEntry>> ReadDirectory(Lane& lane, uint64_t ino, uint64_t cursor, size_t max_bytes,
                                                    bool plus) override;
  Result<OpenFile*> Open(Lane& lane, uint64_t ino, int flags) override;
  Result<std::pair<Attributes, OpenFile*>> Create(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                                                  uint32_t mode, int flags) override;
  Result<std::pair<Attributes, OpenFile*>> CreateUnnamed(Lane& lane, Caller who, uint64_t parent, uint32_t mode,
                                                         int flags) override;
  Result<std::span<const std::byte>> Read(Lane& lane, OpenFile* file, uint64_t offset, size_t size) override;
  Result<std::optional<std::span<const std::byte>>> BeginRead(Lane& lane, const FileRead& read) override;
  Status AwaitReads(Lane& lane, std::vector<ReadDone>& done) override;
  Status PollReads(Lane& lane, std::vector<ReadDone>& done) override;
  bool ArmReads(Lane& lane, tlib::client::ReadsFds& fds) override;
  void DisarmReads(Lane& lane) override;
  void DropReads(Lane& lane) override;
  Status Write(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data, WriteFlags flags) override;
  Result<uint64_t> Copy(Lane& lane, const FileCopy& copy) override;
  Status Flush(Lane& lane, OpenFile* file, uint64_t owner) override;
  PageUse pages(const OpenFile* file) const override { return file->pages; }
  Status CachePages(Lane& lane, OpenFile* file) override;
  bool MayCachePages(const OpenFile* file) const override {
    return kernel_cache_ == nullptr || file->cache->pages().held();
  }
  void BeginCachedRead(const OpenFile* file, uint64_t offset, size_t size) override {
    file->cache->stores().Reading(offset, size);
    if (file->MayMap() && !file->cache->mapped()) {
      file->cache->mapped() = true;
    }
  }
  void EndCachedRead(const OpenFile* file, uint64_t offset, size_t size, std::span<const std::byte> bytes) override {
    file->cache->stores().HasRead(offset, size, bytes);
  }
  bool MayBeMapped(const OpenFile* file) const override { return file->cache->mappable() > 0; }
  bool IsMapped(const OpenFile* file) const override { return file->cache->mapped(); }
  uint64_t number_generation(const OpenFile* file) const override { return file->cache->number_generation(); }
  bool DropsPages(const OpenFile* file) const override { return file->cache->pages().dropping(); }
  void AwaitDropped(const OpenFile* file) override;
  Status Sync(Lane& lane, OpenFile* file, bool data_only) override;
  Status SyncDirectory(Lane& lane, uint64_t ino) override;
  void Release(Lane& lane, OpenFile* file) override;
  Status Lock(Lane& lane, OpenFile* file, const FileLock& lock, LockSleep* sleep) override;
  Result<std::optional<FileLock>> TestLock(Lane& lane, OpenFile* file, const FileLock& lock, LockSleep* sleep) override;
  Result<uint64_t> Seek(Lane& lane, OpenFile* file, uint64_t offset, int whence) override;
  Status Allocate(Lane& lane, OpenFile* file, int mode, uint64_t offset, uint64_t length) override;
  Status SetXattr(Lane& lane, uint64_t ino, std::string_view name, std::span<const std::byte> value, int flags,
                  bool outside_group) override;
  Result<std::vector<std::byte>> GetXattr(Lane& lane, uint64_t ino, std::string_view name) override;
  Result<std::vector<std::string>> ListXattr(Lane& lane, uint64_t ino) override;
  Status RemoveXattr(Lane& lane, uint64_t ino, std::string_view name) override;
  Result<FileSystemStatus> StatFs(Lane& lane, uint64_t ino) override;
  void MoveAccessTimes(AccessTimes which) override {
    moves_times_.store(which.files, std::memory_order_relaxed);
    moves_directory_times_.store(which.files && which.directories, std::memory_order_relaxed);
  }
  bool AwaitsServerForWrites() const override { return link_->waiting() && first_writes_.posted() > 0; }
  uint64_t AwaitServerForWrites(const std::function<bool()>& ends) override;
  uint64_t lost_writes() const override { return first_writes_.lost(); }
  void Abandon(const std::string& why) override;
  std::string transport() const override { return link_->transport(); }
  std::vector<MetricValue> Metrics() const override;

 private:
  VolumeClient(const MountOptions& options, KernelCache* cache);

  // ServerLink::Listener
  Result<std::vector<std::byte>> HandleCallback(uint64_t generation, uint16_t opcode,
                                                std::span<const std::byte> body) override;
  void AwaitDropped(const OpenFile* file, std::chrono::milliseconds patience) EXCLUDES(dropping_mutex_);
  void AwaitDropOf(Lane& lane, const OpenFile& file);
  void BeginGeneration(uint64_t generation) override;
  Result<ServerLink::Resumption> Resume(tlib::client::Channel& channel, uint64_t generation) override;
  void WritesLost(uint64_t generation) override;
  void Resumed(tlib::client::Channel& channel, uint64_t generation) override;
  uint64_t GiveUp() override;

  using CallReply = ServerLink::Reply;
  static constexpr bool kOnce = true;
  // A metadata call: counted and without bulk bytes, or with some. `once`: its effect must not happen twice.
  Result<CallReply> Call(Lane& lane, Opcode opcode, std::span<const std::byte> body, std::span<std::byte> in = {},
                         std::span<std::byte> out = {}, bool once = false);
  // The reply to the lane's last request has granted attributes of the directory for so long.
  void RenewNames(Lane& lane, uint64_t directory, uint32_t granted_ms);
  Status ChangeXattr(Lane& lane, Opcode opcode, uint64_t ino, std::span<const std::byte> body, std::span<std::byte> in);
  // What changes `directory` and returns what it made there.
  Result<Attributes> CallForMade(Lane& lane, Opcode opcode, uint64_t directory, std::string_view name,
                                 std::span<const std::byte> body, std::span<std::byte> in = {});
  Status CallToRename(Lane& lane, const wire::RenameT& body);
  Status CallToRemove(Lane& lane, Opcode opcode, uint64_t directory, std::string_view name,
                      std::span<const std::byte> body);
  // Of a name in `directory`. One that was given up may still be carried out, and nobody recalls that from this mount:
  // its kernel drops both when the late reply comes.
  void AfterFailedChange(Lane& lane, const Status& status, uint64_t directory, std::string_view name);
  void DropOwn(uint64_t directory, const std::string& name) EXCLUDES(invalidator_mutex_);
  // The work of having the kernel drop what is recalled; true: it has.
  std::function<bool()> DropOf(std::shared_ptr<const wire::RecallT> recalled);
  Result<Attributes> TakeAttributes(Lane& lane, Opcode opcode, std::span<const std::byte> reply,
                                    DirectoryChanges::Change* change, uint64_t directory);
  // ENOENT, too, can come with a grant.
  Result<Attributes> CallForAttributes(Lane& lane, Opcode opcode, std::span<const std::byte> body,
                                       std::span<std::byte> in = {}, bool once = false);
  bool CountsAsAccess(const OpenFile& file) const { return moves_times() && (file.flags & O_NOATIME) == 0; }
  bool moves_times() const { return moves_times_.load(std::memory_order_relaxed); }
  bool MayPostFirst(int flags) const { return caches() && (flags & (O_APPEND | O_DIRECT | O_SYNC | O_DSYNC)) == 0; }
  bool caches() const { return kernel_cache_ != nullptr && options_.grants; }
  static VolumeLane& Of(Lane& lane) { return static_cast<VolumeLane&>(lane); }
  // EIO when the file was lost with its session.
  static Status CheckUsable(const OpenFile* file);
  // Whether the kernel should keep pages of what is to be opened.
  bool WantsPages(uint64_t ino, int flags);
  // The handle of what a request has made and opened.
  Result<std::pair<Attributes, OpenFile*>> TakeMade(Lane& lane, const Attributes& attributes, int flags);
  // Counts an open file, and sees to it that the session of now has it open.
  Status CountOpen(Lane& lane, uint64_t ino, const std::shared_ptr<InodeCache>& cache);
  // Copies `value` to where the server can read it from. E2BIG.
  static Result<std::span<std::byte>> ToBuffer(Lane& lane, std::span<const std::byte> value);

  bool TryOneSided(Lane& lane, OpenFile* file, uint64_t offset, size_t size, Result<std::span<const std::byte>>& done);
  // Into buffer(), from `at` on.
  Result<std::span<const std::byte>> ReadByServer(Lane& lane, OpenFile* file, uint64_t offset, size_t size,
                                                  size_t at = 0, bool counts_as_access = true);
  // As Read, for this client itself: not counted, and no access.
  Result<std::span<const std::byte>> ReadOwn(Lane& lane, OpenFile* file, uint64_t offset, size_t size);

  using Bytes = std::span<const std::byte>;
  // Counts a read that has ended. `begin`: the clock's start: it is not timed.
  void NoteRead(const Result<Bytes>& done, std::chrono::steady_clock::time_point begin);
  // Begins a read, anew where it was void. Nothing: it is under way.
  Result<std::optional<Bytes>> Begin(VolumeLane& lane, ReadUnderWay& read);
  // Begins what is void anew, until one of them is done. EINTR.
  Status BeginVoid(VolumeLane& lane, std::vector<ReadDone>& done);
  // Ends what has come and is valid. `wait`: until something has come. EINTR.
  Status TakePieces(VolumeLane& lane, std::vector<ReadDone>& done, bool wait);
  // Of the void ones: those that have been under way for as long as a call may take.
  void EndLate(VolumeLane& lane, uint64_t voids, std::vector<ReadDone>& done);
  // The channel has failed, and dropped all of them; its pieces are those that were late, `places` where they were.
  void AfterFailedReads(VolumeLane& lane, const Status& why, const std::byte* places, std::vector<ReadDone>& done);
  Status EndReads(Lane& lane, std::vector<ReadDone>& done, bool wait);
  // Ends the read of that index.
  void EndRead(VolumeLane& lane, size_t index, Result<Bytes> result, std::vector<ReadDone>& done);
  // Answers a write before the server has it, if that may be: see first_writes.h.
  bool PostFirst(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data, const WriteFlags& how);
  // What was posted and not answered, in the session that is being resumed.
  Status ResendFirst(tlib::client::Channel& channel);
  Status ResendOne(tlib::client::Channel& channel, const FirstWrites::Unanswered& write);
  class PageChange;  // page_change.h
  // What was stored through a mapping, of pages that the kernel writes back.
  Status WriteStored(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data, uint32_t flags);
  Status WriteChunk(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data, uint32_t flags);
  struct CopiedPart {
    uint64_t bytes = 0;
    uint64_t available = 0;
  };
  // What one request copies of `copy`, of which `done` bytes are copied.
  Result<CopiedPart> CopyPart(Lane& lane, const FileCopy& copy, uint64_t done, uint64_t length);
  // A call that may change the map failed. When it did so without an answer, it may still be carried out, and no map is
  // trusted until its answer has come.
  void AfterFailure(Lane& lane, const Status& status, const std::shared_ptr<InodeCache>& cache);
  // The same for an open or create (which has no cache yet); should it still succeed, the handle that nobody will use
  // is released.
  // `then` (may be null): when the late reply to what was given up has come.
  void AfterFailedOpen(Lane& lane, const Status& status, const std::shared_ptr<InodeCache>& cache,
                       std::function<void()> then = nullptr);
  struct Closed {
    uint64_t ino = 0;
    uint64_t dropped = 0;
    uint64_t generation = 0;  // of the session that has it open
    // Whose locks end with it.
    std::vector<uint64_t> record_owners{};
    std::vector<uint64_t> flock_owners{};
    FirstWrite first = FirstWrite::kUnsaid;
    bool stays_open = false;  // for other handles: only the locks end
  };
  enum class Closing : uint8_t { kPosted, kWaits };
  void SendRelease(Lane& lane, const Closed& closed, Closing how);
  // An open at the server ends. Whose locks end with it, and its first write, are in `closed` already.
  void CloseOne(Lane& lane, Closed closed, const std::shared_ptr<InodeCache>& cache, Closing how = Closing::kPosted);
  // The first handle of what the server has opened. `leased`: with a lease of its pages. `known`: the kernel has none
  // of other contents. `number`: of the file's DroppingOpens.
  OpenFile* FirstOf(const SharedOpens::Open& open, const wire::Attributes& attributes, bool leased, bool known,
                    uint64_t number);
  // A handle of what is open at the server still; null: the server has to be asked.
  OpenFile* OpenAgain(Lane& lane, uint64_t ino, int flags);
  SharedOpen::Since SinceNow(InodeCache& cache) const;
  // Nothing has been heard of it since, nor done to it.
  bool IsAsOpened(const SharedOpen& open) const;
  // The kernel uses that handle, so the open is behind it.
  static void NoteUse(const OpenFile& file) {
    if (file.pages == PageUse::kFresh) {
      file.cache->dropping_opens().Passed(file.dropping_open);
    }
  }
  // This client is about to change the inode, and has.
  class OwnChange {
   public:
    OwnChange(VolumeClient& client, Lane& lane, uint64_t ino) : client_(client), ino_(ino) {
      client_.NoteNews(ino_);
      client_.Unshare(lane, ino_, Closing::kPosted);
    }
    ~OwnChange() { client_.NoteNews(ino_); }
    OwnChange(const OwnChange&) = delete;
    OwnChange& operator=(const OwnChange&) = delete;

   private:
    VolumeClient& client_;
    const uint64_t ino_;
  };
  void NoteNews(uint64_t ino);
  // Who opens it next asks the server.
  void Unshare(Lane& lane, uint64_t ino, Closing how);
  // Those that a change of names has changed; of none it is not known which.
  void Unshare(Lane& lane, const std::vector<uint64_t>& changed);
  // The same by the reply to such a change, if that was made or may yet be.
  void UnshareChanged(Lane& lane, const Result<CallReply>& reply);
  // The same by a thread that can wait for nothing.
  void EndSharing(uint64_t ino) {
    NoteNews(ino);
    if (shared_ != nullptr) {
      shared_->End(ino);
    }
  }
  static std::vector<std::byte> EncodeRelease(const Closed& closed);
  // locks.cc
  class LockWaiting;
  // Until the session that has done it is the one that is.
  Result<wire::LockState> AskForLock(Lane& lane, const OpenFile& file, const FileLock& lock, uint64_t ticket,
                                     HeldLocks::Asking& asking);
  Result<wire::LockState> AskOnce(Lane& lane, const OpenFile& file, const FileLock& lock, uint64_t ticket,
                                  HeldLocks::Asking& asking);
  // Nothing of the request waits at the server any more when it returns `why`, or that it was granted after all.
  Status EndWait(Lane& lane, const OpenFile& file, const FileLock& lock, uint64_t ticket, HeldLocks::Asking& asking,
                 const Status& why);
  void LockGranted(uint64_t ticket) EXCLUDES(lock_waits_mutex_);
  // Those that end with the handle; held_locks_ is to be told when they have.
  std::vector<LockKey> TakeLocks(OpenFile& file, Closed& closed);
  Result<std::vector<uint64_t>> ReclaimLocks(tlib::client::Channel& channel);
  // Handles of those files fail from now on.
  void LoseUnlocked(const std::vector<uint64_t>& unlocked);
  void DeferRelease(const Closed& closed) EXCLUDES(deferred_mutex_);
  // Has the kernel drop everything that any session has granted. Returns when it has.
  void DropGranted();
  void SendDeferred(Lane& lane) EXCLUDES(deferred_mutex_);

  const MountOptions options_;
  // Relaxed: calls that begin after a change go by it.
  std::atomic<bool> moves_times_{options_.access_times.files};
  std::atomic<bool> moves_directory_times_{options_.access_times.files && options_.access_times.directories};
  KernelCache* const kernel_cache_;
  MetricsRegistry metrics_;
  Counter& reads_;
  Counter& read_bytes_;
  Counter& server_reads_;
  Counter& writes_;
  Counter& write_bytes_;
  Counter& copies_;
  Counter& copied_bytes_;
  Counter& metadata_;
  Counter& known_absent_;
  Counter& writes_posted_;
  Counter& opens_again_;
  Counter& revocations_;
  Counter& kernel_recalls_;
  Histogram& read_time_;  // of a sample
  Histogram& write_time_;
  Histogram& metadata_time_;
  InodeCacheTable inodes_;
  KnownPages known_pages_;
  KnownNames known_names_;
  BareInodes bare_inodes_;
  FirstWrites first_writes_;
  std::unique_ptr<VolumeLane> closing_lane_;  // of the thread of shared_; null, as that, where nothing is cached
  std::unique_ptr<SharedOpens> shared_;
  std::atomic<uint64_t> all_news_{0};
  KeptByKernel kept_;
  DirectoryChanges& changes_ = kept_.changes();
  std::vector<InodeCacheTable::OpenInode> to_reopen_;  // the link's thread only
  uint64_t files_lost_ = 0;                            // likewise, since a session last stood
  // Releases that could not be sent when they were due; any lane's next call takes them along.
  std::atomic<bool> has_deferred_{false};  // relaxed: a hint
  Mutex deferred_mutex_;
  std::vector<Closed> deferred_ GUARDED_BY(deferred_mutex_);
  HeldLocks held_locks_;
  std::atomic<uint64_t> begun_{0};  // the last generation; sequentially consistent
  Mutex lock_waits_mutex_;
  uint64_t last_lock_ticket_ GUARDED_BY(lock_waits_mutex_) = 0;
  std::unordered_map<uint64_t, int> lock_waits_ GUARDED_BY(lock_waits_mutex_);  // ticket -> what wakes who waits
  Mutex dropping_mutex_;
  CondVar dropped_;
  Mutex invalidator_mutex_;
  // They have lanes of the link.
  std::unique_ptr<Invalidator> pages_ GUARDED_BY(invalidator_mutex_);
  std::unique_ptr<Invalidator> names_ GUARDED_BY(invalidator_mutex_);  // attributes, too
  std::unique_ptr<ServerLink> link_;                                   // ended first: it calls this object
  std::unique_ptr<VolumeLane> grants_lane_;  // asks for grants, and gives them back; before the link
};

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
//
// A volume as a client sees it: POSIX operations on inodes, for mount/ and for programs that use the library without
// FUSE. Path walking and permission checks are the caller's (FUSE: the kernel's).
//
// What is cached here: the size and extents of inodes that this session holds a grant for, until the server revokes it.
// What a kernel may cache: attributes and directory entries, as Lane::keep says.
// So a read of resident pages is one extent look-up and one-sided READs, on the calling thread, with no server CPU.
//
// Thread-safety: any thread, each with a Lane of its own (its queue pairs and buffer). A Lane: one thread at a time.
// Ownership:     lanes and open files are closed before the file system. Open files are closed by Release.
// A lost server: calls wait until it is back, for at most SessionOptions::reconnect, and then go on as if nothing had
// happened, each carried out once; later they fail with EIO until a new connection succeeds. Then files that were open
// work again; those that have been removed, or had locks, fail with EIO for ever.
//
// Errors:        errno as the system call would have it; EIO: the server is lost, too; ETIMEDOUT: it is there and does
//                not answer; ENOTCONN: Abandon was called; EINTR: the lane's interruption was requested. After the last
//                two the operation may or may not be carried out, or still be; the lane can be used at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/interruption.h"
#include "base/metrics.h"
#include "base/result.h"
#include "fs/lock_ranges.h"
#include "fs/types.h"
#include "tlib/client/session.h"

namespace termfs::driver {
class Nic;  // passed on to tlib; nothing here looks inside
}

namespace termfs::fs::client {

// Where a mount tells its kernel that something changed elsewhere. Called on a thread of its own, one call at a time;
// may wait for the kernel, also while that waits for requests of the same mount. When it returns, the server
// acknowledges the change to whoever made it. Errors are the implementation's to log.
class KernelCache {
 public:
  virtual ~KernelCache() = default;
  // length 0: to the end. Drops cached pages and attributes. False: not in time, it may have some still.
  virtual bool InvalidateInode(uint64_t ino, uint64_t offset, uint64_t length) = 0;
  // `recalled`: when it was; what was about to be given later is not given.
  virtual void InvalidateAttributes(uint64_t ino, std::chrono::steady_clock::time_point recalled) = 0;
  // The file has become smaller: when this returns, reads through the kernel's page cache go by its size of now, or
  // after a moment, if that cannot be had.
  virtual void RefreshSize(uint64_t ino, uint64_t generation) { static_cast<void>(ino), static_cast<void>(generation); }
  // Whether the name is there or not. Calls of this and of InvalidateAttributes come on another thread than those of
  // InvalidateInode, so that neither waits for the other. False: the kernel may go on using it, so the server is not
  // told; it waits until the time of what it granted is over.
  [[nodiscard]] virtual bool InvalidateEntry(uint64_t parent, std::string_view name) = 0;
  // The server is lost: when this returns, no entry is used any more that any session granted. May wait for the time of
  // entries to end, never for a request.
  virtual void ServerLost() = 0;
  // Somebody is about to look whether anything was recalled, and if not, to give the kernel attributes of `ino` (0:
  // none) and an entry of `directory` (0: of any) for so long (0: none) to keep. On any thread. False: no entry is to
  // be given.
  [[nodiscard]] virtual bool AboutToGive(uint64_t ino, uint64_t directory, Nanoseconds entry) {
    static_cast<void>(ino);
    static_cast<void>(directory);
    static_cast<void>(entry);
    return true;
  }
};

// For how long, in seconds, a kernel may use what the last operation on a lane returned without asking again. It ends
// before that when a KernelCache is told so.
struct Keep {
  double entry = 0;  // the name, also that it is not there (Lookup: ENOENT)
  double attributes = 0;
};

struct Caller {
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t umask = 0;  // counts where the directory has no default access control list
};

// Which access times move with accesses, as relatime has it.
struct AccessTimes {
  bool files = true;
  bool directories = true;  // where those of files do
};

struct MountOptions {
  tlib::client::SessionOptions session;
  uint32_t max_io_bytes = 1U << 20;  // largest read or write; sizes the lanes' buffers
  AccessTimes access_times;
  bool late_lanes = false;  // a lane has no queue pair and no registered memory before its first request
  bool grants = true;       // ask for attributes and entries that the kernel may keep; without a cache: no
};

// Who lends its thread to a wait for a server that is gone, which may last as long as MountOptions::session.reconnect;
// called on that thread.
class ServerWait {
 public:
  virtual ~ServerWait() = default;
  virtual void Begin() = 0;
  virtual void End() = 0;
};

// One thread's way to the servers. Reads deliver into buffer(), writes may be sent from it without a copy; after an
// error it is another one. The interruption's owner is the lane's thread.
class Lane {
 public:
  virtual ~Lane() = default;
  virtual std::span<std::byte> buffer() = 0;
  // Grows with each other buffer, whose address may be that of a former one; and may when it is the same.
  virtual uint64_t buffer_number() { return 0; }
  // The part of buffer() that was asked for by OpenLane. Only reads under way, and who asked for it, use it.
  virtual std::span<std::byte> places() = 0;
  virtual Interruption& interruption() = 0;
  // `wait` is told of each wait from now on, and outlives the lane.
  virtual void TellOfWaits(ServerWait* wait) { static_cast<void>(wait); }
  // Ask right before the answer goes to the kernel. `attributes`: those that go with it, if any.
  virtual Keep keep(const Attributes* attributes) const {
    static_cast<void>(attributes);
    return {};
  }
};

class OpenFile;  // a file handle; created by Open and Create, ended by Release

// What a kernel may do with pages of a file that was opened.
enum class PageUse : uint8_t {
  kNone,   // every read and write comes here
  kFresh,  // it keeps what it reads from now on
  kKept,   // and what it has of the file, which is what it would read
};

// A read of several in one lane: as Read's, but it is delivered into places(), from `place` on.
struct FileRead {
  OpenFile* file = nullptr;
  uint64_t offset = 0;
  size_t size = 0;
  size_t place = 0;
  uint64_t token = 0;  // the caller's name for it
};

struct ReadDone {
  uint64_t token = 0;
  Result<std::span<const std::byte>> data;  // as Read's
};

struct WriteFlags {
  // The file loses its set-id bits as Linux clears them when an ordinary user writes (the set-group-id bit only where
  // the group may execute).
  bool clears_privileges = false;
  // Whether the bytes go to the end of the file, wherever that is; absent: as the file was opened.
  std::optional<bool> append = std::nullopt;
  // The kernel writes back pages of its cache, as it got them by a Read after CachePages but for stores through
  // mappings: only these are written, and none behind the end of the file.
  bool cached = false;
};

// Bytes of one file to another, or elsewhere in the same.
struct FileCopy {
  OpenFile* from = nullptr;
  uint64_t from_offset = 0;
  OpenFile* to = nullptr;
  uint64_t to_offset = 0;
  uint64_t length = 0;
  bool clears_privileges = false;  // as WriteFlags'
  // Whether `to` appends, which no copy may be made to; absent: as the file was opened.
  std::optional<bool> append = std::nullopt;
};

struct SetAttributes {  // what is absent stays
  std::optional<uint32_t> mode;
  std::optional<uint32_t> uid;
  std::optional<uint32_t> gid;
  std::optional<uint64_t> size;
  std::optional<int64_t> atime;
  std::optional<int64_t> mtime;
  bool atime_now = false;  // by the server's clock
  bool mtime_now = false;
  // The set-id bits go, of `mode` or of what it is then: as WriteFlags', whatever type it is.
  bool clears_privileges = false;
  bool clears_group_id = false;  // so does the set-group-id bit alone, also where the group may not execute
};

// A lock of a file: of bytes, as fcntl has it, or of the whole, as flock has it. The two do not see each other.
struct FileLock {
  bool flock = false;
  uint64_t owner = 0;  // process or open file, by the kernel's number; of flock it is always the handle
  LockType type = LockType::kRead;
  uint64_t start = 0;
  uint64_t end = kLastLockByte;  // the last byte
  uint32_t pid = 0;              // who asks, for those who test
  bool wait = false;
};

// Who lends its thread to a wait for a lock, which may last for any time; called on that thread.
class LockSleep {
 public:
  virtual ~LockSleep() = default;
  // Once, before the first Begin. An error ends the wait with it.
  virtual Status Prepare() = 0;
  // Between the two the lane's interruption may be requested for any signal.
  virtual void Begin() = 0;
  virtual void End() = 0;
};

using tlib::ServerAddress;

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // `address`: the volume's directory, or a host and port. `cache` may be null; it outlives the file system.
  static Result<std::unique_ptr<FileSystem>> Connect(driver::Nic& nic, const ServerAddress& address,
                                                     const MountOptions& options, KernelCache* cache);
  // `place_bytes`: of places(), for BeginRead. Waits for no server that is gone: the lane's first request does.
  virtual Result<std::unique_ptr<Lane>> OpenLane(size_t place_bytes = 0) = 0;
  // The same, for BeginRead only, which waits for nobody in that lane: what the map says and the client can begin at
  // once is read; EAGAIN, there or as the result, where it takes more: the server, or room among other reads. Opened by
  // the thread that uses it; ENOTCONN: there is no session now.
  virtual Result<std::unique_ptr<Lane>> OpenLaneByMap(size_t place_bytes) = 0;

  // Namespace.
  virtual Result<Attributes> Lookup(Lane& lane, uint64_t parent, std::string_view name) = 0;
  virtual Result<Attributes> GetAttributes(Lane& lane, uint64_t ino) = 0;
  // `file`: the handle through which it is asked (ftruncate), or null.
  virtual Result<Attributes> Set(Lane& lane, uint64_t ino, const SetAttributes& what, OpenFile* file) = 0;
  virtual Result<Attributes> MakeDirectory(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                                           uint32_t mode) = 0;
  virtual Result<Attributes> MakeNode(Lane& lane, Caller who, uint64_t parent, std::string_view name, uint32_t mode,
                                      uint32_t rdev) = 0;
  virtual Result<Attributes> Symlink(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                                     std::string_view target) = 0;
  virtual Result<std::string> ReadLink(Lane& lane, uint64_t ino) = 0;
  virtual Result<Attributes> Link(Lane& lane, uint64_t ino, uint64_t new_parent, std::string_view new_name) = 0;
  virtual Status Unlink(Lane& lane, uint64_t parent, std::string_view name) = 0;
  virtual Status RemoveDirectory(Lane& lane, uint64_t parent, std::string_view name) = 0;
  // flags: RENAME_NOREPLACE, RENAME_EXCHANGE of <linux/fs.h>; others are EINVAL.
  virtual Status Rename(Lane& lane, uint64_t parent, std::string_view name, uint64_t new_parent,
                        std::string_view new_name, uint32_t flags) = 0;
  // Rename, which leaves a whiteout under the old name, owned by the caller: a character device 0/0 without
  // permissions, as an upper layer of overlayfs has it. flags: 0 or RENAME_NOREPLACE.
  virtual Status RenameLeavingWhiteout(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                                       uint64_t new_parent, std::string_view new_name, uint32_t flags) = 0;

  // Directories: entries after `cursor` (0: from the start; "." and ".." included), as many as fit `max_bytes` of
  // reply. Empty at the end. `plus`: with attributes.
  virtual Result<std::vector<DirectoryEntry>> ReadDirectory(Lane& lane, uint64_t ino, uint64_t cursor, size_t max_bytes,
                                                            bool plus) = 0;

  // Files. `flags`: as open(2); O_TRUNC is honoured, O_APPEND makes every write atomic at the end of the file. With
  // O_PATH an inode that is no regular file (else EINVAL) stays until Release, also when its last name goes: its
  // attributes and, of a directory, an empty listing.
  virtual Result<OpenFile*> Open(Lane& lane, uint64_t ino, int flags) = 0;
  virtual Result<std::pair<Attributes, OpenFile*>> Create(Lane& lane, Caller who, uint64_t parent,
                                                          std::string_view name, uint32_t mode, int flags) = 0;
  // O_TMPFILE: a regular file without a name, as if it were made in `parent`, open, and gone with its last handle
  // unless Link gives it a name before. With O_EXCL in `flags` that is refused: ENOENT.
  virtual Result<std::pair<Attributes, OpenFile*>> CreateUnnamed(Lane& lane, Caller who, uint64_t parent, uint32_t mode,
                                                                 int flags) = 0;
  // Up to `size` bytes (at most max_io_bytes) from `offset`: a part of lane.buffer(), valid until the lane's next use;
  // shorter only at the end of the file.
  virtual Result<std::span<const std::byte>> Read(Lane& lane, OpenFile* file, uint64_t offset, size_t size) = 0;
  // Of a handle that Open returned. Never more than kNone without a KernelCache.
  virtual PageUse pages(const OpenFile* file) const = 0;
  // Before each Read whose bytes the kernel keeps in its page cache: the KernelCache is told before others change any
  // of the file. Asks the server only where it does not know.
  virtual Status CachePages(Lane& lane, OpenFile* file) = 0;
  // CachePages would not ask the server now.
  virtual bool MayCachePages(const OpenFile* file) const = 0;
  // Around each Read whose bytes the kernel keeps: before it, and right before the kernel gets `bytes` for that range.
  virtual void BeginCachedRead(const OpenFile* file, uint64_t offset, size_t size) {
    static_cast<void>(file), static_cast<void>(offset), static_cast<void>(size);
  }
  virtual void EndCachedRead(const OpenFile* file, uint64_t offset, size_t size, std::span<const std::byte> bytes) {
    static_cast<void>(file), static_cast<void>(offset), static_cast<void>(size), static_cast<void>(bytes);
  }
  // Some handle of this client can be mapped to store to the file; and the kernel has read pages by such a one.
  virtual bool MayBeMapped(const OpenFile* file) const = 0;
  virtual bool IsMapped(const OpenFile* file) const { return MayBeMapped(file); }
  // Of the inode's number: what Attributes::generation says.
  virtual uint64_t number_generation(const OpenFile* file) const = 0;
  // The KernelCache is dropping pages of the file, for somebody who waits to change it.
  virtual bool DropsPages(const OpenFile* file) const = 0;
  // Until it has, but not for ever. Before a reader goes on who holds no lock of a page: those who begin to read while
  // pages are dropped make it begin anew.
  virtual void AwaitDropped(const OpenFile* file) = 0;
  // Begins to read. What is in memory, or no bytes of the file's at all, has been read when it returns: the bytes, as
  // Read's. Nothing: the read is under way, and its result comes from AwaitReads or PollReads, once, whatever else
  // happens in the lane and to the server in the meantime: it is begun again then, and waits for the server as Read
  // does. Its bytes are those of a Read at some moment until then. An error: it is not under way.
  // Other operations may come in between. It waits for others when tlib::kChannelCredits pieces of files are under way,
  // and for the server when this client has no map of the file.
  // REQUIRES: until the result is there the file stays open, and nothing else uses its place. EINVAL: no such place.
  virtual Result<std::optional<std::span<const std::byte>>> BeginRead(Lane& lane, const FileRead& read) = 0;
  // Waits until at least one read under way has ended, if there is any, and appends those that have. Their bytes are
  // valid until the lane's next use. EINTR: the wait was interrupted; the reads are still under way. No other errors.
  virtual Status AwaitReads(Lane& lane, std::vector<ReadDone>& done) = 0;
  // The same without waiting for reads under way, of which there may be none that have ended; but what has to be begun
  // again is.
  virtual Status PollReads(Lane& lane, std::vector<ReadDone>& done) = 0;
  // For waiting together with something else, as Channel::ArmReads: true: before one of `fds` is readable PollReads has
  // nothing to say; false: it may have now. Wait for no longer than SessionOptions::call_timeout. REQUIRES: DisarmReads
  // comes after the wait, before the lane's next use.
  virtual bool ArmReads(Lane& lane, tlib::client::ReadsFds& fds) = 0;
  virtual void DisarmReads(Lane& lane) = 0;
  // What is under way in the lane is not, any more: no result will come, its places are free. The server may still read
  // for it, but not into the lane's buffer, which may be another one.
  virtual void DropReads(Lane& lane) = 0;
  // All of `data` or an error (ENOSPC, EFBIG, EIO); on error part of it may have been written. `data` may lie in
  // lane.buffer(), which saves a copy.
  virtual Status Write(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data,
                       WriteFlags flags) = 0;
  // As copy_file_range(2), within the server; no byte passes through the client. How many were copied: 0 at the end of
  // `from`; fewer than asked for also where that is enough for one call, or what follows failed. Holes stay holes where
  // `to` has none of its own space. Durable when it returns, if `to` was opened with O_SYNC or O_DSYNC. EBADF: `to`
  // appends; EINVAL: the ranges overlap, cut to the end of the file; EOPNOTSUPP: the server does not know how.
  virtual Result<uint64_t> Copy(Lane& lane, const FileCopy& copy) = 0;
  // At close(2): the owner's record locks of the file end.
  virtual Status Flush(Lane& lane, OpenFile* file, uint64_t owner) = 0;
  virtual Status Sync(Lane& lane, OpenFile* file, bool data_only) = 0;
  virtual Status SyncDirectory(Lane& lane, uint64_t ino) = 0;
  // Locks end that were taken by this handle for owners that were not flushed (those of open files), and its flock.
  // Where there are none it does not wait for the server.
  virtual void Release(Lane& lane, OpenFile* file) = 0;
  // Holds against every client of the volume until it is unlocked, as file_system.h says of Flush and Release, or the
  // client ends. EBUSY: another has it locked, and lock.wait is not set; EDEADLK; EINTR: interrupted in the wait, it
  // is not locked; ENOLCK: too many. `sleep`: null: nothing waits; else also what does not wait for locks may have to
  // wait for other clients to come back to a server that was started anew.
  virtual Status Lock(Lane& lane, OpenFile* file, const FileLock& lock, LockSleep* sleep) = 0;
  // One that is in the way of `lock`; nothing when it could be had. EBUSY: not known yet, and `sleep` is null; EINTR.
  virtual Result<std::optional<FileLock>> TestLock(Lane& lane, OpenFile* file, const FileLock& lock,
                                                   LockSleep* sleep) = 0;
  // SEEK_DATA and SEEK_HOLE.
  virtual Result<uint64_t> Seek(Lane& lane, OpenFile* file, uint64_t offset, int whence) = 0;
  // mode as fallocate(2); EOPNOTSUPP for what cannot be done.
  virtual Status Allocate(Lane& lane, OpenFile* file, int mode, uint64_t offset, uint64_t length) = 0;

  // Extended attributes. flags: XATTR_CREATE, XATTR_REPLACE. Access control lists are among them, and what they say
  // is in the mode at the same time. outside_group: who sets one may not keep the set-group-id bit.
  virtual Status SetXattr(Lane& lane, uint64_t ino, std::string_view name, std::span<const std::byte> value, int flags,
                          bool outside_group) = 0;
  virtual Result<std::vector<std::byte>> GetXattr(Lane& lane, uint64_t ino, std::string_view name) = 0;
  virtual Result<std::vector<std::string>> ListXattr(Lane& lane, uint64_t ino) = 0;
  virtual Status RemoveXattr(Lane& lane, uint64_t ino, std::string_view name) = 0;

  // As seen from an inode: within the limits of its quota.
  virtual Result<FileSystemStatus> StatFs(Lane& lane, uint64_t ino) = 0;

  // From now on, in the place of MountOptions::access_times: after a remount. A file stays as it was opened. Any
  // thread.
  virtual void MoveAccessTimes(AccessTimes which) { static_cast<void>(which); }

  // The server has gone, and is waited for, while writes have returned that it has not taken. Any thread.
  virtual bool AwaitsServerForWrites() const { return false; }
  // At the end of a mount: until there is none such any more, or `ends` says so, which is asked all the time. How many
  // writes that had returned are lost, of the whole mount.
  virtual uint64_t AwaitServerForWrites(const std::function<bool()>& ends) {
    static_cast<void>(ends);
    return 0;
  }
  virtual uint64_t lost_writes() const { return 0; }

  // Every operation fails with ENOTCONN from now on, and those that wait for the server return. For the end of a mount
  // whose server does not answer. Any thread.
  virtual void Abandon(const std::string& why) = 0;

  virtual std::string transport() const = 0;
  // This mount's tlib counters (tlib/client/session.h) and fs_reads_total, fs_read_bytes_total, fs_writes_total,
  // fs_writes_posted_total (answered before the server had them),
  // fs_write_bytes_total, fs_copies_total, fs_copied_bytes_total, fs_metadata_total, fs_revocations_total; histograms
  // fs_read (of a sample) and fs_write.
  virtual std::vector<MetricValue> Metrics() const = 0;
};

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
//
// MemoryFileSystem: fs::client::FileSystem without a server, for tests of the FUSE front end and to measure it alone.
// Several of them on one MemoryVolume behave as mounts of one volume: what one changes, the others' kernels are told.
//
// Thread-safety: any thread.
// Ownership:     the volume outlives its file systems; they outlive their open files.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "fs/client/file_system.h"
#include "fs/server/locks.h"

namespace termfs::fakes {

// Set on any inode, this extended attribute makes every later operation answer ENOTCONN, as when the server is lost.
// Reading this attribute waits for an answer that never comes, until it is interrupted or the server is given up.
inline constexpr char kStallXattr[] = "user.fake.stall";
inline constexpr char kLoseServerXattr[] = "user.fake.lose-server";

struct MemoryNode {
  fs::Attributes attributes;
  uint64_t parent = 0;                                           // of directories
  std::map<uint64_t, std::pair<std::string, uint64_t>> entries;  // cursor → name, inode
  std::unordered_map<std::string, uint64_t> cursors;             // name → cursor
  uint64_t next_cursor = 3;                                      // 1 and 2 are "." and ".."
  std::vector<std::byte> data;
  std::string target;  // of a symbolic link
  std::map<std::string, std::vector<std::byte>> xattrs;
  uint64_t opens = 0;
};

// What all mounts share.
struct MemoryVolume {
  explicit MemoryVolume(uint64_t capacity_bytes);
  SharedMutex mutex;
  std::unordered_map<uint64_t, MemoryNode> nodes GUARDED_BY(mutex);
  uint64_t next_ino GUARDED_BY(mutex) = fs::kRootInode + 1;
  uint64_t used_bytes GUARDED_BY(mutex) = 0;
  std::set<fs::client::KernelCache*> caches GUARDED_BY(mutex);
  fs::server::LockTable locks GUARDED_BY(mutex);
  const uint64_t capacity_bytes;
};

class MemoryFileSystem : public fs::client::FileSystem {
 public:
  using Attributes = fs::Attributes;
  using Caller = fs::client::Caller;
  using Lane = fs::client::Lane;
  using OpenFile = fs::client::OpenFile;
  using SetAttributes = fs::client::SetAttributes;

  MemoryFileSystem(MemoryVolume& volume, fs::client::KernelCache* cache);
  ~MemoryFileSystem() override;

  Result<std::unique_ptr<Lane>> OpenLane(size_t place_bytes) override;
  Result<std::unique_ptr<Lane>> OpenLaneByMap(size_t place_bytes) override { return OpenLane(place_bytes); }
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
  Result<std::vector<fs::DirectoryEntry>> ReadDirectory(Lane& lane, uint64_t ino, uint64_t cursor, size_t max_bytes,
                                                        bool plus) override;
  Result<OpenFile*> Open(Lane& lane, uint64_t ino, int flags) override;
  Result<std::pair<Attributes, OpenFile*>> Create(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                                                  uint32_t mode, int flags) override;
  Result<std::pair<Attributes, OpenFile*>> CreateUnnamed(Lane& lane, Caller who, uint64_t parent, uint32_t mode,
                                                         int flags) override;
  Result<std::span<const std::byte>> Read(Lane& lane, OpenFile* file, uint64_t offset, size_t size) override;
  // Nothing is ever under way.
  Result<std::optional<std::span<const std::byte>>> BeginRead(Lane& lane, const fs::client::FileRead& read) override;
  Status AwaitReads(Lane&, std::vector<fs::client::ReadDone>&) override { return Status::Ok(); }
  Status PollReads(Lane&, std::vector<fs::client::ReadDone>&) override { return Status::Ok(); }
  bool ArmReads(Lane&, tlib::client::ReadsFds& fds) override {
    fds.fill(-1);
    return true;
  }
  void DisarmReads(Lane&) override {}
  void DropReads(Lane&) override {}
  Status Write(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data,
               fs::client::WriteFlags flags) override;
  Result<uint64_t> Copy(Lane& lane, const fs::client::FileCopy& copy) override;
  Status Flush(Lane& lane, OpenFile* file, uint64_t owner) override;
  fs::client::PageUse pages(const OpenFile*) const override { return fs::client::PageUse::kNone; }
  bool MayBeMapped(const OpenFile*) const override { return false; }
  uint64_t number_generation(const OpenFile*) const override { return 0; }
  Status CachePages(Lane&, OpenFile*) override { return Status::Ok(); }
  bool MayCachePages(const OpenFile*) const override { return true; }
  bool DropsPages(const OpenFile*) const override { return false; }
  void AwaitDropped(const OpenFile*) override {}
  Status Sync(Lane& lane, OpenFile* file, bool data_only) override;
  Status SyncDirectory(Lane& lane, uint64_t ino) override;
  void Release(Lane& lane, OpenFile* file) override;
  // One that waits looks again now and then.
  Status Lock(Lane& lane, OpenFile* file, const fs::client::FileLock& lock, fs::client::LockSleep* sleep) override;
  Result<std::optional<fs::client::FileLock>> TestLock(Lane& lane, OpenFile* file, const fs::client::FileLock& lock,
                                                       fs::client::LockSleep* sleep) override;
  Result<uint64_t> Seek(Lane& lane, OpenFile* file, uint64_t offset, int whence) override;
  Status Allocate(Lane& lane, OpenFile* file, int mode, uint64_t offset, uint64_t length) override;
  Status SetXattr(Lane& lane, uint64_t ino, std::string_view name, std::span<const std::byte> value, int flags,
                  bool outside_group) override;
  Result<std::vector<std::byte>> GetXattr(Lane& lane, uint64_t ino, std::string_view name) override;
  Result<std::vector<std::string>> ListXattr(Lane& lane, uint64_t ino) override;
  Status RemoveXattr(Lane& lane, uint64_t ino, std::string_view name) override;
  Result<fs::FileSystemStatus> StatFs(Lane& lane, uint64_t ino) override;
  void Abandon(const std::string&) override { lost_.store(true); }
  std::string transport() const override { return "memory"; }
  // fs_reads_total, syncs_total, open_files.
  std::vector<MetricValue> Metrics() const override;

  uint64_t open_files() const { return open_files_.load(); }

 private:
  Status CheckServer() const;
  Result<size_t> ReadInto(OpenFile* file, uint64_t offset, std::span<std::byte> to) EXCLUDES(volume_.mutex);
  Status Stall(Lane& lane);
  fs::server::LockRequest RequestOf(OpenFile* file, const fs::client::FileLock& lock) const;
  Result<MemoryNode*> Find(uint64_t ino) REQUIRES_SHARED(volume_.mutex);
  Result<MemoryNode*> FindDirectory(uint64_t ino) REQUIRES_SHARED(volume_.mutex);
  Result<MemoryNode*> FindEntry(uint64_t parent, std::string_view name) REQUIRES_SHARED(volume_.mutex);
  Result<MemoryNode*> Make(Caller who, uint64_t parent, std::string_view name, uint32_t mode) REQUIRES(volume_.mutex);
  void AddEntry(MemoryNode& directory, std::string_view name, uint64_t ino) REQUIRES(volume_.mutex);
  void RemoveEntry(MemoryNode& directory, std::string_view name) REQUIRES(volume_.mutex);
  void DropLink(MemoryNode& node) REQUIRES(volume_.mutex);
  void DropIfUnused(MemoryNode& node) REQUIRES(volume_.mutex);
  Status Resize(MemoryNode& node, uint64_t size) REQUIRES(volume_.mutex);
  Status Replace(MemoryNode& directory, std::string_view name, const MemoryNode& by) REQUIRES(volume_.mutex);
  void TellOthers(uint64_t ino) EXCLUDES(volume_.mutex);

  MemoryVolume& volume_;
  fs::client::KernelCache* const cache_;
  std::atomic<bool> lost_{false};
  std::atomic<uint64_t> syncs_{0};
  std::atomic<uint64_t> open_files_{0};
  Counter reads_;
};

}  // namespace termfs::fakes

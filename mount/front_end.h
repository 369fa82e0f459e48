// SPDX-License-Identifier: Apache-2.0
//
// FrontEnd: a FileSystem behind FUSE callbacks. The node id of an inode is its number, so there is no table of inodes;
// what is kept is the set of open files, to release those the kernel does not when a busy mount goes away, and the
// special files (fifos, sockets, devices) that the kernel knows: it opens those by itself, so they are held open from
// the first look-up to the FORGET of the last. Of directories that it knows the attributes are kept, for when they have
// been removed.
//
// Thread-safety: the callbacks run on FuseServer's threads, each with a FrontEndThread (its lane) of its own.
// Ownership:     the file system outlives the front end; lanes belong to the threads.
#pragma once

#include <fuse_lowlevel.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/result.h"
#include "fs/client/file_system.h"
#include "mount/fuse_server.h"
#include "mount/kernel_cache.h"
#include "mount/known_directories.h"
#include "mount/mount_config.h"

namespace termfs::mount {

class FrontEnd;

// A serving thread's way to the servers. Requests are received into the lane's memory.
class FrontEndThread : public FuseThread, private fs::client::ServerWait {
 public:
  FrontEndThread(FrontEnd& front, std::unique_ptr<fs::client::Lane> lane) : front_(front), lane_(std::move(lane)) {
    lane_->TellOfWaits(this);
  }
  std::span<std::byte> buffer() override { return lane_->buffer(); }
  uint64_t buffer_number() override { return lane_->buffer_number(); }
  Result<std::span<const std::byte>> Read(const ReadArguments& arguments) override;  // fuse_data.cc
  Interruption* interruption() override { return &lane_->interruption(); }
  fs::client::Lane& lane() { return *lane_; }

 private:
  // So many bytes were read for the page cache, and are about to be answered.
  void HasReadForCache(const ReadArguments& arguments, size_t asked, size_t got);  // fuse_data.cc
  void Begin() override;                                                           // fuse_data.cc
  void End() override { wait_.reset(); }

  FrontEnd& front_;
  std::optional<FuseServer::Wait> wait_;  // for the server
  std::unique_ptr<fs::client::Lane> lane_;
};

class FrontEnd {
 public:
  FrontEnd(fs::client::FileSystem& file_system, KernelCacheNotifier& cache, fs::client::ServerAddress address,
           const MountConfig& config)
      : file_system_(file_system),
        cache_(cache),
        address_(std::move(address)),
        acl_(config.acl),
        options_(config.given),
        sync_(config.synchronous),
        sync_names_(config.synchronous || config.synchronous_names) {}

  // The callback table; their userdata is the FrontEnd.
  static fuse_lowlevel_ops Operations();

  fs::client::FileSystem& file_system() { return file_system_; }
  KernelCacheNotifier& cache() { return cache_; }
  // The kernel is to enforce access control lists; else there are none for it.
  bool acl() const { return acl_; }
  // How long the kernel may use what the thread's last operation returned: `attributes`, if any.
  static fs::client::Keep Keep(const fs::Attributes* attributes) { return lane().keep(attributes); }
  // The lane of the serving thread that calls.
  static fs::client::Lane& lane() { return static_cast<FrontEndThread&>(FuseServer::thread()).lane(); }
  static FrontEnd& Of(fuse_req_t request) { return *static_cast<FrontEnd*>(fuse_req_userdata(request)); }

  void RememberOpen(fs::client::OpenFile* file) EXCLUDES(mutex_);
  // Ends an open file, remembered or not.
  void Release(fs::client::Lane& lane, fs::client::OpenFile* file) EXCLUDES(mutex_);
  // After the serving threads have ended: releases what the kernel left open.
  void ReleaseAll(fs::client::Lane& lane) EXCLUDES(mutex_);

  // Before an entry of a special file is given to the kernel: one more look-up. If the server refuses to hold it, it is
  // known all the same, and stale when its last name goes.
  void Hold(fs::client::Lane& lane, uint64_t ino) EXCLUDES(mutex_);
  // The kernel gives back `count` look-ups of an inode of any type.
  void Forget(fs::client::Lane& lane, uint64_t ino, uint64_t count) EXCLUDES(mutex_);

  KnownDirectories& directories() { return directories_; }
  // What the server has answered about `ino` says that there is no such inode, which is a directory that has been
  // removed: its attributes.
  std::optional<fs::Attributes> Removed(uint64_t ino, const Status& answer) const {
    return answer.code() == ESTALE ? directories_.Removed(ino) : std::nullopt;
  }
  // What was done in a directory that has been removed: ENOENT; else the result.
  Status InDirectory(uint64_t directory, Status status);
  template <typename T>
  Result<T> InDirectory(uint64_t directory, Result<T> result) {
    if (result.status().code() != ESTALE) [[likely]] {
      return result;
    }
    return InDirectory(directory, result.status());
  }

  // Clears set-user-id and set-group-id bits of `ino` the way Linux does when its contents change: the latter only
  // where the group may execute. The kernel, which does not get the attributes of a reply, drops those that it has.
  Status ClearPrivileges(uint64_t ino);

  // What mounts with sync or dirsync promise, before a call is answered: of a name in `directory`, of attributes, of an
  // open file with its data. What the call itself was granted is forgotten by that.
  Status KeepName(uint64_t directory) {
    return sync_names_.load(std::memory_order_relaxed) ? file_system_.SyncDirectory(lane(), directory) : Status::Ok();
  }
  Status KeepAttributes(uint64_t ino) { return sync() ? file_system_.SyncDirectory(lane(), ino) : Status::Ok(); }
  Status KeepFile(fs::client::OpenFile* file) {
    return sync() ? file_system_.Sync(lane(), file, /*data_only=*/false) : Status::Ok();
  }
  // The same of what was `done` to a name: a Status, or a Result.
  template <typename Done>
  Done WithName(uint64_t directory, Done done) {
    Status kept = done.ok() ? KeepName(directory) : Status::Ok();
    return kept.ok() ? InDirectory(directory, std::move(done)) : Done(std::move(kept));
  }

  // What `termfs stats` and `termfs umount` ask the mount itself, as lines "name value": pid, address, transport,
  // metrics. After a remount this is asked: the flags that the kernel has by then count from now on. `user`: that asks.
  // The path of the secret's file is for root and the user of this process only.
  std::string Describe(uid_t user);
  void CountRequests(const FuseServer* server) { server_ = server; }  // before it starts

  MetricsRegistry& metrics() { return metrics_; }
  Counter& carried_reads() { return carried_reads_; }  // of those that were read, by a FuseCarrier
  // From the arrival of a request until its bytes are there to be sent; of writes, until they are answered.
  Histogram& read_latency() { return read_latency_; }
  Histogram& write_latency() { return write_latency_; }

 private:
  struct Held {
    fs::client::OpenFile* file = nullptr;
    uint64_t lookups = 0;
  };

  bool sync() const { return sync_.load(std::memory_order_relaxed); }
  void FollowFlags();

  fs::client::FileSystem& file_system_;
  KernelCacheNotifier& cache_;
  const fs::client::ServerAddress address_;
  const bool acl_;
  const std::vector<std::string> options_;
  std::atomic<bool> sync_;  // this and the next: relaxed, a remount that waits for Describe is seen by later calls
  std::atomic<bool> sync_names_;
  const FuseServer* server_ = nullptr;
  MetricsRegistry metrics_;
  Counter& carried_reads_ = metrics_.counter("fuse_carried_reads_total");
  Histogram& read_latency_ = metrics_.histogram("fuse_read");
  Histogram& write_latency_ = metrics_.histogram("fuse_write");
  KnownDirectories directories_;
  mutable Mutex mutex_;
  std::unordered_set<fs::client::OpenFile*> open_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Held> held_ GUARDED_BY(mutex_);  // special files, by inode
};

// The extended attribute of a mount's root that Describe answers. In the "system." class, because reading it needs no
// attributes of the root: it works when the server is gone.
inline constexpr char kDescriptionXattr[] = "system.termfs.mount";

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// VolumeClient: FileSystem over one tlib session. Operation groups have a file each: names.cc, attributes.cc, files.cc,
// read.cc, write.cc, xattr.cc; volume_client.cc has the rest.
//
// Thread-safety and ownership: as FileSystem says.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"
#include "fs/client/file_system.h"
#include "fs/client/inode_cache.h"
#include "fs/client/invalidator.h"
#include "fs/proto/opcodes.h"

namespace termfs::fs::client {

// A call ended without the server's answer: it may still be carried out.
bool GivenUp(const Status& status);

class OpenFile {
 public:
  OpenFile(uint64_t number, int open_flags, std::shared_ptr<InodeCache> inode_cache)
      : ino(number), flags(open_flags), cache(std::move(inode_cache)) {}
  const uint64_t ino;
  const int flags;
  const std::shared_ptr<InodeCache> cache;
};

class VolumeLane final : public Lane {
 public:
  // `recalls`: counts what the server has called back.
  VolumeLane(std::unique_ptr<Interruption> interruption, std::unique_ptr<tlib::client::Channel> channel,
             const std::atomic<uint64_t>& recalls)
      : interruption_(std::move(interruption)), channel_(std::move(channel)), recalls_(recalls) {}
  std::span<std::byte> buffer() override { return channel_->buffer(); }
  Interruption& interruption() override { return *interruption_; }
  tlib::client::Channel& channel() { return *channel_; }

  // Nothing, when anything was recalled since the request was sent: it may be this.
  Keep keep() const override;
  // A request is about to be sent; its time counts from here.
  void BeginRequest();
  // Its reply grants so much.
  void Granted(uint32_t entry_ms, uint32_t attributes_ms) {
    entry_ms_ = entry_ms;
    attributes_ms_ = attributes_ms;
  }

 private:
  const std::unique_ptr<Interruption> interruption_;
  const std::unique_ptr<tlib::client::Channel> channel_;
  const std::atomic<uint64_t>& recalls_;
  uint64_t recalls_before_ = 0;
  BootTime sent_;
  uint32_t entry_ms_ = 0;
  uint32_t attributes_ms_ = 0;
};

class VolumeClient final : public FileSystem, private tlib::client::CallbackHandler {
 public:
  // How the session is made, given who answers the server's calls.
  using Connector =
      std::function<Result<std::unique_ptr<tlib::client::Session>>(tlib::client::CallbackHandler* handler)>;

  static Result<std::unique_ptr<FileSystem>> Create(const Connector& connect, const MountOptions& options,
                                                    KernelCache* cache);
  ~VolumeClient() override;

  Result<std::unique_ptr<Lane>> OpenLane() override;
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
  Result<std::vector<DirectoryEntry>> ReadDirectory(Lane& lane, uint64_t ino, uint64_t cursor, size_t max_bytes,
                                                    bool plus) override;
  Result<OpenFile*> Open(Lane& lane, uint64_t ino, int flags) override;
  Result<std::pair<Attributes, OpenFile*>> Create(Lane& lane, Caller who, uint64_t parent, std::string_view name,
                                                  uint32_t mode, int flags) override;
  Result<std::span<const std::byte>> Read(Lane& lane, OpenFile* file, uint64_t offset, size_t size) override;
  Status Write(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data,
               bool clears_privileges) override;
  Status Flush(Lane& lane, OpenFile* file) override;
  Status Sync(Lane& lane, OpenFile* file, bool data_only) override;
  Status SyncDirectory(Lane& lane, uint64_t ino) override;
  void Release(Lane& lane, OpenFile* file) override;
  Result<uint64_t> Seek(Lane& lane, OpenFile* file, uint64_t offset, int whence) override;
  Status Allocate(Lane& lane, OpenFile* file, int mode, uint64_t offset, uint64_t length) override;
  Status SetXattr(Lane& lane, uint64_t ino, std::string_view name, std::span<const std::byte> value,
                  int flags) override;
  Result<std::vector<std::byte>> GetXattr(Lane& lane, uint64_t ino, std::string_view name) override;
  Result<std::vector<std::string>> ListXattr(Lane& lane, uint64_t ino) override;
  Status RemoveXattr(Lane& lane, uint64_t ino, std::string_view name) override;
  Result<FileSystemStatus> StatFs(Lane& lane) override;
  void Abandon(const std::string& why) override;
  std::string transport() const override { return session_->transport(); }
  std::vector<MetricValue> Metrics() const override;

 private:
  VolumeClient(const MountOptions& options, KernelCache* cache);

  // tlib::client::CallbackHandler
  Result<std::vector<std::byte>> HandleCallback(uint16_t opcode, std::span<const std::byte> body) override;
  void SessionLost(const Status& why) override;

  using CallReply = tlib::client::CallReply;
  // A metadata call: counted and without bulk bytes, or with some.
  Result<CallReply> Call(Lane& lane, Opcode opcode, std::span<const std::byte> body, std::span<std::byte> in = {},
                         std::span<std::byte> out = {});
  // ENOENT, too, can come with a grant.
  Result<Attributes> CallForAttributes(Lane& lane, Opcode opcode, std::span<const std::byte> body,
                                       std::span<std::byte> in = {});
  static tlib::client::Channel& ChannelOf(Lane& lane) { return static_cast<VolumeLane&>(lane).channel(); }
  // Copies `value` to where the server can read it from. E2BIG.
  static Result<std::span<std::byte>> ToBuffer(Lane& lane, std::span<const std::byte> value);

  bool TryOneSided(Lane& lane, OpenFile* file, uint64_t offset, size_t size, Result<std::span<const std::byte>>& done);
  Result<std::span<const std::byte>> ReadByServer(Lane& lane, OpenFile* file, uint64_t offset, size_t size);
  Status WriteChunk(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data, uint32_t flags);
  // A call that may change the map failed. When it did so without an answer, it may still be carried out, and no map is
  // trusted until its answer has come.
  void AfterFailure(Lane& lane, const Status& status, const std::shared_ptr<InodeCache>& cache);
  // The same for an open or create (which has no cache yet); should it still succeed, the handle that nobody will use
  // is released.
  void AfterFailedOpen(Lane& lane, const Status& status, const std::shared_ptr<InodeCache>& cache);
  void PostRelease(Lane& lane, uint64_t ino, uint64_t dropped);
  void DeferRelease(uint64_t ino, uint64_t dropped) EXCLUDES(deferred_mutex_);
  // Asks for grants, or says that the kernel has nothing any more.
  Status WantGrants(bool wanted);
  void PostDeferred(Lane& lane) EXCLUDES(deferred_mutex_);

  const MountOptions options_;
  KernelCache* const kernel_cache_;
  MetricsRegistry metrics_;
  Counter& reads_;
  Counter& read_bytes_;
  Counter& server_reads_;
  Counter& writes_;
  Counter& write_bytes_;
  Counter& metadata_;
  Counter& revocations_;
  Counter& kernel_recalls_;
  Histogram& read_time_;
  Histogram& write_time_;
  InodeCacheTable inodes_;
  // Raised before the kernel is told; a reply that is given to the kernel later grants nothing.
  std::atomic<uint64_t> recalls_{0};
  std::unique_ptr<tlib::client::Session> session_;
  // Releases that could not be sent when they were due; any lane's next call takes them along.
  struct Deferred {
    uint64_t ino;
    uint64_t dropped;
  };
  std::atomic<bool> has_deferred_{false};  // relaxed: a hint
  Mutex deferred_mutex_;
  std::vector<Deferred> deferred_ GUARDED_BY(deferred_mutex_);
  Mutex invalidator_mutex_;
  // They use channels of the session.
  std::unique_ptr<Invalidator> pages_ GUARDED_BY(invalidator_mutex_);
  std::unique_ptr<Invalidator> names_ GUARDED_BY(invalidator_mutex_);  // attributes, too
  std::unique_ptr<tlib::client::Channel> grants_channel_;  // asks for grants, and gives them back
};

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
#include "fs/client/volume_client.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "fs/proto/codec.h"

namespace termfs::fs::client {

namespace {

constexpr size_t kExtraBuffer = 64 << 10;  // so that an attribute's value fits beside nothing else

MountOptions Checked(MountOptions options) {
  options.max_io_bytes =
      std::clamp<uint32_t>(static_cast<uint32_t>(RoundDownToPage(options.max_io_bytes)), kPageSize, tlib::kMaxTransfer);
  return options;
}

}  // namespace

bool GivenUp(const Status& status) { return status.code() == ETIMEDOUT || status.code() == EINTR; }

VolumeClient::VolumeClient(const MountOptions& options, KernelCache* cache)
    : options_(Checked(options)),
      kernel_cache_(cache),
      reads_(metrics_.counter("fs_reads_total")),
      read_bytes_(metrics_.counter("fs_read_bytes_total")),
      server_reads_(metrics_.counter("fs_server_reads_total")),
      writes_(metrics_.counter("fs_writes_total")),
      write_bytes_(metrics_.counter("fs_write_bytes_total")),
      metadata_(metrics_.counter("fs_metadata_total")),
      revocations_(metrics_.counter("fs_revocations_total")),
      read_time_(metrics_.histogram("fs_read")),
      write_time_(metrics_.histogram("fs_write")) {}

Result<std::unique_ptr<FileSystem>> VolumeClient::Create(const Connector& connect, const MountOptions& options,
                                                         KernelCache* cache) {
  std::unique_ptr<VolumeClient> client(new VolumeClient(options, cache));
  ASSIGN_OR_RETURN(client->link_, ServerLink::Connect(connect, options.session.reconnect, *client));
  if (cache != nullptr) {
    ASSIGN_OR_RETURN(auto lane, client->link_->OpenLane(kPageSize));
    MutexLock lock(client->invalidator_mutex_);
    client->invalidator_ = std::make_unique<Invalidator>(*cache, *client->link_, std::move(lane));
  }
  return std::unique_ptr<FileSystem>(std::move(client));
}

VolumeClient::~VolumeClient() {
  std::unique_ptr<Invalidator> ending;
  {
    MutexLock lock(invalidator_mutex_);  // callbacks come until the session has ended
    ending = std::move(invalidator_);
  }
  ending.reset();
  link_.reset();
}

Result<std::unique_ptr<Lane>> VolumeClient::OpenLane() {
  ASSIGN_OR_RETURN(auto lane, link_->OpenLane(options_.max_io_bytes + kExtraBuffer));
  return std::unique_ptr<Lane>(std::move(lane));
}

Result<std::vector<std::byte>> VolumeClient::HandleCallback(uint64_t generation, uint16_t opcode,
                                                            std::span<const std::byte> body) {
  switch (opcode) {
    case kFsRevoke: {
      ASSIGN_OR_RETURN(const RevokeBody revoke, DecodeFixed<RevokeBody>(body));
      revocations_.Add();
      if (const auto cache = inodes_.Find(revoke.ino)) {
        cache->Revoke(revoke.version);
      }
      return std::vector<std::byte>{};
    }
    case kFsInvalidate: {
      ASSIGN_OR_RETURN(const InvalidateBody invalidate, DecodeFixed<InvalidateBody>(body));
      MutexLock lock(invalidator_mutex_);
      if (invalidator_ == nullptr) {
        return Status::Error(ENOTCONN, "the mount is ending");
      }
      invalidator_->Push(invalidate, generation);
      return std::vector<std::byte>{};
    }
    default:
      return Status::Error(ENOSYS, "unknown callback");
  }
}

// Everything that is cached under grants of a session is dropped here, when that is lost: maps of files now.
void VolumeClient::BeginGeneration(uint64_t generation) { to_reopen_ = inodes_.BeginGeneration(generation); }

Result<ServerLink::Resumption> VolumeClient::Resume(tlib::client::Channel& channel, uint64_t) {
  ServerLink::Resumption done;
  for (const InodeCacheTable::OpenInode& open : to_reopen_) {
    wire::ReopenT body;
    body.ino = open.ino;
    body.count = open.open_files;
    body.notify = kernel_cache_ != nullptr;
    const auto encoded = Encode<wire::Reopen>(body);
    const Status reopened = channel.Call({.opcode = kFsReopen, .body = encoded, .in = {}, .out = {}}).status();
    if (reopened.ok()) {
      done.files_reopened += open.open_files;
    } else if (GivenUp(reopened) || reopened.code() == ENOTCONN) {
      return reopened;
    } else {
      LOG_ERROR("inode {} was open and cannot be opened again: {}; its handles fail with EIO", open.ino,
                reopened.ToString());
      done.files_lost += inodes_.Lose(open.ino);
    }
  }
  return done;
}

void VolumeClient::WritesLost(uint64_t generation) { inodes_.LoseWrites(generation); }

void VolumeClient::Resumed(tlib::client::Channel& channel, uint64_t generation) {
  // What the kernel has cached of open files may be out of date: nobody told us of changes in the meantime.
  for (const InodeCacheTable::OpenInode& open : to_reopen_) {
    MutexLock lock(invalidator_mutex_);
    if (invalidator_ != nullptr) {
      invalidator_->Push({.ticket = 0, .ino = open.ino, .offset = 0, .length = 0}, generation);
    }
  }
  to_reopen_.clear();
  // Files that were closed meanwhile: another call may not come for long.
  std::vector<Closed> due;
  {
    MutexLock lock(deferred_mutex_);
    due.swap(deferred_);
    has_deferred_.store(false, std::memory_order_relaxed);
  }
  for (const Closed& closed : due) {
    if (closed.generation == generation) {
      wire::ReleaseT body;
      body.ino = closed.ino;
      const auto encoded = Encode<wire::Release>(body);
      const Status released = channel.Call({.opcode = kFsRelease, .body = encoded, .in = {}, .out = {}}).status();
      if (!released.ok()) {
        LOG_DEBUG("closing inode {}: {}", closed.ino, released.ToDebugString());
      }
    } else if (closed.generation > generation) {
      DeferRelease(closed);
    }
  }
}

uint64_t VolumeClient::GiveUp() {
  to_reopen_.clear();
  return inodes_.LoseAll();
}

Status VolumeClient::CheckUsable(const OpenFile* file) {
  return file != nullptr && file->cache->lost() ? Status::Error(EIO, "the file was lost with the server")
                                                : Status::Ok();
}

Result<VolumeClient::CallReply> VolumeClient::Call(Lane& lane, Opcode opcode, std::span<const std::byte> body,
                                                   std::span<std::byte> in, std::span<std::byte> out, bool once) {
  metadata_.Add();
  if (has_deferred_.load(std::memory_order_relaxed)) [[unlikely]] {
    PostDeferred(lane);
  }
  return link_->Call(Of(lane), {.opcode = opcode, .body = body, .in = in, .out = out}, once);
}

Result<Attributes> VolumeClient::CallForAttributes(Lane& lane, Opcode opcode, std::span<const std::byte> body,
                                                   std::span<std::byte> in, bool once) {
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, opcode, body, in, {}, once));
  ASSIGN_OR_RETURN(const auto decoded, Decode<wire::AttributesReply>(reply.body));
  if (decoded.attributes == nullptr) {
    return Status::Error(EBADMSG, "a reply without attributes");
  }
  return FromWire(*decoded.attributes);
}

Result<std::span<std::byte>> VolumeClient::ToBuffer(Lane& lane, std::span<const std::byte> value) {
  const std::span<std::byte> buffer = lane.buffer();
  if (value.size() > buffer.size()) {
    return Status::Error(E2BIG, "too long a value");
  }
  if (!value.empty()) {
    std::memmove(buffer.data(), value.data(), value.size());
  }
  return buffer.first(value.size());
}

void VolumeClient::AfterFailure(Lane& lane, const Status& status, const std::shared_ptr<InodeCache>& cache) {
  if (cache == nullptr) {
    return;
  }
  if (GivenUp(status)) {
    cache->BeginDoubt();
    Of(lane).AfterGivenUp([cache](const auto&) { cache->EndDoubt(); });
  }
}

void VolumeClient::Abandon(const std::string& why) { link_->Abandon(why); }

Result<FileSystemStatus> VolumeClient::StatFs(Lane& lane) {
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, kFsStat, Encode<wire::Inode>({})));
  ASSIGN_OR_RETURN(const auto space, Decode<wire::VolumeSpace>(reply.body));
  return FileSystemStatus{.capacity_bytes = space.capacity,
                          .free_bytes = space.free,
                          .inodes_used = space.inodes_used,
                          .inodes_free = space.inodes_free};
}

std::vector<MetricValue> VolumeClient::Metrics() const {
  std::vector<MetricValue> values = link_->Metrics();
  for (MetricValue& value : metrics_.Snapshot()) {
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace termfs::fs::client

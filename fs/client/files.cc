// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include "base/log.h"
#include "fs/client/volume_client.h"
#include "fs/proto/codec.h"

namespace termfs::fs::client {

namespace {

std::span<const std::byte> MapBytes(const wire::OpenedT& opened) { return std::as_bytes(std::span(opened.map)); }

Result<wire::OpenedT> DecodeOpened(std::span<const std::byte> body) {
  ASSIGN_OR_RETURN(auto opened, Decode<wire::Opened>(body));
  if (opened.attributes == nullptr || opened.attributes->ino() == 0) {
    return Status::Error(EBADMSG, "a reply without attributes");
  }
  return opened;
}

}  // namespace

Result<OpenFile*> VolumeClient::Open(Lane& lane, uint64_t ino, int flags) {
  // In the table before the request: a revocation may overtake the reply that brings the map.
  const std::shared_ptr<InodeCache> cache = inodes_.Take(ino);
  wire::OpenT body;
  body.ino = ino;
  body.flags = flags;
  body.notify = kernel_cache_ != nullptr;
  body.dropped = (flags & O_TRUNC) != 0 ? cache->Drop() : 0;
  const Status opened = [&]() -> Status {
    ASSIGN_OR_RETURN(const CallReply reply, Call(lane, kFsOpen, Encode<wire::Open>(body)));
    ASSIGN_OR_RETURN(const auto decoded, DecodeOpened(reply.body));
    ASSIGN_OR_RETURN(const Map map, DecodeMap(MapBytes(decoded), session_->pages()));
    cache->Install(map);
    return Status::Ok();
  }();
  if (!opened.ok()) {
    AfterFailedOpen(lane, opened, cache);
    inodes_.Put(ino);
    return opened;
  }
  inodes_.Opened(ino);
  return new OpenFile(ino, flags, cache);
}

Result<std::pair<Attributes, OpenFile*>> VolumeClient::Create(Lane& lane, Caller who, uint64_t parent,
                                                              std::string_view name, uint32_t mode, int flags) {
  if (name.size() > kMaxName) {
    return Status::Error(ENAMETOOLONG, "name");
  }
  wire::MakeT body;
  body.parent = parent;
  body.name = name;
  body.mode = S_IFREG | (mode & 07777);
  body.uid = who.uid;
  body.gid = who.gid;
  body.flags = flags;
  body.notify = kernel_cache_ != nullptr;
  const auto reply = Call(lane, kFsCreate, Encode<wire::Make>(body));
  if (!reply.ok()) {
    AfterFailedOpen(lane, reply.status(), nullptr);
    return reply.status();
  }
  ASSIGN_OR_RETURN(const auto opened, DecodeOpened(reply->body));
  static_cast<VolumeLane&>(lane).Granted(opened.entry_ms, opened.attributes_ms);
  // A map in the reply (of a file that was there) is not used: its revocation would not have found the inode.
  const Attributes attributes = FromWire(*opened.attributes);
  auto cache = inodes_.Take(attributes.ino);
  inodes_.Opened(attributes.ino);
  return std::pair(attributes, new OpenFile(attributes.ino, flags, std::move(cache)));
}

Status VolumeClient::Flush(Lane&, OpenFile*) {
  return Status::Ok();  // every write has reached the server before it returned
}

Status VolumeClient::Sync(Lane& lane, OpenFile* file, bool data_only) {
  wire::SyncT body;
  body.ino = file->ino;
  body.data_only = data_only;
  return Call(lane, kFsSync, Encode<wire::Sync>(body)).status();
}

Status VolumeClient::SyncDirectory(Lane& lane, uint64_t) {
  return Call(lane, kFsSync, Encode<wire::Sync>({})).status();
}

void VolumeClient::Release(Lane& lane, OpenFile* file) {
  PostRelease(lane, file->ino, inodes_.Closed(file->ino) ? file->cache->Drop() : 0);
  inodes_.Put(file->ino);
  delete file;
}

void VolumeClient::PostRelease(Lane& lane, uint64_t ino, uint64_t dropped) {
  wire::ReleaseT body;
  body.ino = ino;
  body.dropped = dropped;
  const auto encoded = Encode<wire::Release>(body);
  metadata_.Add();
  const Status posted = ChannelOf(lane).Post({.opcode = kFsRelease, .body = encoded, .in = {}, .out = {}});
  if (posted.code() == EAGAIN) {
    DeferRelease(ino, dropped);
  } else if (!posted.ok() && posted.code() != ENOTCONN) {  // ENOTCONN: nothing is open any more
    LOG_WARNING("closing inode {}: {}", ino, posted.ToDebugString());
  }
}

void VolumeClient::DeferRelease(uint64_t ino, uint64_t dropped) {
  MutexLock lock(deferred_mutex_);
  deferred_.push_back({ino, dropped});
  has_deferred_.store(true, std::memory_order_relaxed);
}

void VolumeClient::PostDeferred(Lane& lane) {
  std::vector<Deferred> due;
  {
    MutexLock lock(deferred_mutex_);
    due.swap(deferred_);
    has_deferred_.store(false, std::memory_order_relaxed);
  }
  for (const Deferred& release : due) {
    PostRelease(lane, release.ino, release.dropped);
  }
}

void VolumeClient::AfterFailedOpen(Lane& lane, const Status& status, const std::shared_ptr<InodeCache>& cache) {
  if (!GivenUp(status)) {
    return AfterFailure(lane, status, cache);
  }
  if (cache != nullptr) {
    cache->BeginDoubt();
  }
  ChannelOf(lane).AfterGivenUp([this, cache](const Result<std::span<const std::byte>>& late) {
    if (cache != nullptr) {
      cache->EndDoubt();
    }
    if (!late.ok()) {
      return;
    }
    if (const auto opened = DecodeOpened(*late); opened.ok()) {
      DeferRelease(opened->attributes->ino(), 0);
    }
  });
}

Result<uint64_t> VolumeClient::Seek(Lane& lane, OpenFile* file, uint64_t offset, int whence) {
  wire::SeekT body;
  body.ino = file->ino;
  body.offset = offset;
  body.whence = whence;
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, kFsSeek, Encode<wire::Seek>(body)));
  ASSIGN_OR_RETURN(const auto position, Decode<wire::Position>(reply.body));
  return position.offset;
}

Status VolumeClient::Allocate(Lane& lane, OpenFile* file, int mode, uint64_t offset, uint64_t length) {
  wire::AllocateT body;
  body.ino = file->ino;
  body.mode = mode;
  body.offset = offset;
  body.length = length;
  body.dropped = file->cache->Drop();
  Status allocated = Call(lane, kFsAllocate, Encode<wire::Allocate>(body)).status();
  AfterFailure(lane, allocated, file->cache);
  return allocated;
}

}  // namespace termfs::fs::client

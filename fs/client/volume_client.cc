// SPDX-License-Identifier: Apache-2.0
#include "fs/client/volume_client.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.h"
#include "fs/proto/codec.h"

namespace termfs::fs::client {

namespace {

constexpr std::chrono::seconds kFarewell{1};  // with a server that does not answer any more
constexpr size_t kExtraBuffer = 64 << 10;     // so that an attribute's value fits beside nothing else

MountOptions Checked(MountOptions options) {
  options.max_io_bytes =
      std::clamp<uint32_t>(static_cast<uint32_t>(RoundDownToPage(options.max_io_bytes)), kPageSize, tlib::kMaxTransfer);
  return options;
}

// Asks for grants, or says that the kernel has nothing any more.
std::vector<std::byte> EncodeGrants(bool wanted) {
  wire::GrantsT body;
  body.wanted = wanted;
  return Encode<wire::Grants>(body);
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
      copies_(metrics_.counter("fs_copies_total")),
      copied_bytes_(metrics_.counter("fs_copied_bytes_total")),
      metadata_(metrics_.counter("fs_metadata_total")),
      known_absent_(metrics_.counter("fs_known_absent_total")),
      writes_posted_(metrics_.counter("fs_writes_posted_total")),
      opens_again_(metrics_.counter("fs_opens_again_total")),
      revocations_(metrics_.counter("fs_revocations_total")),
      kernel_recalls_(metrics_.counter("fs_recalls_total")),
      read_time_(metrics_.histogram("fs_read")),
      write_time_(metrics_.histogram("fs_write")),
      metadata_time_(metrics_.histogram("fs_metadata")),
      shared_(caches() ? std::make_unique<SharedOpens>([this](const SharedOpen& open) {
        CloseOne(*closing_lane_, {.ino = open.ino}, open.cache, Closing::kWaits);
      })
                       : nullptr),
      kept_(cache) {}

Result<std::unique_ptr<FileSystem>> VolumeClient::Create(const Connector& connect, const MountOptions& options,
                                                         KernelCache* cache) {
  std::unique_ptr<VolumeClient> client(new VolumeClient(options, cache));
  ASSIGN_OR_RETURN(client->link_, ServerLink::Connect(connect, options.session.reconnect, *client, client->kept_));
  if (cache != nullptr) {
    const auto opens = options.late_lanes ? ServerLink::Opens::kLate : ServerLink::Opens::kNow;
    ASSIGN_OR_RETURN(auto pages, client->link_->OpenLane(kPageSize, 0, opens));
    ASSIGN_OR_RETURN(auto names, client->link_->OpenLane(kPageSize, 0, opens));
    {
      MutexLock lock(client->invalidator_mutex_);
      client->pages_ = std::make_unique<Invalidator>(*client->link_, std::move(pages));
      client->names_ = std::make_unique<Invalidator>(*client->link_, std::move(names));
    }
    if (client->caches()) {
      ASSIGN_OR_RETURN(client->grants_lane_, client->link_->OpenLane(kPageSize));
      const auto wanted = EncodeGrants(true);
      RETURN_IF_ERROR(
          client->link_->Call(*client->grants_lane_, {.opcode = kFsGrants, .body = wanted, .in = {}, .out = {}}, false)
              .status());
      ASSIGN_OR_RETURN(client->closing_lane_, client->link_->OpenLane(kPageSize, 0, opens));
    }
  }
  return std::unique_ptr<FileSystem>(std::move(client));
}

VolumeClient::~VolumeClient() {
  if (grants_lane_ != nullptr) {
    // There is no mount any more. Otherwise others would wait until what it was granted ends.
    const auto nothing = EncodeGrants(false);
    const Status said =
        link_->CallIn(link_->generation(), *grants_lane_,
                      {.opcode = kFsGrants, .body = nothing, .in = {}, .out = {}, .timeout = kFarewell});
    if (!said.ok() && said.code() != ENOTCONN && said.code() != EAGAIN) {  // those: there is no session
      LOG_WARNING("giving back what was granted: {}", said.ToDebugString());
    }
    grants_lane_.reset();
  }
  if (shared_ != nullptr) {
    shared_->Stop();
    closing_lane_.reset();
  }
  std::unique_ptr<Invalidator> pages;
  std::unique_ptr<Invalidator> names;
  {
    MutexLock lock(invalidator_mutex_);  // callbacks come until the session has ended
    pages = std::move(pages_);
    names = std::move(names_);
  }
  pages.reset();
  names.reset();
  link_.reset();
  first_writes_.LoseAll();
}

Result<std::unique_ptr<Lane>> VolumeClient::OpenLane(size_t place_bytes) {
  const auto opens = options_.late_lanes ? ServerLink::Opens::kLate : ServerLink::Opens::kNow;
  ASSIGN_OR_RETURN(auto lane, link_->OpenLane(options_.max_io_bytes + kExtraBuffer, place_bytes, opens));
  return std::unique_ptr<Lane>(std::move(lane));
}

Result<std::unique_ptr<Lane>> VolumeClient::OpenLaneByMap(size_t place_bytes) {
  ASSIGN_OR_RETURN(auto lane, link_->OpenLane(0, place_bytes, ServerLink::Opens::kByMap));
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
      known_pages_.Dropped(invalidate.ino, std::chrono::steady_clock::now());
      const std::shared_ptr<InodeCache> cache = inodes_.Find(invalidate.ino);
      kept_.NoteRecall();  // attributes go along
      bare_inodes_.Forget(invalidate.ino);
      MutexLock lock(invalidator_mutex_);
      if (pages_ == nullptr) {
        return Status::Error(ENOTCONN, "the mount is ending");
      }
      if (cache != nullptr) {
        cache->pages().Drop();
        cache->pages().BeginDropping();
      }
      pages_->Push(invalidate.ticket, generation, [this, cache, invalidate, when = std::chrono::steady_clock::now()] {
        // First, since it waits at most for a moment: without attributes the kernel asks before it uses a page that it
        // has not dropped in time.
        kernel_cache_->InvalidateAttributes(invalidate.ino, when);
        kernel_cache_->InvalidateInode(invalidate.ino, 0, 0);
        if (cache != nullptr) {
          cache->pages().EndDropping(invalidate.ticket);
          MutexLock dropping(dropping_mutex_);
          dropped_.NotifyAll();
        }
        return true;
      });
      EndSharing(invalidate.ino);
      return std::vector<std::byte>{};
    }
    case kFsRecall: {
      ASSIGN_OR_RETURN(wire::RecallT recall, Decode<wire::Recall>(body));
      kept_.NoteRecall();
      kernel_recalls_.Add();
      for (const uint64_t ino : recall.inodes) {
        known_names_.Forget(ino);
        bare_inodes_.Forget(ino);
        EndSharing(ino);
      }
      MutexLock lock(invalidator_mutex_);
      if (names_ == nullptr) {
        return Status::Error(ENOTCONN, "the mount is ending");
      }
      const uint64_t ticket = recall.ticket;
      names_->Push(ticket, generation, DropOf(std::make_shared<wire::RecallT>(std::move(recall))));
      return std::vector<std::byte>{};
    }
    case kFsShrunk: {
      ASSIGN_OR_RETURN(const ShrunkBody shrunk, DecodeFixed<ShrunkBody>(body));
      MutexLock lock(invalidator_mutex_);
      if (names_ == nullptr) {
        return Status::Error(ENOTCONN, "the mount is ending");
      }
      names_->Push(shrunk.ticket, generation, [this, shrunk] {
        kernel_cache_->RefreshSize(shrunk.ino, shrunk.generation);
        return true;
      });
      return std::vector<std::byte>{};
    }
    case kFsFirstWrite: {
      ASSIGN_OR_RETURN(const FirstWriteBody asked, DecodeFixed<FirstWriteBody>(body));
      FirstWriteReply reply;
      if (asked.failed != 0) {
        first_writes_.Failed(asked.ino);
      } else {
        reply.first =
            static_cast<uint32_t>(first_writes_.Asked(asked.ino) ? FirstWrite::kPosted : FirstWrite::kForgone);
      }
      const auto bytes = AsBytes(reply);
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    }
    case kFsLockGranted: {
      ASSIGN_OR_RETURN(const auto granted, Decode<wire::Ticket>(body));
      LockGranted(granted.ticket);
      return std::vector<std::byte>{};
    }
    default:
      return Status::Error(ENOSYS, "unknown callback");
  }
}

std::function<bool()> VolumeClient::DropOf(std::shared_ptr<const wire::RecallT> recalled) {
  return [this, recalled = std::move(recalled), when = std::chrono::steady_clock::now()] {
    for (const uint64_t ino : recalled->inodes) {
      kernel_cache_->InvalidateAttributes(ino, when);
    }
    if (shared_ != nullptr) {
      shared_->AwaitClosed(recalled->inodes, when);  // who has removed a file wants its space
    }
    bool dropped = true;
    for (const auto& entry : recalled->entries) {
      dropped = kernel_cache_->InvalidateEntry(entry->parent, entry->name) && dropped;
    }
    return dropped;
  };
}

// Everything that is cached under grants of a session is dropped here, when that is lost: maps of files, and what the
// kernel knows of names and attributes.
void VolumeClient::BeginGeneration(uint64_t generation) {
  begun_.store(generation);  // before ReclaimLocks: see AskForLock
  if (shared_ != nullptr) {
    all_news_.fetch_add(1);
    for (const SharedOpens::Open& idle : shared_->TakeAll()) {  // the session that had them open is gone
      inodes_.Closed(idle->ino, idle->cache);
      inodes_.Put(idle->ino, idle->cache);
    }
  }
  to_reopen_ = inodes_.BeginGeneration(generation);
  first_writes_.BeginGeneration();
  DropGranted();
}

void VolumeClient::DropGranted() {
  const std::vector<uint64_t> inodes = kept_.Void();
  known_names_.ForgetAll();
  bare_inodes_.ForgetAll();
  if (kernel_cache_ == nullptr) {
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  for (const uint64_t ino : inodes) {
    kernel_cache_->InvalidateAttributes(ino, now);
  }
  kernel_cache_->ServerLost();
}

Result<ServerLink::Resumption> VolumeClient::Resume(tlib::client::Channel& channel, uint64_t) {
  ServerLink::Resumption done;
  if (caches()) {
    const auto wanted = EncodeGrants(true);
    RETURN_IF_ERROR(channel.Call({.opcode = kFsGrants, .body = wanted, .in = {}, .out = {}}).status());
  }
  ASSIGN_OR_RETURN(const std::vector<uint64_t> unlocked, ReclaimLocks(channel));
  LoseUnlocked(unlocked);
  for (const InodeCacheTable::OpenInode& open : to_reopen_) {
    wire::ReopenT body;
    body.ino = open.ino;
    body.count = open.open_files;
    body.notify = kernel_cache_ != nullptr;
    const auto encoded = Encode<wire::Reopen>(body);
    const Status reopened = channel.Call({.opcode = kFsReopen, .body = encoded, .in = {}, .out = {}}).status();
    if (reopened.ok()) {
      done.files_reopened += open.open_files;
    } else if (GivenUp(reopened) || reopened.code() == ENOTCONN || reopened.code() == EAGAIN) {
      return reopened;  // EAGAIN: the server is still starting
    } else {
      LOG_ERROR("inode {} was open and cannot be opened again: {}; its handles fail with EIO", open.ino,
                reopened.ToString());
      files_lost_ += inodes_.Lose(open.ino);
      held_locks_.ForgetFile(open.ino);
    }
  }
  RETURN_IF_ERROR(ResendFirst(channel));
  done.files_lost = std::exchange(files_lost_, 0);
  return done;
}

// All of them, before anything else can fail: in the next session nobody would say it again.
void VolumeClient::LoseUnlocked(const std::vector<uint64_t>& unlocked) {
  std::erase_if(to_reopen_, [&](const InodeCacheTable::OpenInode& open) {
    if (std::find(unlocked.begin(), unlocked.end(), open.ino) == unlocked.end()) {
      return false;
    }
    LOG_ERROR("locks of inode {} were lost with the session; its handles fail with EIO", open.ino);
    files_lost_ += inodes_.Lose(open.ino);
    return true;
  });
  for (const uint64_t ino : unlocked) {
    held_locks_.ForgetFile(ino);
  }
}

void VolumeClient::WritesLost(uint64_t generation) { inodes_.LoseWrites(generation); }

void VolumeClient::Resumed(tlib::client::Channel& channel, uint64_t generation) {
  // What the kernel has cached of open files may be out of date: nobody told us of changes in the meantime.
  for (const InodeCacheTable::OpenInode& open : to_reopen_) {
    MutexLock lock(invalidator_mutex_);
    if (pages_ != nullptr) {
      pages_->Push(0, generation, [this, ino = open.ino] {
        kernel_cache_->InvalidateInode(ino, 0, 0);
        return true;
      });
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
      Closed first = closed;
      first.dropped = 0;  // of another session
      const auto encoded = EncodeRelease(first);
      const Status released = channel.Call({.opcode = kFsRelease, .body = encoded, .in = {}, .out = {}}).status();
      if (!released.ok()) {
        LOG_DEBUG("closing inode {}: {}", closed.ino, released.ToDebugString());
      }
    } else if (closed.generation > generation) {
      DeferRelease(closed);
    }
  }
}

// What is open stays open: a later session opens it again, as far as it is still there. Locks have been given to
// others.
uint64_t VolumeClient::GiveUp() {
  std::vector<uint64_t> locked;
  for (const HeldLocks::Held& held : held_locks_.All()) {
    locked.push_back(held.key.ino);
  }
  LoseUnlocked(locked);
  held_locks_.ForgetAll();
  first_writes_.LoseAll();
  return std::exchange(files_lost_, 0);
}

Status VolumeClient::CheckUsable(const OpenFile* file) {
  return file != nullptr && file->cache->lost() ? Status::Error(EIO, "the file was lost with the server")
                                                : Status::Ok();
}

Result<VolumeClient::CallReply> VolumeClient::Call(Lane& lane, Opcode opcode, std::span<const std::byte> body,
                                                   std::span<std::byte> in, std::span<std::byte> out, bool once) {
  metadata_.Add();
  if (has_deferred_.load(std::memory_order_relaxed) && in.empty() && out.empty()) [[unlikely]] {
    SendDeferred(lane);  // which may give the lane another buffer
  }
  const auto begin = std::chrono::steady_clock::now();
  auto reply = link_->Call(Of(lane), {.opcode = opcode, .body = body, .in = in, .out = out}, once);
  metadata_time_.Record(static_cast<uint64_t>(Nanoseconds(std::chrono::steady_clock::now() - begin).count()));
  return reply;
}

Result<Attributes> VolumeClient::CallForAttributes(Lane& lane, Opcode opcode, std::span<const std::byte> body,
                                                   std::span<std::byte> in, bool once) {
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, opcode, body, in, {}, once));
  return TakeAttributes(lane, opcode, reply.body, nullptr, 0);
}

Result<Attributes> VolumeClient::CallForMade(Lane& lane, Opcode opcode, uint64_t directory, std::string_view name,
                                             std::span<const std::byte> body, std::span<std::byte> in) {
  DirectoryChanges::Change change(changes_, directory);
  known_names_.WillAdd(directory, name);
  const auto reply = Call(lane, opcode, body, in, {}, kOnce);
  if (!reply.ok()) {
    AfterFailedChange(lane, reply.status(), directory, name);
    return reply.status();
  }
  return TakeAttributes(lane, opcode, reply->body, &change, directory);
}

Status VolumeClient::CallToRemove(Lane& lane, Opcode opcode, uint64_t directory, std::string_view name,
                                  std::span<const std::byte> body) {
  DirectoryChanges::Change change(changes_, directory);
  const auto reply = Call(lane, opcode, body, {}, {}, kOnce);
  if (!reply.ok()) {
    AfterFailedChange(lane, reply.status(), directory, name);
    UnshareChanged(lane, reply);
    return reply.status();
  }
  ASSIGN_OR_RETURN(const auto decoded, Decode<wire::AttributesReply>(reply->body));
  Of(lane).grants().Bring(change, decoded.directory.get(), decoded.directory_ms);
  RenewNames(lane, directory, decoded.directory_ms);
  Unshare(lane, decoded.changed);
  return Status::Ok();
}

Result<Attributes> VolumeClient::TakeAttributes(Lane& lane, Opcode opcode, std::span<const std::byte> reply,
                                                DirectoryChanges::Change* change, uint64_t directory) {
  ASSIGN_OR_RETURN(const auto decoded, Decode<wire::AttributesReply>(reply));
  if (decoded.attributes == nullptr && opcode != kFsLookup) {
    return Status::Error(EBADMSG, "a reply without attributes");
  }
  Of(lane).grants().Granted(decoded.entry_ms, decoded.attributes_ms);
  Of(lane).grants().GrantedIn(directory);
  if (change != nullptr) {
    Of(lane).grants().Bring(*change, decoded.directory.get(), decoded.directory_ms);
    RenewNames(lane, directory, decoded.directory_ms);
  }
  if (decoded.attributes == nullptr) {
    return Status::Error(ENOENT, "no such name");
  }
  const Attributes attributes = FromWire(*decoded.attributes);
  bare_inodes_.Seen(attributes, Of(lane).grants());
  return attributes;
}

void VolumeClient::RenewNames(Lane& lane, uint64_t directory, uint32_t granted_ms) {
  if (const auto end = Of(lane).grants().End(granted_ms)) {
    known_names_.Renewed(directory, *end);
  }
}

Result<std::span<std::byte>> VolumeClient::ToBuffer(Lane& lane, std::span<const std::byte> value) {
  const std::span<std::byte> buffer = Of(lane).before_places();
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

void VolumeClient::AfterFailedChange(Lane& lane, const Status& status, uint64_t directory, std::string_view name) {
  if (!GivenUp(status) || !caches()) {
    return;
  }
  Of(lane).AfterGivenUp([this, directory, name = std::string(name)](const auto&) { DropOwn(directory, name); });
}

void VolumeClient::DropOwn(uint64_t directory, const std::string& name) {
  kept_.NoteOwnChange();
  auto own = std::make_shared<wire::RecallT>();
  own->inodes = {directory};
  own->entries.push_back(std::make_unique<wire::NameT>());
  own->entries.back()->parent = directory;
  own->entries.back()->name = name;
  MutexLock lock(invalidator_mutex_);
  if (names_ != nullptr) {
    names_->Push(0, 0, DropOf(std::move(own)));
  }
}

uint64_t VolumeClient::AwaitServerForWrites(const std::function<bool()>& ends) {
  constexpr std::chrono::milliseconds kLook{50};
  while (AwaitsServerForWrites() && !ends()) {
    std::this_thread::sleep_for(kLook);
  }
  return first_writes_.lost() + first_writes_.posted();
}

void VolumeClient::Abandon(const std::string& why) { link_->Abandon(why); }

Result<FileSystemStatus> VolumeClient::StatFs(Lane& lane, uint64_t ino) {
  wire::InodeT body;
  body.ino = ino;
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, kFsStat, Encode<wire::Inode>(body)));
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

// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>

#include "base/log.h"
#include "fs/client/page_change.h"
#include "fs/proto/codec.h"

namespace termfs::fs::client {

namespace {

constexpr std::chrono::seconds kDropPatience{1};  // usually a tenth of a millisecond
constexpr std::chrono::milliseconds kDropsUnlessItWaits{2};

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
  if (OpenFile* const again = OpenAgain(lane, ino, flags); again != nullptr) {
    return again;
  }
  std::optional<OwnChange> own;
  if ((flags & O_TRUNC) != 0) {
    own.emplace(*this, lane, ino);
  }
  // In the table before the request: a revocation may overtake the reply that brings the map.
  const std::shared_ptr<InodeCache> cache = inodes_.Take(ino);
  wire::OpenT body;
  body.ino = ino;
  body.flags = moves_times() ? flags : flags | O_NOATIME;
  body.dropped = (flags & O_TRUNC) != 0 ? cache->Drop() : 0;
  body.caches = WantsPages(ino, flags);
  const uint64_t drops = cache->pages().drops();
  const SharedOpen::Since since = SinceNow(*cache);
  OpenFile* file = nullptr;
  const Status opened = [&]() -> Status {
    ASSIGN_OR_RETURN(const CallReply reply,
                     Call(lane, kFsOpen, Encode<wire::Open>(body), {}, {}, (flags & O_TRUNC) != 0));
    ASSIGN_OR_RETURN(const auto decoded, DecodeOpened(reply.body));
    ASSIGN_OR_RETURN(const Map map, DecodeMap(MapBytes(decoded), link_->max_pages()));
    cache->Install(map, Of(lane).generation());
    cache->number_generation() = decoded.attributes->generation();
    const uint64_t generation = Of(lane).generation();
    RETURN_IF_ERROR(CountOpen(lane, ino, cache));
    if (!body.caches || decoded.caching == wire::Caching::No) {
      file = new OpenFile(ino, flags, cache);
      return Status::Ok();
    }
    const bool leased = decoded.caching == wire::Caching::Yes && cache->pages().Take(drops);
    const uint64_t number = cache->dropping_opens().Begin();  // before another open may find that nothing has changed
    const bool known = known_pages_.Opened(ino, decoded.attributes->ctime(), generation);
    file = FirstOf(std::make_shared<SharedOpen>(ino, flags, cache, since), *decoded.attributes, leased, known, number);
    return Status::Ok();
  }();
  if (!opened.ok()) {
    AfterFailedOpen(lane, opened, cache);
    inodes_.Put(ino, cache);
    return opened;
  }
  return file;
}

OpenFile* VolumeClient::FirstOf(const SharedOpens::Open& open, const wire::Attributes& attributes, bool leased,
                                bool known, uint64_t number) {
  DroppingOpens& dropping = open->cache->dropping_opens();
  const bool kept = leased && known && dropping.AllPassedBut(number);
  if (kept) {
    dropping.Passed(number);
  }
  // Without a lease nobody says that it changes; and nobody opens anew what has no name, but its space is waited for.
  const bool shares = leased && attributes.nlink() > 0;
  if (shares) {
    shared_->Share(open);
  }
  return new OpenFile(open, kept ? PageUse::kKept : PageUse::kFresh, number, shares);
}

// Who writes by direct I/O holds no locks of pages while the server calls his kernel; so only readers keep them.
bool VolumeClient::WantsPages(uint64_t ino, int flags) {
  return caches() && (flags & O_ACCMODE) == O_RDONLY && (flags & (O_TRUNC | O_DIRECT | O_PATH)) == 0 &&
         !known_pages_.Contended(ino, std::chrono::steady_clock::now());
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
  body.umask = who.umask;
  body.flags = flags;
  body.posts_first = MayPostFirst(flags);
  const uint64_t asked = first_writes_.BeginMaking();
  DirectoryChanges::Change change(changes_, parent);
  known_names_.WillAdd(parent, name);
  const auto reply = Call(lane, kFsCreate, Encode<wire::Make>(body), {}, {}, kOnce);
  if (!reply.ok()) {
    AfterFailedOpen(lane, reply.status(), nullptr, [this, parent, made = std::string(name)] {
      if (caches()) {
        DropOwn(parent, made);
      }
    });
    return reply.status();
  }
  ASSIGN_OR_RETURN(const auto opened, DecodeOpened(reply->body));
  const uint64_t generation = Of(lane).generation();
  Of(lane).grants().Granted(opened.entry_ms, opened.attributes_ms);
  Of(lane).grants().GrantedIn(parent);
  Of(lane).grants().Bring(change, opened.directory.get(), opened.directory_ms);
  RenewNames(lane, parent, opened.directory_ms);
  const Attributes attributes = FromWire(*opened.attributes);
  bare_inodes_.Seen(attributes, Of(lane).grants());
  NoteNews(attributes.ino);  // it may have been there, and was truncated
  // A map in the reply (of a file that was there) is not used: its revocation would not have found the inode.
  auto made = TakeMade(lane, attributes, flags);
  // Of set-id bits, which writes may clear, it has none then.
  if (opened.posts_first && made.ok() && (made->first.mode & (S_ISUID | S_ISGID)) == 0) {
    first_writes_.Made(made->first.ino, asked, generation);
  }
  return made;
}

Result<std::pair<Attributes, OpenFile*>> VolumeClient::CreateUnnamed(Lane& lane, Caller who, uint64_t parent,
                                                                     uint32_t mode, int flags) {
  wire::MakeT body;
  body.parent = parent;
  body.mode = S_IFREG | (mode & 07777);
  body.uid = who.uid;
  body.gid = who.gid;
  body.umask = who.umask;
  body.flags = flags;
  constexpr int kAttempts = 4;  // each lost with its session, before we knew that there was a file
  auto made = Result<std::pair<Attributes, OpenFile*>>(Status::Error(EIO, "no attempt"));
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const auto reply = Call(lane, kFsMakeUnnamed, Encode<wire::Make>(body));
    if (!reply.ok()) {
      AfterFailedOpen(lane, reply.status(), nullptr);
      return reply.status();
    }
    ASSIGN_OR_RETURN(const auto opened, DecodeOpened(reply->body));
    made = TakeMade(lane, FromWire(*opened.attributes), flags);
    if (made.status().code() != ESTALE) {
      break;
    }
  }
  return made;
}

Result<std::pair<Attributes, OpenFile*>> VolumeClient::TakeMade(Lane& lane, const Attributes& attributes, int flags) {
  auto cache = inodes_.Take(attributes.ino);
  cache->number_generation() = attributes.generation;
  if (const Status counted = CountOpen(lane, attributes.ino, cache); !counted.ok()) {
    inodes_.Put(attributes.ino, cache);
    return counted;
  }
  return std::pair(attributes, new OpenFile(attributes.ino, flags, std::move(cache)));
}

Status VolumeClient::CountOpen(Lane& lane, uint64_t ino, const std::shared_ptr<InodeCache>& cache) {
  while (!inodes_.Opened(ino, cache, Of(lane).generation())) {
    // The session that opened it was lost before it was counted as open, so it was not opened again with the others.
    if (cache->lost()) {
      return Status::Error(EIO, "the file was lost with the server");
    }
    wire::ReopenT body;
    body.ino = ino;
    body.count = 1;
    body.notify = kernel_cache_ != nullptr;
    RETURN_IF_ERROR(Call(lane, kFsReopen, Encode<wire::Reopen>(body)).status());
  }
  return Status::Ok();
}

Status VolumeClient::CachePages(Lane& lane, OpenFile* file) {
  PageLease& lease = file->cache->pages();
  if (MayCachePages(file)) {
    return Status::Ok();
  }
  RETURN_IF_ERROR(CheckUsable(file));
  if (lease.dropping()) {
    AwaitDropOf(lane, *file);
  }
  const uint64_t drops = lease.drops();
  wire::CachePagesT body;
  body.ino = file->ino;
  body.dropped = lease.dropped();
  RETURN_IF_ERROR(Call(lane, kFsCachePages, Encode<wire::CachePages>(body)).status());
  // If it was taken back already, the kernel waits with dropping until it has what is read now.
  lease.Take(drops);
  return Status::Ok();
}

// The kernel may be through with dropping pages but for saying so, and the page that is read now be in its cache
// already: the lease would be given at once and taken back before a change, again and again while it is read. If it is
// this page that the kernel waits for, it is read after a moment.
void VolumeClient::AwaitDropOf(Lane& lane, const OpenFile& file) {
  ServerWait* const wait = Of(lane).wait();
  if (wait != nullptr) {
    wait->Begin();
  }
  AwaitDropped(&file, kDropsUnlessItWaits);
  if (wait != nullptr) {
    wait->End();
  }
}

void VolumeClient::AwaitDropped(const OpenFile* file) { AwaitDropped(file, kDropPatience); }

void VolumeClient::AwaitDropped(const OpenFile* file, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MutexLock lock(dropping_mutex_);
  while (DropsPages(file) && dropped_.WaitUntil(dropping_mutex_, deadline)) {
  }
}

Status VolumeClient::Sync(Lane& lane, OpenFile* file, bool data_only) {
  RETURN_IF_ERROR(CheckUsable(file));
  wire::SyncT body;
  body.ino = file->ino;
  body.data_only = data_only;
  WriteHistory& writes = file->cache->writes();
  const uint64_t mark = writes.Mark();
  RETURN_IF_ERROR(Call(lane, kFsSync, Encode<wire::Sync>(body)).status());
  writes.Synced(mark);
  if (writes.Tell(file->told)) {
    return Status::Error(EIO, "the server has lost its memory, and with it writes to this file");
  }
  return Status::Ok();
}

Status VolumeClient::SyncDirectory(Lane& lane, uint64_t) {
  return Call(lane, kFsSync, Encode<wire::Sync>({})).status();
}

void VolumeClient::Release(Lane& lane, OpenFile* file) {
  Closed closed{.ino = file->ino};
  const std::vector<LockKey> unlocked = TakeLocks(*file, closed);
  const Closing how = unlocked.empty() ? Closing::kPosted : Closing::kWaits;
  NoteUse(*file);
  if (file->shared == nullptr || !shared_->Leave(file->shared, IsAsOpened(*file->shared))) {
    closed.first = first_writes_.Forgo(file->ino);
    CloseOne(lane, std::move(closed), file->cache, how);
  } else if (!unlocked.empty()) {
    closed.stays_open = true;
    closed.generation = begun_.load();  // who begins one now has seen that these locks are not held any more
    SendRelease(lane, closed, how);
  }
  for (const LockKey& key : unlocked) {
    held_locks_.EndedWith(key);
  }
  delete file;
}

void VolumeClient::CloseOne(Lane& lane, Closed closed, const std::shared_ptr<InodeCache>& cache, Closing how) {
  const InodeCacheTable::Closing closing = inodes_.Closed(closed.ino, cache);
  if (closing.counted) {
    closed.dropped = closing.last ? cache->Drop() : 0;
    closed.generation = closing.generation;
    if (closing.last) {
      cache->pages().Drop();  // the lease ends with it, also for who opens the file just now
    }
    SendRelease(lane, closed, how);
  }
  inodes_.Put(closed.ino, cache);
}

SharedOpen::Since VolumeClient::SinceNow(InodeCache& cache) const {
  return {.when = std::chrono::steady_clock::now(),
          .news = cache.news().load(),
          .all_news = all_news_.load(),
          .written = cache.writes().Mark()};
}

// Nobody else has changed the file while the lease of its pages is held and nothing was recalled.
bool VolumeClient::IsAsOpened(const SharedOpen& open) const {
  InodeCache& cache = *open.cache;
  return cache.pages().held() && !cache.lost() && cache.news().load() == open.since.news &&
         all_news_.load() == open.since.all_news && cache.writes().Mark() == open.since.written;
}

void VolumeClient::NoteNews(uint64_t ino) {
  if (shared_ == nullptr) {
    return;
  }
  if (const std::shared_ptr<InodeCache> cache = inodes_.Find(ino)) {
    cache->news().fetch_add(1);
  }
}

OpenFile* VolumeClient::OpenAgain(Lane& lane, uint64_t ino, int flags) {
  const SharedOpens::Open open = shared_ != nullptr ? shared_->Join(ino, flags) : nullptr;
  if (open == nullptr) {
    return nullptr;
  }
  if (!IsAsOpened(*open)) {
    if (!shared_->Leave(open, false)) {
      CloseOne(lane, {.ino = ino}, open->cache);
    }
    return nullptr;
  }
  opens_again_.Add();
  DroppingOpens& dropping = open->cache->dropping_opens();
  return dropping.AllPassed() ? new OpenFile(open, PageUse::kKept, 0, true)
                              : new OpenFile(open, PageUse::kFresh, dropping.Begin(), true);
}

void VolumeClient::Unshare(Lane& lane, uint64_t ino, Closing how) {
  if (const SharedOpens::Open idle = shared_ != nullptr ? shared_->Take(ino) : nullptr) {
    CloseOne(lane, {.ino = ino}, idle->cache, how);
  } else if (shared_ != nullptr && how == Closing::kWaits) {
    shared_->AwaitClosed({ino}, std::chrono::steady_clock::now());
  }
}

void VolumeClient::Unshare(Lane& lane, const std::vector<uint64_t>& changed) {
  for (const uint64_t ino : changed) {
    NoteNews(ino);
    Unshare(lane, ino, Closing::kWaits);  // it may be gone, and who removes a file wants its space
  }
  if (changed.empty() && shared_ != nullptr) {
    all_news_.fetch_add(1);
    for (const SharedOpens::Open& idle : shared_->TakeAll()) {
      CloseOne(lane, {.ino = idle->ino}, idle->cache);
    }
  }
}

void VolumeClient::UnshareChanged(Lane& lane, const Result<CallReply>& reply) {
  if (shared_ == nullptr || (!reply.ok() && !GivenUp(reply.status()))) {
    return;
  }
  const auto decoded = reply.ok() ? Decode<wire::AttributesReply>(reply->body) : reply.status();
  Unshare(lane, decoded.ok() ? decoded->changed : std::vector<uint64_t>());
}

std::vector<std::byte> VolumeClient::EncodeRelease(const Closed& closed) {
  wire::ReleaseT body;
  body.ino = closed.ino;
  body.dropped = closed.dropped;
  body.record_owners = closed.record_owners;
  body.flock_owners = closed.flock_owners;
  body.first = static_cast<uint8_t>(closed.first);
  body.stays_open = closed.stays_open;
  return Encode<wire::Release>(body);
}

void VolumeClient::SendRelease(Lane& lane, const Closed& closed, Closing how) {
  const auto encoded = EncodeRelease(closed);
  const auto post = [&] {
    return link_->PostIn(closed.generation, Of(lane), {.opcode = kFsRelease, .body = encoded, .in = {}, .out = {}});
  };
  const auto wait = [&] {
    if (const Status heard = link_->AwaitPosted(closed.generation, Of(lane)); !heard.ok()) {
      LOG_DEBUG("closing inode {}: {}", closed.ino, heard.ToDebugString());
    }
  };
  metadata_.Add();
  Status posted = post();
  if (posted.code() == EAGAIN && how == Closing::kWaits) {
    wait();  // too many are under way
    posted = post();
  }
  if (posted.code() == EAGAIN) {
    DeferRelease(closed);
  } else if (posted.ok() && how == Closing::kWaits) {
    wait();
  } else if (!posted.ok() && posted.code() != ENOTCONN) {  // ENOTCONN: nothing is open any more
    LOG_WARNING("closing inode {}: {}", closed.ino, posted.ToDebugString());
  }
}

void VolumeClient::DeferRelease(const Closed& closed) {
  MutexLock lock(deferred_mutex_);
  deferred_.push_back(closed);
  has_deferred_.store(true, std::memory_order_relaxed);
}

void VolumeClient::SendDeferred(Lane& lane) {
  std::vector<Closed> due;
  {
    MutexLock lock(deferred_mutex_);
    due.swap(deferred_);
    has_deferred_.store(false, std::memory_order_relaxed);
  }
  for (const Closed& closed : due) {
    SendRelease(lane, closed, Closing::kPosted);
  }
}

void VolumeClient::AfterFailedOpen(Lane& lane, const Status& status, const std::shared_ptr<InodeCache>& cache,
                                   std::function<void()> then) {
  if (!GivenUp(status)) {
    return AfterFailure(lane, status, cache);
  }
  if (cache != nullptr) {
    cache->BeginDoubt();
  }
  Of(lane).AfterGivenUp([this, cache, then = std::move(then),
                         generation = Of(lane).generation()](const Result<std::span<const std::byte>>& late) {
    if (then != nullptr) {
      then();
    }
    if (cache != nullptr) {
      cache->EndDoubt();
    }
    if (!late.ok()) {
      return;
    }
    if (const auto opened = DecodeOpened(*late); opened.ok()) {
      DeferRelease({.ino = opened->attributes->ino(), .dropped = 0, .generation = generation});
    }
  });
}

Result<uint64_t> VolumeClient::Seek(Lane& lane, OpenFile* file, uint64_t offset, int whence) {
  RETURN_IF_ERROR(CheckUsable(file));
  wire::SeekT body;
  body.ino = file->ino;
  body.offset = offset;
  body.whence = whence;
  ASSIGN_OR_RETURN(const CallReply reply, Call(lane, kFsSeek, Encode<wire::Seek>(body)));
  ASSIGN_OR_RETURN(const auto position, Decode<wire::Position>(reply.body));
  return position.offset;
}

Status VolumeClient::Allocate(Lane& lane, OpenFile* file, int mode, uint64_t offset, uint64_t length) {
  RETURN_IF_ERROR(CheckUsable(file));
  PageChange change(*this, lane, file);
  if ((mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) != 0) {
    RETURN_IF_ERROR(change.Begin(offset, length));
  }
  wire::AllocateT body;
  body.ino = file->ino;
  body.mode = mode;
  body.offset = offset;
  body.length = length;
  body.dropped = file->cache->Drop();
  Status allocated = Call(lane, kFsAllocate, Encode<wire::Allocate>(body)).status();
  kept_.NoteOwnChange();
  AfterFailure(lane, allocated, file->cache);
  if (allocated.ok() || GivenUp(allocated)) {  // parts of pages may have been zeroed by writing them
    file->cache->writes().Wrote(Of(lane).generation());
  }
  if (allocated.ok() && (file->flags & O_DSYNC) != 0) {  // as ext4 and XFS have it; O_SYNC includes the bit
    return Sync(lane, file, (file->flags & O_SYNC) != O_SYNC);
  }
  return allocated;
}

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
//
// Open, create, release. An opener is counted before the inode is looked at, so that whoever removes its last name at
// the same time sees the opener, or the opener sees that the name is gone (fs/server/ending.h).
#include <fcntl.h>

#include "fs/proto/codec.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

namespace {

// Holds the inode, not its data: a directory that is listed, a special file that a kernel knows.
bool OnlyHolds(int flags) { return (flags & O_PATH) != 0; }

constexpr uint64_t kMaxOpensPerSession = uint64_t{1} << 20;  // of one inode; keeps the count from being a weapon

}  // namespace

Result<InodeRef> FileService::FindOpen(const Request& request, uint64_t ino) {
  RETURN_IF_ERROR(AwaitFirst(request, ino));
  ASSIGN_OR_RETURN(InodeRef inode, FindOpenNow(request, ino));
  const bool is_empty = [&] {
    MutexLock lock(inode->mutex);
    return inode->size == 0;
  }();
  if (is_empty && coherence_.AnyEarlier()) {
    coherence_.AwaitEarlier();
    RETURN_IF_ERROR(AwaitFirst(request, ino));
  }
  return inode;
}

Result<InodeRef> FileService::FindOpenNow(const Request& request, uint64_t ino) {
  InodeRef inode = inodes_.Find(ino);
  if (inode) {
    MutexLock lock(inode->mutex);
    if (inode->loaded && inode->opens.contains(request.session.id)) {
      return inode;
    }
  }
  return Status::Error(EBADF, "the session does not have the file open");
}

Result<Bytes> FileService::Open(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Open>(request.call.body()));
  if (body.dropped != 0) {
    if (const InodeRef inode = inodes_.Find(body.ino)) {
      MutexLock lock(inode->mutex);
      inode->Drop(request.session.id, body.dropped);
    }
  }
  const int done = request.receipt != nullptr ? O_TRUNC : 0;
  if (done != 0) {
    coherence_.Recall(request.session.id, {body.ino}, {});
  }
  return OpenInode(request, body.ino, body.flags & ~done, body.caches);
}

Result<Bytes> FileService::OpenInode(const Request& request, uint64_t ino, int flags, bool caches) {
  RETURN_IF_ERROR(AwaitFirst(request, ino));
  const bool may_come = FirstMayCome();
  const InodeRef inode = inodes_.Get(ino);
  bool ending;
  {
    MutexLock lock(inode->mutex);
    Opener& opener = inode->opens[request.session.id];
    if (opener.count >= kMaxOpensPerSession) {
      return Status::Error(EMFILE, "too many open handles of one file");
    }
    ++opener.count;
    ending = inode->releasing;
  }
  // Before the attributes are read: what they tell of the contents holds for as long as it has the lease.
  const wire::Caching caching = caches ? LeaseAtOpen(*inode, request.session) : wire::Caching::No;
  if (caching == wire::Caching::Yes) {  // its client may open it again by itself, until any attribute changes
    coherence_.grants().AddAlways(GrantKey::Attributes(ino), request.session.id);
  }
  auto attributes = [&]() -> Result<metadata::Attributes> {
    if (ending) {
      RETURN_IF_ERROR(GateHold::Enter(*inode, GateMode::kShared, request.session).status());
    }
    return OnlyHolds(flags) ? LoadHeld(request, names_, *inode) : LoadOpened(request, *inode, flags);
  }();
  if (attributes.ok()) {
    const auto waited = AwaitFirst(request, may_come, *attributes);
    if (!waited.ok()) {
      attributes = waited.status();
    } else if (*waited) {
      attributes = request.Blocking([&] { return names_.GetAttr(ino); });
    }
  }
  if (attributes.ok() && (flags & O_TRUNC) != 0 && !OnlyHolds(flags)) {  // O_RDONLY as well: the kernel has checked
    const Status truncated = [&]() -> Status {
      ShrunkFile shrunk(coherence_, *inode, request.session.id);
      ASSIGN_OR_RETURN(GateHold hold, EnterToChange(request, *inode, GateMode::kExclusive));
      RETURN_IF_ERROR(Truncate(request, *inode, 0, false, shrunk));
      hold.Leave();
      coherence_.DropPages(*inode, request.session.id);
      return Status::Ok();
    }();
    coherence_.Recall(request.session.id, {ino}, {});
    attributes = truncated.ok() ? request.Blocking([&] { return names_.GetAttr(ino); }) : truncated;
  }
  if (!attributes.ok()) {
    const Status closed = CloseOne(request, *inode);
    return attributes.status().ok() ? closed : attributes.status();
  }
  wire::OpenedT reply;
  reply.attributes = std::make_unique<wire::Attributes>(ToWire(Report(*attributes)));
  reply.caching = caching;
  Bytes map;
  {
    MutexLock lock(inode->mutex);
    const bool counts = (flags & O_ACCMODE) != O_WRONLY && (flags & O_NOATIME) == 0;
    const bool moves_atime =
        counts &&
        AccessTimeIsDue({.access = inode->atime, .modification = inode->mtime, .change = inode->ctime}, Now());
    EncodeMap(moves_atime ? inode->Withhold(versions_) : inode->Grant(request.session.id, 0, versions_), map);
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(map.data());
  reply.map.assign(bytes, bytes + map.size());
  return Encode<wire::Opened>(reply);
}

Result<metadata::Attributes> FileService::LoadOpened(const Request& request, Inode& inode, int flags) {
  uint64_t frees;
  uint64_t forgotten;
  {
    MutexLock lock(inode.mutex);
    frees = inode.frees.load(std::memory_order_relaxed);
    forgotten = inode.forgotten;
  }
  std::vector<metadata::Extent> extents;
  bool known = false;  // up to the last of `extents`
  const auto attributes = request.Blocking([&]() -> Result<metadata::Attributes> {
    ASSIGN_OR_RETURN(const auto a, names_.GetAttr(inode.ino));
    if (a.type() == metadata::FileType::kRegular && a.size > 0 && (flags & O_ACCMODE) != O_WRONLY) {
      ASSIGN_OR_RETURN(extents, names_.GetExtents(inode.ino, 0, PagesFor(a.size), kMaxMapSegments));
      known = true;
    }
    return a;
  });
  RETURN_IF_ERROR(attributes.status());
  if (attributes->is_directory()) {
    return Status::Error(EISDIR, "a directory is not opened here");
  }
  if (attributes->type() != metadata::FileType::kRegular) {
    return Status::Error(EINVAL, "not a regular file");
  }
  MutexLock lock(inode.mutex);
  if (attributes->nlink == 0 && ((!inode.loaded && inode.graces == 0) || inode.releasing)) {
    return Status::Error(ESTALE, "the file has been removed");
  }
  if (!inode.loaded) {
    LoadInode(inode, *attributes);
  }
  if (known && inode.frees.load(std::memory_order_relaxed) == frees && inode.forgotten == forgotten && !inode.frozen) {
    uint64_t page = 0;
    for (const metadata::Extent& e : extents) {
      if (e.file_page > page) {
        inode.extents.FillUnknown({page, e.file_page - page, kHole});
      }
      inode.extents.FillUnknown({e.file_page, e.pages, e.region_page.value});
      page = e.file_page + e.pages;
    }
    const uint64_t end = PagesFor(attributes->size);
    if (extents.size() < kMaxMapSegments && page < end) {
      inode.extents.FillUnknown({page, end - page, kHole});
    }
  }
  return *attributes;
}

Result<metadata::Attributes> FileService::LoadHeld(const Request& request, metadata::Namespace& names, Inode& inode) {
  ASSIGN_OR_RETURN(const auto attributes, request.Blocking([&] { return names.GetAttr(inode.ino); }));
  if (attributes.type() == metadata::FileType::kRegular) {
    return Status::Error(EINVAL, "a regular file is opened to be read or written");
  }
  MutexLock lock(inode.mutex);
  if (attributes.nlink == 0 && ((!inode.held && inode.graces == 0) || inode.releasing)) {
    return Status::Error(ESTALE, "it has been removed");
  }
  inode.held = true;
  return attributes;
}

Result<metadata::Attributes> FileService::CreateOpen(const Request& request, const wire::MakeT& body,
                                                     const MakeInode& make) {
  return request.Blocking([&]() -> Result<metadata::Attributes> {
    metadata::NewInode wanted{.mode = S_IFREG | (body.mode & 07777), .rdev = 0, .symlink_target = {}};
    ASSIGN_OR_RETURN(wanted.ino, names_.NextInode());
    const bool posts_first = body.posts_first && ExpectFirst(request, wanted.ino);
    const InodeRef inode = inodes_.Get(wanted.ino);
    {
      MutexLock lock(inode->mutex);
      inode->opens[request.session.id] = {.count = 1};
    }
    auto made = make(wanted);
    if (posts_first && (!made.ok() || HasQuota(wanted.ino))) {
      newborns_.Forgo(wanted.ino, request.session.id);
    }
    MutexLock lock(inode->mutex);
    if (!made.ok()) {
      inode->CloseAll(request.session.id);
    } else if (!inode->loaded) {
      LoadInode(*inode, *made);
      inode->extents.Set({0, kMaxFilePages, kHole});
      inode->tail_dirty = false;
      inode->unsynced = {};
      inode->unlinked |= made->nlink == 0;  // or somebody has removed it by now
    }
    return made;
  });
}

Result<Bytes> FileService::DescribeOpened(const Request& request, const metadata::Attributes& granted, uint64_t parent,
                                          const Granting& granting) {
  wire::OpenedT reply;
  reply.attributes = std::make_unique<wire::Attributes>(ToWire(Report(granted)));
  reply.entry_ms = Milliseconds(granting.entry());
  reply.attributes_ms = Milliseconds(granting.attributes());
  reply.posts_first = newborns_.Has(granted.ino);
  BringDirectory(request, parent, reply);
  // No map: the client could not know yet which inode a revocation that overtakes this reply would mean.
  return Encode<wire::Opened>(reply);
}

Result<Bytes> FileService::Reopen(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Reopen>(request.call.body()));
  clients_.Resuming(request.session.client);
  RETURN_IF_ERROR(ReopenInode(request, body.ino, body.count, body.notify).status());
  return Bytes{};
}

Result<metadata::Attributes> FileService::ReopenInode(const Request& request, uint64_t ino, uint64_t count,
                                                      bool notify) {
  const InodeRef inode = inodes_.Get(ino);
  bool ending;
  {
    MutexLock lock(inode->mutex);
    ending = inode->releasing;
  }
  if (ending) {
    RETURN_IF_ERROR(GateHold::Enter(*inode, GateMode::kShared, request.session).status());
  }
  {
    MutexLock lock(inode->mutex);
    if (inode->releasing) {
      return Status::Error(ESTALE, "the file has been removed");
    }
    const auto known = inode->opens.find(request.session.id);
    if (count == 0 || count > kMaxOpensPerSession - (known != inode->opens.end() ? known->second.count : 0)) {
      return Status::Error(EMFILE, "too many open handles of one file");
    }
    Opener& opener = inode->opens[request.session.id];
    opener.count += count;
    opener.caches |= notify;
    opener.size_unsure |= notify;
  }
  auto attributes = request.Blocking([&] { return names_.GetAttr(ino); });
  MutexLock lock(inode->mutex);
  if (attributes.ok()) {
    if (attributes->type() != metadata::FileType::kRegular) {
      inode->held = true;
    } else if (!inode->loaded) {
      LoadInode(*inode, *attributes);
    }
    inode->unlinked |= attributes->nlink == 0;
    return attributes;
  }
  const auto opener = inode->opens.find(request.session.id);
  // A peer that closes what it has not opened may have been here before.
  if (opener != inode->opens.end() && (opener->second.count -= std::min(opener->second.count, count)) == 0) {
    inode->CloseAll(request.session.id);
  }
  return attributes;
}

Result<Bytes> FileService::Resumed(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Resumed>(request.call.body()));
  BeginLockSession(request);
  request.call.RunBlocking([&] { clients_.NoteResumed(request.session.client); });
  clients_.Resumed(request.session.client);
  coherence_.ClientDropped(request.session.client);
  newborns_.ClientSettled(request.session.client, request.session.id);
  reclaimer_.Kick();
  wire::MemoryT reply;
  reply.kept = body.start >= kept_since_;
  request.session.writes_lost.store(!reply.kept, std::memory_order_relaxed);
  return Encode<wire::Memory>(reply);
}

Result<Bytes> FileService::Release(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::Release>(request.call.body()));
  const InodeRef inode = inodes_.Find(body.ino);
  if (!inode) {
    return Status::Error(EBADF, "nobody has it open");
  }
  {
    MutexLock lock(inode->mutex);
    if (!inode->opens.contains(request.session.id)) {
      return Status::Error(EBADF, "the session does not have it open");
    }
    inode->Drop(request.session.id, body.dropped);
  }
  if (body.stays_open) {
    RETURN_IF_ERROR(ReleaseOwners(request.session, body));
    return Bytes{};
  }
  const auto first = static_cast<FirstWrite>(body.first);
  RETURN_IF_ERROR(HearOfFirst(request, body.ino, first == FirstWrite::kPosted ? first : FirstWrite::kForgone));
  RETURN_IF_ERROR(ReleaseOwners(request.session, body));
  RETURN_IF_ERROR(CloseOne(request, *inode));
  return Bytes{};
}

Status FileService::CloseOne(const Request& request, Inode& inode) {
  bool last;
  bool unlinked;
  bool in_grace;
  bool owes;
  LockTable::Tickets granted;
  {
    MutexLock lock(inode.mutex);
    const auto opener = inode.opens.find(request.session.id);
    if (opener != inode.opens.end() && --opener->second.count == 0) {
      inode.CloseAll(request.session.id);
      // What was left: locks whose owner never learned of them. Now, before somebody opens it anew and locks it.
      DropLocksOf(request.session, inode.ino, granted);
    }
    last = inode.opens.empty();
    unlinked = inode.unlinked;
    in_grace = inode.graces > 0;
    owes = inode.times_dirty || inode.ahead_noted;
    if (last && unlinked) {
      inode.times_dirty = inode.ahead_noted = false;
    }
  }
  TellGranted(granted);
  if (!last) {
    return Status::Ok();
  }
  if (unlinked) {
    if (!in_grace) {  // else it is given to the reclaimer when that ends
      reclaimer_.AddOrphan(inode.ino);
    }
    return Status::Ok();
  }
  if (!owes) {
    return Status::Ok();
  }
  auto hold = GateHold::Enter(inode, GateMode::kExclusive, request.session);
  const Result<bool> closed =
      hold.ok() ? request.Blocking([&] { return Reclaimer::CloseLast(names_, inode); }) : hold.status();
  if (!closed.ok()) {
    reclaimer_.AddClosed(inode.ino);
    return closed.status();
  }
  reclaimer_.NoteIfDirty(inode);
  reclaimer_.NoteChange();
  if (*closed) {  // which no attribute shows: what was allocated ahead was never counted
    hold->Leave();
    reclaimer_.Kick();
  }
  return Status::Ok();
}

}  // namespace termfs::fs::server

// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/page.h"
#include "mount/convert.h"
#include "mount/errno.h"
#include "mount/front_end.h"
#include "mount/fuse_operations.h"

namespace termfs::mount {
namespace {

constexpr int kMostRounds = 256;  // of asking for attributes of a file that others change all the time
constexpr std::chrono::microseconds kLookAgain{50};
constexpr int kMostGroups = 65536;  // that Linux lets a thread be in

// Of an inode that the kernel knows, with the time for which it may keep them.
struct Known {
  Result<fs::Attributes> attributes;
  double keep = 0;
};
Known Ask(FrontEnd& front, fuse_ino_t ino) {
  Known known{.attributes = front.file_system().GetAttributes(FrontEnd::lane(), ino)};
  if (known.attributes.ok()) {
    front.directories().Seen(*known.attributes);
    known.keep = FrontEnd::Keep(&*known.attributes).attributes;
  } else if (const auto removed = front.Removed(ino, known.attributes.status())) {
    known.attributes = *removed;
  }
  return known;
}

fs::client::SetAttributes ToSetAttributes(const struct stat& attributes, int which) {
  fs::client::SetAttributes set;
  if ((which & FUSE_SET_ATTR_MODE) != 0) {
    set.mode = attributes.st_mode & 07777;
  }
  if ((which & FUSE_SET_ATTR_UID) != 0) {
    set.uid = attributes.st_uid;
  }
  if ((which & FUSE_SET_ATTR_GID) != 0) {
    set.gid = attributes.st_gid;
  }
  if ((which & FUSE_SET_ATTR_SIZE) != 0) {
    set.size = static_cast<uint64_t>(attributes.st_size);
  }
  set.atime_now = (which & FUSE_SET_ATTR_ATIME_NOW) != 0;
  set.mtime_now = (which & FUSE_SET_ATTR_MTIME_NOW) != 0;
  if ((which & FUSE_SET_ATTR_ATIME) != 0 && !set.atime_now) {
    set.atime = ToNanoseconds(attributes.st_atim);
  }
  if ((which & FUSE_SET_ATTR_MTIME) != 0 && !set.mtime_now) {
    set.mtime = ToNanoseconds(attributes.st_mtim);
  }
  return set;
}

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18)
statx_timestamp ToStatxTime(int64_t nanoseconds) {
  const timespec time = ToTimespec(nanoseconds);
  statx_timestamp result{};
  result.tv_sec = time.tv_sec;
  result.tv_nsec = static_cast<uint32_t>(time.tv_nsec);
  return result;
}

struct statx ToStatx(const fs::Attributes& attributes) {
  const struct stat st = ToStat(attributes);
  struct statx sx {};
  sx.stx_mask = STATX_BASIC_STATS | STATX_BTIME;
  sx.stx_blksize = static_cast<uint32_t>(st.st_blksize);
  sx.stx_nlink = static_cast<uint32_t>(st.st_nlink);
  sx.stx_uid = st.st_uid;
  sx.stx_gid = st.st_gid;
  sx.stx_mode = static_cast<uint16_t>(st.st_mode);
  sx.stx_ino = st.st_ino;
  sx.stx_size = attributes.size;
  sx.stx_blocks = attributes.blocks;
  sx.stx_atime = ToStatxTime(attributes.atime);
  sx.stx_btime = ToStatxTime(attributes.btime);
  sx.stx_ctime = ToStatxTime(attributes.ctime);
  sx.stx_mtime = ToStatxTime(attributes.mtime);
  sx.stx_rdev_major = major(st.st_rdev);
  sx.stx_rdev_minor = minor(st.st_rdev);
  return sx;
}
#endif

}  // namespace

Result<bool> LosesGroupId(fuse_req_t request, fuse_ino_t ino) {
  const fuse_ctx& caller = *fuse_req_ctx(request);
  if (caller.uid == 0) {
    return false;
  }
  ASSIGN_OR_RETURN(const fs::Attributes file, FrontEnd::Of(request).file_system().GetAttributes(FrontEnd::lane(), ino));
  if ((file.mode & S_ISGID) == 0 || caller.gid == file.gid) {
    return false;
  }
  std::vector<gid_t> groups(kMostGroups);
  const int count = fuse_req_getgroups(request, static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<size_t>(std::clamp(count, 0, kMostGroups)));
  return std::find(groups.begin(), groups.end(), file.gid) == groups.end();
}

void FinishCut(KernelCacheNotifier::OwnCut& cut) {
  if (!cut.MayWait()) [[likely]] {
    return;
  }
  FuseServer::Wait wait;
  if (const Status prepared = wait.Prepare(); !prepared.ok()) {
    LOG_DEBUG("a thread waits for a page: {}", prepared.ToString());
  }
  cut.BeforeAnswer();
}

// With nothing to set come chown(-1, -1), which clears the set-id bits of the caller's file, and fallocate and
// copy_file_range by who may write it; the kernel does not say which it is.
Result<bool> ClearsByNothing(fuse_req_t request, fuse_ino_t ino) {
  ASSIGN_OR_RETURN(const fs::Attributes now, FrontEnd::Of(request).file_system().GetAttributes(FrontEnd::lane(), ino));
  const uint32_t caller = fuse_req_ctx(request)->uid;
  return !S_ISDIR(now.mode) && (now.mode & (S_ISUID | S_ISGID)) != 0 && (caller == 0 || caller == now.uid);
}

// A read by the page cache begins with a look at the attributes.
void LetPagesGo(FrontEnd& front, const fuse_file_info* info) {
  if (!front.file_system().DropsPages(FileOf(info))) [[likely]] {
    return;
  }
  // Another thread serves meanwhile: the pages may be locked by reads that are still to be received.
  FuseServer::Wait wait;
  if (wait.Prepare().ok()) {
    front.file_system().AwaitDropped(FileOf(info));
  }
}

// By a handle that the kernel caches: most of the time for a read, which goes by the size that the kernel has
// afterwards.
Known AskForReader(FrontEnd& front, fuse_ino_t ino) {
  KernelCacheNotifier& cache = front.cache();
  const uint32_t reader = FuseServer::request().caller;
  for (int round = 0;; ++round) {
    const uint64_t notifications = cache.sizes().notifications(ino);
    Known known = Ask(front, ino);
    if (!known.attributes.ok()) {
      return known;
    }
    const uint64_t size = known.attributes->size;
    if (cache.IsCutting(ino)) {  // the kernel drops this answer
      cache.sizes().Unsure(ino, std::chrono::steady_clock::now());
    }
    auto next = cache.sizes().Show(ino, size, notifications, reader, std::chrono::steady_clock::now());
    if (next == ReaderSizes::Next::kAskAgain && round == kMostRounds) {
      cache.sizes().BeginStore(ino, std::chrono::steady_clock::now());
      next = ReaderSizes::Next::kStore;
    }
    if (next == ReaderSizes::Next::kStore) {
      FuseServer::Wait wait;
      if (const Status prepared = wait.Prepare(); !prepared.ok()) {
        LOG_DEBUG("a thread waits for a page: {}", prepared.ToString());
      }
      cache.StoreSize(ino, size);
      cache.sizes().Stored(ino, size, notifications);
      known.keep = FrontEnd::Keep(&*known.attributes).attributes;
    }
    if (known.keep == 0) {
      cache.sizes().Unsure(ino, std::chrono::steady_clock::now());
    }
    if (next != ReaderSizes::Next::kAskAgain) {
      return known;
    }
    std::this_thread::sleep_for(kLookAgain);  // the kernel is being notified
  }
}

Known AskFor(FrontEnd& front, fuse_ino_t ino, const fuse_file_info* info) {
  if (info != nullptr) {
    front.cache().sizes().Asks(ino, FuseServer::request().caller, std::chrono::steady_clock::now());
    LetPagesGo(front, info);
    if (front.file_system().pages(FileOf(info)) != fs::client::PageUse::kNone) {
      return AskForReader(front, ino);
    }
  }
  Known known = Ask(front, ino);
  if (known.attributes.ok()) {
    front.cache().sizes().NoteGiven(ino, known.attributes->size);
  }
  return known;
}

void OnGetAttributes(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info) {
  const Known known = AskFor(FrontEnd::Of(request), ino, info);
  if (!known.attributes.ok()) {
    return Reply(request, known.attributes.status());
  }
  const struct stat st = ToStat(*known.attributes);
  fuse_reply_attr(request, &st, known.keep);
}

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18)
void OnStatx(fuse_req_t request, fuse_ino_t ino, int, int, fuse_file_info* info) {
  FrontEnd& front = FrontEnd::Of(request);
  const Known known = AskFor(front, ino, info);
  if (!known.attributes.ok()) {
    return Reply(request, known.attributes.status());
  }
  struct statx sx = ToStatx(*known.attributes);
  fuse_reply_statx(request, 0, &sx, known.keep);
}
#endif

// The server has refused to set them; what a removed directory has is set here.
void ReplyNotSet(fuse_req_t request, fuse_ino_t ino, const fs::client::SetAttributes& set, const Status& status) {
  KnownDirectories& directories = FrontEnd::Of(request).directories();
  const auto removed =
      status.code() == ESTALE ? directories.SetRemoved(ino, set, Clock::System().RealTime().count()) : std::nullopt;
  if (!removed) {
    return Reply(request, status);
  }
  const struct stat st = ToStat(*removed);
  fuse_reply_attr(request, &st, 0);
}

void OnSetAttributes(fuse_req_t request, fuse_ino_t ino, struct stat* attributes, int which, fuse_file_info* info) {
  FrontEnd& front = FrontEnd::Of(request);
  fs::client::SetAttributes set = ToSetAttributes(*attributes, which);
  // chown and truncate clear the set-id bits; the kernel says when (of a directory it does not), and then leaves the
  // mode out.
  set.clears_privileges = FuseServer::request().clears_privileges;
  if (which == 0) {
    const auto clears = ClearsByNothing(request, ino);
    if (!clears.ok()) {
      return ReplyNotSet(request, ino, set, clears.status());
    }
    set.clears_privileges = *clears;
  }
  if (set.clears_privileges && (which == 0 || set.uid.has_value() || set.gid.has_value())) {
    const auto loses = LosesGroupId(request, ino);
    if (!loses.ok()) {
      return ReplyNotSet(request, ino, set, loses.status());
    }
    set.clears_group_id = *loses;
  }
  fs::client::OpenFile* const file = FileOf(info);
  std::optional<KernelCacheNotifier::OwnCut> cut;
  if (set.size.has_value()) {
    cut.emplace(front.cache(), ino);
  }
  const Result<fs::Attributes> now = front.file_system().Set(FrontEnd::lane(), ino, set, file);
  if (const Status kept = !now.ok()         ? Status::Ok()
                          : file != nullptr ? front.KeepFile(file)
                                            : front.KeepAttributes(ino);
      !kept.ok()) {
    return Reply(request, kept);
  }
  if (!now.ok()) {
    return ReplyNotSet(request, ino, set, now.status());
  }
  front.directories().Seen(*now);
  front.cache().sizes().NoteGiven(ino, now->size);
  if (cut.has_value()) {
    FinishCut(*cut);
  }
  const struct stat st = ToStat(*now);
  fuse_reply_attr(request, &st, FrontEnd::Keep(&*now).attributes);
}

void OnStatFs(fuse_req_t request, fuse_ino_t ino) {
  const Result<fs::FileSystemStatus> status = FrontEnd::Of(request).file_system().StatFs(FrontEnd::lane(), ino);
  if (!status.ok()) {
    return Reply(request, status.status());
  }
  struct statvfs answer {};
  answer.f_bsize = kPageSize;
  answer.f_frsize = kPageSize;
  answer.f_blocks = status->capacity_bytes / kPageSize;
  answer.f_bfree = status->free_bytes / kPageSize;
  answer.f_bavail = answer.f_bfree;
  answer.f_files = status->inodes_used + status->inodes_free;
  answer.f_ffree = status->inodes_free;
  answer.f_favail = status->inodes_free;
  answer.f_namemax = fs::kMaxName;
  fuse_reply_statfs(request, &answer);
}

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
#include "mount/convert.h"

#include <limits>

#include "mount/errno.h"
#include "mount/front_end.h"

namespace termfs::mount {
namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr int64_t kOldestSecond = -(int64_t{1} << 31);  // in 1901, as on ext4; what is older becomes this
// What st_blksize recommends. Reads and writes are direct, so programs should come with more than a page at a time.
constexpr blksize_t kPreferredIo = 128 << 10;

}  // namespace

bool IsSpecial(uint32_t mode) { return S_ISFIFO(mode) || S_ISSOCK(mode) || S_ISCHR(mode) || S_ISBLK(mode); }

timespec ToTimespec(int64_t nanoseconds) {
  int64_t seconds = nanoseconds / kNanosecondsPerSecond;
  int64_t rest = nanoseconds % kNanosecondsPerSecond;
  if (rest < 0) {
    seconds--;
    rest += kNanosecondsPerSecond;
  }
  return {.tv_sec = seconds, .tv_nsec = rest};
}

int64_t ToNanoseconds(const timespec& time) {
  if (time.tv_sec <= kOldestSecond) {
    return kOldestSecond * kNanosecondsPerSecond;
  }
  int64_t result = 0;
  if (__builtin_mul_overflow(int64_t{time.tv_sec}, kNanosecondsPerSecond, &result) ||
      __builtin_add_overflow(result, int64_t{time.tv_nsec}, &result)) {
    return std::numeric_limits<int64_t>::max();
  }
  return result;
}

struct stat ToStat(const fs::Attributes& attributes) {
  struct stat st {};
  st.st_ino = attributes.ino;
  st.st_mode = attributes.mode;
  st.st_nlink = attributes.nlink;
  st.st_uid = attributes.uid;
  st.st_gid = attributes.gid;
  st.st_rdev = attributes.rdev;
  st.st_size = static_cast<off_t>(attributes.size);
  st.st_blocks = static_cast<blkcnt_t>(attributes.blocks);
  st.st_blksize = kPreferredIo;
  st.st_atim = ToTimespec(attributes.atime);
  st.st_mtim = ToTimespec(attributes.mtime);
  st.st_ctim = ToTimespec(attributes.ctime);
  return st;
}

fuse_entry_param ToEntry(const fs::Attributes& attributes, const fs::client::Keep& keep) {
  fuse_entry_param entry{};
  entry.ino = attributes.ino;
  // Of the root the kernel has made up its own before it asked for anything; with another one the root would be stale.
  entry.generation = attributes.ino == FUSE_ROOT_ID ? 0 : attributes.generation;
  entry.attr = ToStat(attributes);
  entry.attr_timeout = keep.attributes;
  entry.entry_timeout = keep.entry;
  return entry;
}

fs::client::Caller CallerOf(fuse_req_t request) {
  const fuse_ctx* context = fuse_req_ctx(request);
  return {.uid = context->uid, .gid = context->gid, .umask = context->umask};
}

void ReplyEntry(fuse_req_t request, const Result<fs::Attributes>& made) {
  FrontEnd& front = FrontEnd::Of(request);
  const fs::client::Keep keep = front.Keep(made.ok() ? &*made : nullptr);
  if (made.status().code() == ENOENT && keep.entry > 0) {
    const fuse_entry_param nothing{
        .ino = 0, .generation = 0, .attr = {}, .attr_timeout = 0, .entry_timeout = keep.entry};
    fuse_reply_entry(request, &nothing);
    return;
  }
  if (!made.ok()) {
    return Reply(request, made.status());
  }
  front.cache().sizes().NoteGiven(made->ino, made->size);
  const bool special = IsSpecial(made->mode);
  const bool directory = S_ISDIR(made->mode);
  if (special) {
    front.Hold(FrontEnd::lane(), made->ino);
  } else if (directory) {
    front.directories().LookedUp(*made);
  }
  // Not kept for a special file: a request has passed since the keep was looked at.
  const fuse_entry_param entry = ToEntry(*made, special ? fs::client::Keep{} : keep);
  if (fuse_reply_entry(request, &entry) != 0 && (special || directory)) {
    front.Forget(FrontEnd::lane(), made->ino, 1);  // the caller was interrupted
  }
}

}  // namespace termfs::mount

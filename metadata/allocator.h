// SPDX-License-Identifier: Apache-2.0
//
// Free space of the region. The truth is in the store, a bitmap per allocation group. The Allocator keeps a summary in
// memory: exact sums for statfs, and per group how much is free and how long the longest run is, as hints where to
// look. A SpaceChange is one transaction's work on the bitmaps; its effect on the summary is published after commit.
//
// Thread-safety: Allocator from any thread; a SpaceChange from one, with its transaction.
// Ownership:     a SpaceChange borrows the allocator and the transaction.
// Units:         pages.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/mutex.h"
#include "base/page.h"
#include "base/result.h"
#include "metadata/group_bitmap.h"
#include "metadata/key_value_store.h"
#include "metadata/types.h"

namespace termfs::metadata {

inline constexpr uint64_t GroupOf(PageIndex page) { return page.value / kGroupPages; }
inline constexpr uint64_t GroupCount(uint64_t capacity) { return (capacity + kGroupPages - 1) / kGroupPages; }
// How many pages of a region of `capacity` pages are in `group`; none beyond its end.
uint32_t PagesInGroup(uint64_t capacity, uint64_t group);

// The bitmap of a group, as stored or all free.
Result<GroupBitmap> DecodeGroup(uint64_t capacity, uint64_t group, const std::optional<std::string>& value);

class Allocator {
 public:
  Allocator(uint32_t server, uint64_t capacity) : server_(server), capacity_(capacity), end_(capacity) {}
  // Fills the summary. REQUIRES: called once, before anything else.
  Status Load(Reader& reader) EXCLUDES(mutex_);

  SpaceUse use() const EXCLUDES(mutex_);
  uint32_t server() const { return server_; }
  uint64_t capacity() const EXCLUDES(mutex_);
  // Changes of the capacity, after the superblock says so. REQUIRES of Cut: nothing at or beyond `capacity` is taken.
  void Grow(uint64_t capacity) EXCLUDES(mutex_);
  void Cut(uint64_t capacity) EXCLUDES(mutex_);
  // Pages at or beyond `end` are not given out any more. A transaction that took one already commits first, or fails.
  void Confine(uint64_t end) EXCLUDES(mutex_);
  uint64_t end() const EXCLUDES(mutex_);
  // How many of the pages beyond the end were found free; what is freed there later is counted here.
  void SetFreeBeyond(uint64_t pages) EXCLUDES(mutex_);
  uint64_t taken_beyond() const EXCLUDES(mutex_);
  void AddInodes(int64_t delta) EXCLUDES(mutex_);

 private:
  friend class SpaceChange;

  // Files are spread over so many places where allocation goes on, so that writers seldom meet in a group.
  static constexpr size_t kStreams = 8;

  struct Group {
    int64_t free = 0;  // exact but for transactions just committing; may be negative for an instant
    uint32_t longest = 0;
    uint32_t next = 0;  // allocation goes on here
  };
  struct Effect {
    int64_t taken = 0;
    int64_t freed_beyond = 0;  // of what was given back, the pages beyond the end
    uint32_t longest = 0;
    uint32_t next = 0;
  };

  // A group that likely has a run of `want` for the stream, else the one with the longest, else nothing.
  std::optional<uint64_t> Choose(size_t stream, uint64_t want, const std::set<uint64_t>& exhausted) const
      EXCLUDES(mutex_);
  uint32_t NextIn(uint64_t group) const EXCLUDES(mutex_);
  void Publish(const std::map<uint64_t, Effect>& effects, int64_t pending, std::optional<size_t> stream)
      EXCLUDES(mutex_);

  const uint32_t server_;
  mutable Mutex mutex_;
  uint64_t capacity_ GUARDED_BY(mutex_);
  uint64_t end_ GUARDED_BY(mutex_);  // of what is given out; below the capacity while the region is being shrunk
  std::vector<Group> groups_ GUARDED_BY(mutex_);
  std::array<uint64_t, kStreams> stream_groups_ GUARDED_BY(mutex_){};
  int64_t free_ GUARDED_BY(mutex_) = 0;
  int64_t free_beyond_ GUARDED_BY(mutex_) = 0;  // of these, at or beyond end_; may lag for an instant
  int64_t pending_ GUARDED_BY(mutex_) = 0;
  int64_t inodes_ GUARDED_BY(mutex_) = 0;
};

class SpaceChange {
 public:
  SpaceChange(Allocator& allocator, Transaction& transaction)
      : allocator_(allocator), transaction_(transaction), capacity_(allocator.capacity()), end_(allocator.end()) {}

  // Takes `pages`, in as few ranges as it finds, the first at `goal` if that is free. ENOSPC: less than that is free;
  // then the transaction must not commit.
  Result<std::vector<RegionRange>> Take(InodeNumber ino, uint64_t pages, std::optional<PageIndex> goal);
  // Makes a range pending-free. REQUIRES: it was an extent or a part of one.
  Status Free(const RegionRange& range);
  // A pending-free range becomes part of an extent. EINVAL: there is no such range.
  Status Adopt(const RegionRange& range);
  // Turns a pending-free range into free space. EINVAL: there is no such range.
  Status Reclaim(const RegionRange& range);

  // Writes the changed bitmaps. The last call before Commit. EAGAIN: what was taken must not be given out any more.
  Status Flush();
  // After Commit.
  void Publish();

 private:
  Result<GroupBitmap*> Open(uint64_t group);
  Result<RegionRange> TakeOne(size_t stream, uint64_t pages, std::optional<PageIndex> goal);
  RegionRange Mark(uint64_t group, GroupBitmap& bitmap, PageRun run);
  // Takes the key of a pending-free range away.
  Status TakePending(const RegionRange& range);

  Allocator& allocator_;
  Transaction& transaction_;
  const uint64_t capacity_;
  const uint64_t end_;
  uint64_t taken_end_ = 0;  // behind the last page that was taken
  std::map<uint64_t, GroupBitmap> groups_;
  std::set<uint64_t> full_;  // groups found full: hints that were wrong or used up
  std::map<uint64_t, Allocator::Effect> effects_;
  std::optional<size_t> stream_;
  int64_t pending_ = 0;
};

}  // namespace termfs::metadata

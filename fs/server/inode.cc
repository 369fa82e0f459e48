// SPDX-License-Identifier: Apache-2.0
#include "fs/server/inode.h"

#include <algorithm>

namespace termfs::fs::server {

bool AccessTimeIsDue(const FileTimes& times, Nanoseconds now) {
  return times.access <= times.modification || times.access <= times.change ||
         now - times.access >= std::chrono::hours(24);
}

void Inode::Load(const metadata::Attributes& attributes) {
  loaded = true;
  if (!mode_known) {  // else it was set since the attributes were read
    mode = attributes.mode;
    mode_known = true;
  }
  size = attributes.size;
  cut = attributes.cut;
  atime = attributes.atime;
  mtime = attributes.mtime;
  ctime = attributes.ctime;
}

Inode::Times Inode::TimesAfterChange(Nanoseconds now) const {
  return {.mtime = std::max(std::min(mtime, ctime) + Nanoseconds(1), now),
          .ctime = std::max(ctime + Nanoseconds(1), now)};
}

void Inode::Touch(Nanoseconds now) {
  SetTimes(TimesAfterChange(now));
  times_dirty = true;
}

void Inode::SetTimes(const Times& stored) {
  mtime = stored.mtime;
  ctime = std::max(ctime, stored.ctime);  // others may have changed it meanwhile
  times_dirty = false;
  ++times_sequence;
}

void Inode::Merge(metadata::Attributes& attributes) {
  if (!loaded) {
    return;
  }
  // Times that have been written to the store, too: its answer may be from before.
  attributes.size = size;
  attributes.atime = atime;
  attributes.mtime = mtime;
  attributes.ctime = std::max(attributes.ctime, ctime);
}

void Inode::NewVersion(std::atomic<uint64_t>& counter, Change change) {
  version = counter.fetch_add(1, std::memory_order_relaxed) + 1;
  if (change == Change::kAny) {
    base = version;
  }
}

void Inode::Remove(uint64_t page, uint64_t end) {
  if (page < end) {
    extents.Set({page, end - page, kHole});
    frees.fetch_add(1, std::memory_order_release);
  }
}

void Inode::ForgetExtents() {
  extents.Clear();
  frees.fetch_add(1, std::memory_order_release);
}

Map Inode::Grant(uint64_t session, uint64_t page, std::atomic<uint64_t>& counter) {
  if (frozen || !loaded || !opens.contains(session)) {
    return {.version = 0, .base = version, .size = 0, .segments = {}};
  }
  const auto [grant, is_new] = grants.try_emplace(session, 0);
  if (is_new || version == 0) {
    NewVersion(counter, Change::kGrowth);
  }
  grant->second = version;
  Map map{.version = version, .base = base, .size = size, .segments = {}};
  const uint64_t end = PagesFor(size);
  const auto all = extents.segments();
  for (ptrdiff_t i = extents.Find(page); i >= 0 && i < std::ssize(all) && map.segments.size() < kMaxMapSegments; ++i) {
    const Segment& s = all[static_cast<size_t>(i)];
    if (s.file_page >= end || (!map.segments.empty() && map.segments.back().end() != s.file_page)) {
      break;
    }
    map.segments.push_back({s.file_page, std::min(s.end(), end) - s.file_page, s.region_page});
  }
  return map;
}

// It stays in `grants` until it says that it has dropped them: it may still be using one. What it is granted next is
// newer than what is void.
Map Inode::Withhold(std::atomic<uint64_t>& counter) {
  Map none{.version = 0, .base = version, .size = 0, .segments = {}};
  NewVersion(counter, Change::kGrowth);
  return none;
}

void Inode::Drop(uint64_t session, uint64_t up_to) {
  const auto grant = grants.find(session);
  if (grant != grants.end() && grant->second <= up_to) {
    grants.erase(grant);
  }
}

bool Inode::CloseAll(uint64_t session) {
  grants.erase(session);
  return opens.erase(session) > 0 && opens.empty();
}

}  // namespace termfs::fs::server

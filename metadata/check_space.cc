// SPDX-License-Identifier: Apache-2.0
//
// Check, of extents, pending-free ranges and the bitmaps: each page of the region has one owner, or a clear bit.
#include <algorithm>
#include <utility>

#include "metadata/allocator.h"
#include "metadata/check_state.h"
#include "metadata/keys.h"

namespace termfs::metadata {

namespace {

std::string OwnerName(InodeNumber owner) {
  return owner == 0 ? std::string("the pending-free list") : fmt::format("inode {}", owner);
}

// Adds a range to the owned ones if it lies in the region.
void AddOwned(CheckState& state, const RegionRange& range, InodeNumber owner) {
  const uint64_t capacity = state.superblock.capacity_pages;
  if (range.server != state.superblock.region_server || range.first.value >= capacity || range.pages == 0 ||
      range.pages > capacity - range.first.value) {
    state.Problem("{}: pages {}+{} of server {} are not in the region", OwnerName(owner), range.first.value,
                  range.pages, range.server);
    return;
  }
  state.owned.push_back({range.first.value, range.pages, owner});
}

// Sorts the owned ranges and reports those that overlap.
void FindOverlaps(CheckState& state) {
  std::sort(state.owned.begin(), state.owned.end(),
            [](const OwnedPages& a, const OwnedPages& b) { return a.first < b.first; });
  uint64_t end = 0;
  InodeNumber owner = 0;
  for (const OwnedPages& range : state.owned) {
    if (range.first < end) {
      state.Problem("pages {}+{} of {} belong to {} too", range.first, std::min(end - range.first, range.pages),
                    OwnerName(range.owner), OwnerName(owner));
    }
    if (range.first + range.pages > end) {
      end = range.first + range.pages;
      owner = range.owner;
    }
  }
}

// Reports the runs of pages in which `stored` and `owned` differ.
void CompareGroup(CheckState& state, uint64_t group, const GroupBitmap& stored, const GroupBitmap& owned) {
  for (uint32_t page = 0; page < kGroupPages;) {
    if (stored.taken(page) == owned.taken(page)) {
      ++page;
      continue;
    }
    const bool leaked = stored.taken(page);
    const uint32_t first = page;
    while (page < kGroupPages && stored.taken(page) == leaked && owned.taken(page) != leaked) {
      ++page;
    }
    state.Problem("pages {}+{} are {}", group * kGroupPages + first, page - first,
                  leaked ? "taken, but nobody has them" : "in use, but marked as free");
  }
}

}  // namespace

Status CheckExtents(CheckState& state) {
  InodeNumber last_ino = 0;
  uint64_t last_end = 0;
  return ForEachOfType(state.reader, 'E', [&](const KeyValue& pair) {
    Decoder key(pair.key);
    key.U8();
    const InodeNumber ino = key.U64();
    const Result<Extent> extent = DecodeExtent(key.U64(), pair.value);
    CheckedInode* const inode = state.Find(ino);
    if (inode == nullptr || inode->type() != FileType::kRegular) {
      state.Problem("extent of inode {}, which is no regular file", ino);
    }
    if (!extent.ok() || !key.Finished()) {
      state.Problem("inode {}: damaged extent", ino);
      return;
    }
    ++state.report.extents;
    if (ino == last_ino && extent->file_page < last_end) {
      state.Problem("inode {}: extents overlap at file page {}", ino, extent->file_page);
    }
    last_ino = ino;
    last_end = extent->file_page + extent->pages;
    state.report.used_pages += extent->pages;
    if (inode != nullptr) {
      inode->pages += extent->pages;
    }
    AddOwned(state, {extent->server, extent->region_page, extent->pages}, ino);
  });
}

Status CheckCuts(CheckState& state) {
  RETURN_IF_ERROR(ForEachOfType(state.reader, 'Z', [&](const KeyValue& pair) {
    Decoder key(pair.key);
    key.U8();
    const InodeNumber ino = key.U64();
    CheckedInode* const inode = state.Find(ino);
    if (!key.Finished() || inode == nullptr || !std::exchange(inode->cut, false)) {
      state.Problem("inode {} is listed as cut within a page, and is not", ino);
    }
  }));
  for (const auto& [ino, inode] : state.inodes) {
    if (inode.cut) {
      state.Problem("inode {}: that it is cut within a page is not listed", ino);
    }
  }
  return Status::Ok();
}

Status CheckAhead(CheckState& state) {
  RETURN_IF_ERROR(ForEachOfType(state.reader, 'A', [&](const KeyValue& pair) {
    Decoder key(pair.key);
    key.U8();
    const InodeNumber ino = key.U64();
    CheckedInode* const inode = state.Find(ino);
    const Result<uint64_t> end = DecodeNumber(pair.value);
    if (!key.Finished() || inode == nullptr || inode->type() != FileType::kRegular || !end.ok()) {
      state.Problem("space ahead of inode {}: no such file, or a damaged record", ino);
      return;
    }
    if (inode->ahead_end > *end) {
      state.Problem("inode {}: space ahead up to file page {}, but listed up to {}", ino, inode->ahead_end, *end);
    }
    inode->ahead_end = 0;
  }));
  for (const auto& [ino, inode] : state.inodes) {
    if (inode.ahead_end != 0) {
      state.Problem("inode {}: its space ahead is not listed", ino);
    }
  }
  return Status::Ok();
}

Status CheckPendingFree(CheckState& state) {
  return ForEachOfType(state.reader, 'P', [&](const KeyValue& pair) {
    Decoder key(pair.key);
    key.U8();
    RegionRange range;
    range.server = key.U32();
    range.first.value = key.U64();
    const Result<uint64_t> pages = DecodeNumber(pair.value);
    if (!key.Finished() || !pages.ok()) {
      state.Problem("pending-free list: damaged range");
      return;
    }
    range.pages = *pages;
    state.report.pending_pages += range.pages;
    AddOwned(state, range, 0);
  });
}

Status CompareSpace(CheckState& state) {
  FindOverlaps(state);
  const uint64_t capacity = state.superblock.capacity_pages;
  const uint32_t server = state.superblock.region_server;
  auto next = state.owned.begin();
  uint64_t carried = 0;  // the pages before this one are owned, as far as they are in the next group
  for (uint64_t group = 0; group < GroupCount(capacity); ++group) {
    const uint64_t start = group * kGroupPages;
    const uint64_t end = start + kGroupPages;
    GroupBitmap owned(PagesInGroup(capacity, group));
    const auto take = [&](uint64_t first, uint64_t last) {
      if (first < last) {
        owned.Take({static_cast<uint32_t>(first - start), static_cast<uint32_t>(last - first)});
      }
    };
    take(start, std::min(std::max(carried, start), end));
    for (; next != state.owned.end() && next->first < end; ++next) {
      const uint64_t last = next->first + next->pages;
      take(std::max(next->first, start), std::min(last, end));
      carried = std::max(carried, last);
    }
    ASSIGN_OR_RETURN(const auto value, state.reader.Get(GroupKey(server, group)));
    const Result<GroupBitmap> stored = DecodeGroup(capacity, group, value);
    if (!stored.ok()) {
      state.Problem("allocation group {}: damaged record", group);
      continue;
    }
    CompareGroup(state, group, *stored, owned);
  }
  return ForEachOfType(state.reader, 'G', [&](const KeyValue& pair) {
    Decoder key(pair.key);
    key.U8();
    const uint32_t of_server = key.U32();
    const uint64_t group = key.U64();
    if (!key.Finished() || of_server != server || group >= GroupCount(capacity)) {
      state.Problem("allocation group {} of server {} is not in the region", group, of_server);
    }
  });
}

}  // namespace termfs::metadata

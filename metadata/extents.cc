// SPDX-License-Identifier: Apache-2.0
//
// The map from file pages to region pages.
#include <algorithm>
#include <map>

#include "metadata/content.h"
#include "metadata/keys.h"
#include "metadata/namespace.h"
#include "metadata/operation.h"

namespace termfs::metadata {

namespace {

constexpr uint64_t kMaxPages = kMaxFileSize / kPageSize + 1;  // of a file

using ExtentMap = std::map<uint64_t, Extent>;  // by file page

uint64_t EndOf(const Extent& extent) { return extent.file_page + extent.pages; }
PageIndex RegionEndOf(const Extent& extent) { return {extent.region_page.value + extent.pages}; }

bool Continues(const Extent& first, const Extent& second) {
  return EndOf(first) == second.file_page && first.server == second.server && RegionEndOf(first) == second.region_page;
}

Extent CutTo(const Extent& extent, uint64_t begin, uint64_t end) {
  const uint64_t from = std::max(begin, extent.file_page);
  Extent part = extent;
  part.file_page = from;
  part.pages = std::min(end, EndOf(extent)) - from;
  part.region_page.value += from - extent.file_page;
  return part;
}

// The extent that begins before `begin`, if there is one (it may end before), and up to `limit` that begin in
// [begin, end).
Result<ExtentMap> ReadExtents(Reader& reader, InodeNumber ino, uint64_t begin, uint64_t end, size_t limit) {
  ASSIGN_OR_RETURN(auto pairs, reader.Scan(ExtentKey(ino, 0), ExtentKey(ino, begin), 1, ScanOrder::kDescending));
  ASSIGN_OR_RETURN(const auto within, reader.Scan(ExtentKey(ino, begin), ExtentKey(ino, end), limit));
  pairs.insert(pairs.end(), within.begin(), within.end());
  ExtentMap extents;
  for (const KeyValue& pair : pairs) {
    ASSIGN_OR_RETURN(const uint64_t file_page, FilePageOfExtentKey(pair.key));
    ASSIGN_OR_RETURN(const Extent extent, DecodeExtent(file_page, pair.value));
    extents.emplace(file_page, extent);
  }
  return extents;
}

// Takes space for every hole of [begin, end) and adds it to `extents`, marked fresh.
Status FillHoles(Operation& op, InodeRecord& inode, uint64_t begin, uint64_t end, std::optional<PageIndex> goal,
                 ExtentMap& extents) {
  const InodeNumber ino = inode.attributes.ino;
  std::vector<Extent> fresh;
  uint64_t page = begin;
  const auto fill = [&](uint64_t to, const Extent* before) -> Status {
    if (page >= to) {
      return Status::Ok();
    }
    const std::optional<PageIndex> near = before != nullptr ? std::optional(RegionEndOf(*before)) : std::nullopt;
    ASSIGN_OR_RETURN(const auto ranges, op.space().Take(ino, to - page, goal ? goal : near));
    inode.attributes.blocks += to - page;
    for (const RegionRange& range : ranges) {
      fresh.push_back({page, range.pages, range.server, range.first, true});
      page += range.pages;
    }
    goal.reset();
    return Status::Ok();
  };
  const Extent* before = nullptr;
  for (const auto& [file_page, extent] : extents) {
    RETURN_IF_ERROR(fill(std::min(file_page, end), before));
    page = std::max(page, EndOf(extent));
    before = &extent;
  }
  RETURN_IF_ERROR(fill(end, before));
  for (const Extent& extent : fresh) {
    extents.emplace(extent.file_page, extent);
  }
  return Status::Ok();
}

ExtentMap Merge(const ExtentMap& extents) {
  ExtentMap merged;
  for (const auto& [file_page, extent] : extents) {
    if (!merged.empty() && Continues(merged.rbegin()->second, extent)) {
      merged.rbegin()->second.pages += extent.pages;
    } else {
      merged.emplace_hint(merged.end(), file_page, extent)->second.fresh = false;
    }
  }
  return merged;
}

Status WriteDifference(Operation& op, InodeNumber ino, const ExtentMap& old, const ExtentMap& now) {
  for (const auto& [file_page, extent] : old) {
    if (!now.contains(file_page)) {
      RETURN_IF_ERROR(op.transaction().Delete(ExtentKey(ino, file_page)));
    }
  }
  for (const auto& [file_page, extent] : now) {
    const auto before = old.find(file_page);
    if (before == old.end() || !(before->second == extent)) {
      RETURN_IF_ERROR(op.transaction().Put(ExtentKey(ino, file_page), EncodeExtent(extent)));
    }
  }
  return Status::Ok();
}

std::vector<Extent> CutAll(const ExtentMap& extents, uint64_t begin, uint64_t end) {
  std::vector<Extent> result;
  for (const auto& [file_page, extent] : extents) {
    if (file_page < end && EndOf(extent) > begin) {
      result.push_back(CutTo(extent, begin, end));
    }
  }
  return result;
}

}  // namespace

Result<std::vector<Extent>> Namespace::AllocateExtents(InodeNumber ino, uint64_t file_page, uint64_t count,
                                                       std::optional<PageIndex> goal, Nanoseconds now, uint64_t ahead) {
  if (count == 0 || count > kMaxAllocation) {
    return Status::Error(EINVAL, "allocate: page count out of bounds");
  }
  if (file_page >= kMaxPages || count > kMaxPages - file_page) {
    return Status::Error(EFBIG, "allocate: beyond the greatest file size");
  }
  const uint64_t end = file_page + count;
  std::vector<Extent> result;
  bool trim_first = false;
  const auto allocate = [&](Operation& op) -> Status {
    RETURN_IF_ERROR(op.transaction().Grows());
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    if (inode->attributes.type() != FileType::kRegular) {
      return Status::Error(EINVAL, "not a regular file");
    }
    // What an unfinished truncation left must not come back to life.
    trim_first = end > inode->trim_page;
    if (trim_first) {
      return Status::Ok();
    }
    ExtentMap old;
    if (inode->attributes.blocks != 0) {
      // One page more than asked: what follows may merge.
      ASSIGN_OR_RETURN(old, ReadExtents(op.transaction(), ino, file_page, end + 1, count + 1));
    }
    ExtentMap extents = old;
    RETURN_IF_ERROR(FillHoles(op, *inode, file_page, end, goal, extents));
    if (extents.size() != old.size()) {
      inode->attributes.Changed(now);
      RETURN_IF_ERROR(WriteDifference(op, ino, old, Merge(extents)));
    }
    if (ahead > 0) {
      inode->attributes.ahead_end = end;
      RETURN_IF_ERROR(op.transaction().Put(AheadKey(ino), EncodeNumber(end)));
    }
    result = CutAll(extents, file_page, end);
    return Status::Ok();
  };
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    RETURN_IF_ERROR(Run(allocate));
    if (!trim_first) {
      return result;
    }
    for (bool more = true; more;) {
      ASSIGN_OR_RETURN(more, TruncateStep(ino));
    }
  }
  return Status::Error(EBUSY, "allocate: the file is truncated again and again");
}

Result<std::vector<Extent>> Namespace::GetExtents(InodeNumber ino, uint64_t file_page, uint64_t count, size_t limit) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  ASSIGN_OR_RETURN(const InodeRecord inode, ReadInode(*reader, ino));
  if (file_page >= kMaxPages || limit == 0) {
    return std::vector<Extent>();
  }
  const uint64_t end = std::min(file_page + std::min(count, kMaxPages - file_page), inode.trim_page);
  if (inode.attributes.blocks == 0 || end <= file_page) {
    return std::vector<Extent>();
  }
  ASSIGN_OR_RETURN(const ExtentMap extents, ReadExtents(*reader, ino, file_page, end, limit));
  std::vector<Extent> result = CutAll(extents, file_page, end);
  result.resize(std::min(result.size(), limit));
  return result;
}

Result<bool> Namespace::MoveExtent(InodeNumber ino, const Extent& from, std::span<const RegionRange> to) {
  const uint64_t end = EndOf(from);
  bool moved = false;
  const Status status = Run([&](Operation& op) -> Status {
    moved = false;
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    ASSIGN_OR_RETURN(const ExtentMap old, ReadExtents(op.transaction(), ino, from.file_page, end + 1, from.pages + 1));
    const std::vector<Extent> there = CutAll(old, from.file_page, end);
    if (end > inode->trim_page || there.size() != 1 || !(there[0] == from)) {
      return Status::Ok();
    }
    ExtentMap now;
    for (const auto& [file_page, extent] : old) {
      if (file_page < from.file_page) {
        now.emplace(file_page, CutTo(extent, file_page, std::min(EndOf(extent), from.file_page)));
      }
      if (EndOf(extent) > end) {
        const Extent rest = CutTo(extent, end, EndOf(extent));
        now.emplace(rest.file_page, rest);
      }
    }
    uint64_t page = from.file_page;
    for (const RegionRange& range : to) {
      RETURN_IF_ERROR(op.space().Adopt(range));
      now.emplace(page, Extent{page, range.pages, range.server, range.first});
      page += range.pages;
    }
    if (page != end) {
      return Status::Error(EINVAL, "move: not as many pages as there were");
    }
    RETURN_IF_ERROR(WriteDifference(op, ino, old, Merge(now)));
    moved = true;
    return op.space().Free({from.server, from.region_page, from.pages});
  });
  if (status.code() == ESTALE) {
    return false;
  }
  RETURN_IF_ERROR(status);
  return moved;
}

}  // namespace termfs::metadata

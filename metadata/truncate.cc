// SPDX-License-Identifier: Apache-2.0
//
// Truncation commits the new size first, with inode.trim_page saying from where on extents are garbage; then frees
// them front to back, trim_page going along, so that no step walks over what earlier steps deleted.
#include <algorithm>

#include "metadata/content.h"
#include "metadata/keys.h"
#include "metadata/namespace.h"

namespace termfs::metadata {

namespace {

constexpr uint64_t kEndOfFile = kNoTrim;

Status FreePart(Operation& op, InodeRecord& inode, const Extent& extent, uint64_t from, uint64_t to) {
  inode.attributes.blocks -= to - from;
  return op.space().Free({extent.server, {extent.region_page.value + (from - extent.file_page)}, to - from});
}

// Cuts [begin, end) out of `extent`, which it overlaps.
Status Cut(Operation& op, InodeRecord& inode, const Extent& extent, uint64_t begin, uint64_t end) {
  const InodeNumber ino = inode.attributes.ino;
  const uint64_t extent_end = extent.file_page + extent.pages;
  const uint64_t from = std::max(begin, extent.file_page);
  const uint64_t to = std::min(end, extent_end);
  RETURN_IF_ERROR(FreePart(op, inode, extent, from, to));
  if (from > extent.file_page) {
    Extent head = extent;
    head.pages = from - extent.file_page;
    RETURN_IF_ERROR(op.transaction().Put(ExtentKey(ino, head.file_page), EncodeExtent(head)));
  } else {
    RETURN_IF_ERROR(op.transaction().Delete(ExtentKey(ino, extent.file_page)));
  }
  if (to < extent_end) {
    Extent tail = extent;
    tail.file_page = to;
    tail.pages = extent_end - to;
    tail.region_page.value += to - extent.file_page;
    RETURN_IF_ERROR(op.transaction().Put(ExtentKey(ino, to), EncodeExtent(tail)));
  }
  return Status::Ok();
}

// That of a file whose size becomes `size`, by truncation `id`.
Result<TailCut> CutAt(const Attributes& before, uint64_t size, uint64_t id) {
  if (size >= before.size) {
    return before.cut;
  }
  const TailCut cut = before.cut.from < RoundUpToPage(size) ? before.cut : TailCut{};
  if (size % kPageSize == 0) {
    return cut;
  }
  if (cut && cut.page() < size / kPageSize) {
    return Status::Error(EBUSY, "the file is cut in an earlier page");
  }
  return TailCut{.from = cut ? std::min(cut.from, size) : size, .id = id};
}

Status WriteTruncationKey(Operation& op, const InodeRecord& inode) {
  const std::string key = TruncationKey(inode.attributes.ino);
  return inode.trim_page == kNoTrim ? op.transaction().Delete(key) : op.transaction().Put(key, EncodeBytes(""));
}

}  // namespace

Result<uint64_t> FreeExtents(Operation& op, InodeRecord& inode, uint64_t begin, uint64_t end) {
  const InodeNumber ino = inode.attributes.ino;
  ASSIGN_OR_RETURN(const auto before,
                   op.transaction().Scan(ExtentKey(ino, 0), ExtentKey(ino, begin), 1, ScanOrder::kDescending));
  ASSIGN_OR_RETURN(auto pairs, op.transaction().Scan(ExtentKey(ino, begin), ExtentKey(ino, end), kFreeStep));
  const bool all = pairs.size() < kFreeStep;
  pairs.insert(pairs.begin(), before.begin(), before.end());
  uint64_t done = begin;
  for (const KeyValue& pair : pairs) {
    ASSIGN_OR_RETURN(const uint64_t file_page, FilePageOfExtentKey(pair.key));
    ASSIGN_OR_RETURN(const Extent extent, DecodeExtent(file_page, pair.value));
    const uint64_t extent_end = file_page + extent.pages;
    if (extent_end > begin) {
      RETURN_IF_ERROR(Cut(op, inode, extent, begin, end));
      done = std::min(extent_end, end);
    }
  }
  return all ? end : done;
}

Result<bool> Trim(Operation& op, InodeRecord& inode) {
  if (inode.trim_page == kNoTrim) {
    return true;
  }
  ASSIGN_OR_RETURN(inode.trim_page, FreeExtents(op, inode, inode.trim_page, kEndOfFile));
  return inode.trim_page == kNoTrim;
}

Result<Namespace::Truncated> Namespace::Truncate(InodeNumber ino, uint64_t new_size, Nanoseconds now,
                                                 const Stamp* stamp, bool partly) {
  if (new_size > kMaxFileSize) {
    return Status::Error(EFBIG, "file size beyond the limit");
  }
  Truncated result;
  Receipt receipt{.partly = partly};
  const Status status = Run(stamp, receipt, [&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    Attributes& a = inode->attributes;
    if (a.type() != FileType::kRegular) {
      return Status::Error(a.is_directory() ? EISDIR : EINVAL, "not a regular file");
    }
    const bool unfinished = inode->trim_page != kNoTrim;
    if (new_size <= a.size) {
      op.transaction().Frees();
      inode->trim_page = std::min(inode->trim_page, RoundUpToPage(new_size) / kPageSize);
      a.ahead_end = 0;
    }
    ASSIGN_OR_RETURN(const bool done, Trim(op, *inode));
    if (unfinished || !done) {
      RETURN_IF_ERROR(WriteTruncationKey(op, *inode));
    }
    a.Rewritten(now);
    ASSIGN_OR_RETURN(a.cut, CutAt(a, new_size, static_cast<uint64_t>(a.ctime.count())));
    a.size = new_size;
    result = {a, !done};
    return Status::Ok();
  });
  RETURN_IF_ERROR(status);
  return result;
}

Status Namespace::ForgetCut(InodeNumber ino, const TailCut& cut) {
  const Status status = Run([&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    if (inode->attributes.cut.id == cut.id) {
      inode->attributes.cut = {};
    }
    return Status::Ok();
  });
  return status.code() == ESTALE ? Status::Ok() : status;
}

Result<bool> Namespace::TruncateStep(InodeNumber ino) {
  bool more = false;
  const Status status = Run([&](Operation& op) -> Status {
    more = false;
    op.transaction().Frees();
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    if (inode->trim_page == kNoTrim) {
      return Status::Ok();
    }
    ASSIGN_OR_RETURN(const bool done, Trim(op, *inode));
    more = !done;
    return WriteTruncationKey(op, *inode);
  });
  if (status.code() == ESTALE) {
    return false;
  }
  RETURN_IF_ERROR(status);
  return more;
}

Result<bool> Namespace::TrimAhead(InodeNumber ino) {
  bool more = false;
  const Status status = Run([&](Operation& op) -> Status {
    more = false;
    op.transaction().Frees();
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    ASSIGN_OR_RETURN(const auto value, op.transaction().Get(AheadKey(ino)));
    if (!value) {
      return Status::Ok();
    }
    ASSIGN_OR_RETURN(const uint64_t end, DecodeNumber(*value));
    const uint64_t begin = RoundUpToPage(inode->attributes.size) / kPageSize;
    if (begin < end) {
      ASSIGN_OR_RETURN(const uint64_t done, FreeExtents(op, *inode, begin, end));
      more = done != end;
    }
    if (more) {
      return Status::Ok();
    }
    inode->attributes.ahead_end = 0;
    return op.transaction().Delete(AheadKey(ino));
  });
  if (status.code() == ESTALE) {
    return false;
  }
  RETURN_IF_ERROR(status);
  return more;
}

Status Namespace::ForgetAhead(InodeNumber ino) {
  return Run([&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    inode->attributes.ahead_end = 0;
    return op.transaction().Delete(AheadKey(ino));
  });
}

Result<bool> Namespace::PunchExtents(InodeNumber ino, uint64_t file_page, uint64_t count, Nanoseconds now) {
  constexpr uint64_t kMaxPage = kMaxFileSize / kPageSize;
  if (count == 0 || file_page > kMaxPage) {
    return Status::Error(EINVAL, "punch: range out of bounds");
  }
  const uint64_t end = file_page + std::min(count, kMaxPage + 1 - file_page);
  bool more = false;
  const Status status = Run([&](Operation& op) -> Status {
    ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
    if (inode->attributes.type() != FileType::kRegular) {
      return Status::Error(EINVAL, "not a regular file");
    }
    op.transaction().Frees();
    ASSIGN_OR_RETURN(const uint64_t done, FreeExtents(op, *inode, file_page, end));
    more = done != end;
    Attributes& a = inode->attributes;
    if (file_page <= RoundUpToPage(a.size) / kPageSize && a.ahead_end <= done) {
      a.ahead_end = 0;
    }
    a.Rewritten(now);
    return Status::Ok();
  });
  RETURN_IF_ERROR(status);
  return more;
}

}  // namespace termfs::metadata

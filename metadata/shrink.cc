// SPDX-License-Identifier: Apache-2.0
//
// A region that gets smaller. While it is confined no transaction gives out pages at or beyond the line (allocator.h);
// what is there goes away or is moved; Shrink then finds every bitmap beyond the line clear, in the transaction that
// changes the superblock.
#include <algorithm>

#include "base/size.h"
#include "metadata/allocator.h"
#include "metadata/keys.h"
#include "metadata/namespace.h"
#include "metadata/operation.h"

namespace termfs::metadata {

Status Namespace::Confine(uint64_t end) {
  const uint64_t capacity = allocator_->capacity();
  if (end == 0 || end >= capacity) {
    return Status::Error(EINVAL, "confine: not smaller than now");
  }
  allocator_->Confine(end);
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  uint64_t free = 0;
  uint64_t free_beyond = 0;
  for (uint64_t group = 0; group < GroupCount(capacity); ++group) {
    const auto value = reader->Get(GroupKey(allocator_->server(), group));
    const auto whole = value.ok() ? DecodeGroup(capacity, group, *value) : value.status();
    if (!whole.ok()) {
      EndConfinement();
      return whole.status();
    }
    const auto below = DecodeGroup(end, group, *value);
    free += below->CountFree();
    free_beyond += whole->CountFree() - below->CountFree();
  }
  allocator_->SetFreeBeyond(free_beyond);
  const SpaceUse use = allocator_->use();
  const uint64_t in_use = capacity - free - free_beyond - std::min(use.pending_pages, capacity - free - free_beyond);
  if (in_use > end) {
    EndConfinement();
    return Status::Error(ENOSPC, ReadableSize(in_use << kPageBits) + " are in use, " +
                                     ReadableSize((in_use - end) << kPageBits) + " of them must be freed first");
  }
  return Status::Ok();
}

void Namespace::EndConfinement() { allocator_->Confine(allocator_->capacity()); }

uint64_t Namespace::TakenBeyond() const { return allocator_->taken_beyond(); }

Result<Namespace::Beyond> Namespace::ListBeyond(const std::string& from, size_t limit) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  const uint64_t line = allocator_->end();
  ASSIGN_OR_RETURN(const auto pairs, reader->Scan(from.empty() ? "E" : from, EndOfType('E'), limit));
  Beyond beyond;
  for (const KeyValue& pair : pairs) {
    Decoder key(pair.key);
    key.U8();
    const InodeNumber ino = key.U64();
    ASSIGN_OR_RETURN(Extent extent, DecodeExtent(key.U64(), pair.value));
    if (!key.Finished()) {
      return Status::Error(EIO, "extent: damaged key, run termfs fsck");
    }
    if (extent.region_page.value + extent.pages <= line) {
      continue;
    }
    const uint64_t before = line - std::min(line, extent.region_page.value);
    extent.file_page += before;
    extent.region_page.value += before;
    extent.pages -= before;
    ASSIGN_OR_RETURN(const InodeRecord inode, ReadInode(*reader, ino));
    if (extent.file_page < inode.trim_page) {
      extent.pages = std::min(extent.pages, inode.trim_page - extent.file_page);
      beyond.extents.push_back({ino, extent});
    }
  }
  if (pairs.size() == limit) {
    beyond.next = pairs.back().key + '\0';
  }
  return beyond;
}

Result<std::vector<RegionRange>> Namespace::Reserve(InodeNumber ino, uint64_t pages) {
  std::vector<RegionRange> ranges;
  const Status status = Run([&](Operation& op) -> Status {
    RETURN_IF_ERROR(op.transaction().Grows());
    ASSIGN_OR_RETURN(ranges, op.space().Take(ino, pages, std::nullopt));
    for (const RegionRange& range : ranges) {
      RETURN_IF_ERROR(op.space().Free(range));
    }
    return Status::Ok();
  });
  RETURN_IF_ERROR(status);
  return ranges;
}

Status Namespace::Shrink(uint64_t new_capacity_pages) {
  const uint32_t server = allocator_->server();
  const Status status = Retry(store_, [&](Transaction& transaction) -> Status {
    ASSIGN_OR_RETURN(const auto value, transaction.GetForUpdate(SuperblockKey()));
    if (!value) {
      return Status::Error(EIO, "the superblock is missing");
    }
    ASSIGN_OR_RETURN(Superblock superblock, DecodeSuperblock(*value));
    const uint64_t capacity = superblock.capacity_pages;
    if (new_capacity_pages >= capacity || allocator_->end() != new_capacity_pages) {
      return Status::Error(EINVAL, "shrink: not what the region is confined to");
    }
    for (uint64_t group = new_capacity_pages / kGroupPages; group < GroupCount(capacity); ++group) {
      ASSIGN_OR_RETURN(const auto bytes, transaction.GetForUpdate(GroupKey(server, group)));
      ASSIGN_OR_RETURN(const GroupBitmap bitmap, DecodeGroup(capacity, group, bytes));
      const uint32_t kept = PagesInGroup(new_capacity_pages, group);
      const PageRun run = bitmap.NextFree(kept);
      if (kept < bitmap.pages() && (run.first != kept || run.pages != bitmap.pages() - kept)) {
        return Status::Error(EBUSY, "pages beyond the new end are in use");
      }
      if (kept == 0) {
        RETURN_IF_ERROR(transaction.Delete(GroupKey(server, group)));
      }
    }
    superblock.capacity_pages = new_capacity_pages;
    return transaction.Put(SuperblockKey(), EncodeSuperblock(superblock));
  });
  RETURN_IF_ERROR(status);
  allocator_->Cut(new_capacity_pages);
  MutexLock lock(superblock_mutex_);
  superblock_.capacity_pages = new_capacity_pages;
  return Status::Ok();
}

}  // namespace termfs::metadata

// SPDX-License-Identifier: Apache-2.0
//
// The region's free space, as a whole.
#include <algorithm>

#include "metadata/allocator.h"
#include "metadata/keys.h"
#include "metadata/namespace.h"
#include "metadata/operation.h"

namespace termfs::metadata {

Result<std::vector<RegionRange>> Namespace::ListPendingFree(PageIndex from, size_t limit) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  ASSIGN_OR_RETURN(const auto pairs, reader->Scan(PendingKey(allocator_->server(), from), EndOfType('P'), limit));
  std::vector<RegionRange> ranges;
  for (const KeyValue& pair : pairs) {
    Decoder key(pair.key);
    key.U8();
    RegionRange range;
    range.server = key.U32();
    range.first.value = key.U64();
    if (!key.Finished()) {
      return Status::Error(EIO, "pending-free range: damaged key, run termfs fsck");
    }
    ASSIGN_OR_RETURN(range.pages, DecodeNumber(pair.value));
    ranges.push_back(range);
  }
  return ranges;
}

Status Namespace::CommitFree(std::span<const RegionRange> ranges) {
  // Ascending, as all do who claim several groups.
  std::vector<RegionRange> sorted(ranges.begin(), ranges.end());
  std::sort(sorted.begin(), sorted.end(), [](const RegionRange& a, const RegionRange& b) { return a.first < b.first; });
  return Run([&](Operation& op) -> Status {
    op.transaction().Frees();
    for (const RegionRange& range : sorted) {
      RETURN_IF_ERROR(op.space().Reclaim(range));
    }
    return Status::Ok();
  });
}

Result<std::vector<RegionRange>> Namespace::ListFree(PageIndex from, size_t limit) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  const uint64_t capacity = allocator_->capacity();
  const uint32_t server = allocator_->server();
  std::vector<RegionRange> ranges;
  for (uint64_t group = GroupOf(from); group < GroupCount(capacity); ++group) {
    ASSIGN_OR_RETURN(const auto value, reader->Get(GroupKey(server, group)));
    ASSIGN_OR_RETURN(const GroupBitmap bitmap, DecodeGroup(capacity, group, value));
    const uint64_t start = group * kGroupPages;
    for (uint32_t at = from.value > start ? static_cast<uint32_t>(from.value - start) : 0; at < bitmap.pages();) {
      const PageRun run = bitmap.NextFree(at);
      if (run.pages == 0) {
        break;
      }
      ranges.push_back({server, {start + run.first}, run.pages});
      if (ranges.size() == limit) {
        return ranges;
      }
      at = run.first + run.pages;
    }
  }
  return ranges;
}

SpaceUse Namespace::StatFs() const { return allocator_->use(); }

Status Namespace::Grow(uint64_t new_capacity_pages) {
  if (new_capacity_pages > uint64_t{1} << 48) {
    return Status::Error(EINVAL, "grow: capacity beyond the limit");
  }
  Superblock superblock;
  const Status status = Retry(store_, [&](Transaction& transaction) -> Status {
    ASSIGN_OR_RETURN(const auto value, transaction.GetForUpdate(SuperblockKey()));
    if (!value) {
      return Status::Error(EIO, "the superblock is missing");
    }
    ASSIGN_OR_RETURN(superblock, DecodeSuperblock(*value));
    if (new_capacity_pages < superblock.capacity_pages) {
      return Status::Error(EINVAL, "grow: smaller than now");
    }
    superblock.capacity_pages = new_capacity_pages;
    return transaction.Put(SuperblockKey(), EncodeSuperblock(superblock));
  });
  RETURN_IF_ERROR(status);
  allocator_->Grow(new_capacity_pages);
  MutexLock lock(superblock_mutex_);
  superblock_.capacity_pages = std::max(superblock_.capacity_pages, new_capacity_pages);
  return Status::Ok();
}

}  // namespace termfs::metadata

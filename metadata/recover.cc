// SPDX-License-Identifier: Apache-2.0
//
// What a crash can leave is said by lists: quotas being counted, orphans, truncations, space allocated ahead. This
// walks them to their ends.
#include "metadata/keys.h"
#include "metadata/namespace.h"
#include "metadata/records.h"

namespace termfs::metadata {

namespace {

constexpr size_t kBatch = 256;

// Calls `end` for every inode that `list` names.
template <typename List, typename End>
Result<uint64_t> ForEachListed(const List& list, const End& end) {
  uint64_t count = 0;
  for (InodeNumber after = 0;;) {
    ASSIGN_OR_RETURN(const std::vector<InodeNumber> inodes, list(after));
    if (inodes.empty()) {
      return count;
    }
    for (const InodeNumber ino : inodes) {
      RETURN_IF_ERROR(end(ino));
      ++count;
    }
    after = inodes.back();
  }
}

template <typename Step>
Status RepeatUntilDone(const Step& step) {
  for (bool more = true; more;) {
    ASSIGN_OR_RETURN(more, step());
  }
  return Status::Ok();
}

}  // namespace

Result<Namespace::Recovered> Namespace::Recover(bool orphans) {
  RETURN_IF_ERROR(Retry(store_, [](Transaction& transaction) -> Status {
    ASSIGN_OR_RETURN(const auto value, transaction.GetForUpdate(SuperblockKey()));
    ASSIGN_OR_RETURN(Superblock superblock, DecodeSuperblock(value.value_or("")));
    constexpr uint64_t kBrought = kInodesInReceipts | kShortGroups | kCuts;
    if ((superblock.incompatible & kBrought) == kBrought) {
      return Status::Ok();
    }
    superblock.incompatible |= kBrought;
    return transaction.Put(SuperblockKey(), EncodeSuperblock(superblock));
  }));
  RETURN_IF_ERROR(EndCounts());
  Recovered done;
  if (orphans) {
    ASSIGN_OR_RETURN(done.orphans, ForEachListed([&](InodeNumber after) { return ListOrphans(after, kBatch); },
                                                 [&](InodeNumber ino) { return ReleaseOrphan(ino); }));
  }
  ASSIGN_OR_RETURN(done.truncations,
                   ForEachListed([&](InodeNumber after) { return ListTruncations(after, kBatch); },
                                 [&](InodeNumber ino) { return RepeatUntilDone([&] { return TruncateStep(ino); }); }));
  ASSIGN_OR_RETURN(done.trimmed,
                   ForEachListed([&](InodeNumber after) { return ListAhead(after, kBatch); },
                                 [&](InodeNumber ino) { return RepeatUntilDone([&] { return TrimAhead(ino); }); }));
  return done;
}

}  // namespace termfs::metadata

// SPDX-License-Identifier: Apache-2.0
#include "fs/server/cuts.h"

#include <array>

namespace termfs::fs::server {

namespace {

constexpr size_t kBatch = 256;

// False: there is no page.
Result<bool> ZeroFrom(metadata::Namespace& names, tlib::server::Server& server, uint64_t ino,
                      const metadata::TailCut& cut) {
  static constexpr std::array<std::byte, kPageSize> kZeros{};
  ASSIGN_OR_RETURN(const auto extents, names.GetExtents(ino, cut.page(), 1, 1));
  if (extents.empty()) {
    return false;
  }
  const PageIndex page = extents.front().region_page;
  const uint64_t in_page = cut.from % kPageSize;
  RETURN_IF_ERROR(server.RunInCoroutine([&]() -> Status {
    const tlib::server::PageRange range{page, 1};
    RETURN_IF_ERROR(server.region().Write({(page.value << kPageBits) + in_page}, std::span(kZeros).subspan(in_page)));
    return server.region().Flush({&range, 1});
  }));
  return true;
}

}  // namespace

Result<uint64_t> RestoreCuts(metadata::Namespace& names, tlib::server::Server& server, MemoryLeft memory) {
  uint64_t zeroed = 0;
  if (memory == MemoryLeft::kAll) {
    return zeroed;  // it has what the SSD has not
  }
  for (uint64_t after = 0;;) {
    ASSIGN_OR_RETURN(const auto inodes, names.ListCuts(after, kBatch));
    if (inodes.empty()) {
      return zeroed;
    }
    for (const uint64_t ino : inodes) {
      ASSIGN_OR_RETURN(const metadata::Attributes attributes, names.GetAttr(ino));
      const metadata::TailCut& cut = attributes.cut;
      // Where the file ends at its cut, growth cleans the page.
      if (!cut || attributes.size <= cut.from) {
        continue;
      }
      if (memory == MemoryLeft::kNone) {
        ASSIGN_OR_RETURN(const bool done, ZeroFrom(names, server, ino, cut));
        zeroed += done ? 1 : 0;
      }
      RETURN_IF_ERROR(names.ForgetCut(ino, cut));
    }
    after = inodes.back();
  }
}

}  // namespace termfs::fs::server

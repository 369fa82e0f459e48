// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/table_puller.h"

#include <algorithm>
#include <utility>

namespace termfs::tlib::client {
namespace {

constexpr uint64_t kBlockBytes = PageTableView::kBlockPages * sizeof(uint64_t);

}  // namespace

Result<std::unique_ptr<TablePuller>> TablePuller::Create(SessionCore& core, uint64_t bytes, Read read) {
  std::unique_ptr<TablePuller> puller(
      new TablePuller(core, std::max<uint64_t>(bytes / kBlockBytes, 1), std::move(read)));
  puller->entries_ = std::make_unique<uint64_t[]>(kMostBlocks * PageTableView::kBlockPages);
  ASSIGN_OR_RETURN(puller->entries_region_,
                   core.domain().RegisterMemory(reinterpret_cast<std::byte*>(puller->entries_.get()),
                                                kMostBlocks * kBlockBytes, driver::Access::kLocalWrite));
  return puller;
}

Status TablePuller::PullInTurn() {
  const PageTableView& view = *core_.table();
  uint64_t left = std::min(blocks_, view.blocks());
  bool turned = false;
  pulls_.Add();
  while (left > 0) {
    const auto first = view.NextUsed(next_);
    if (!first.has_value()) {
      if (std::exchange(turned, true)) {
        return Status::Ok();
      }
      next_ = 0;
      continue;
    }
    uint64_t count = 1;
    while (count < std::min(left, kMostBlocks) && view.NextUsed(*first + count) == *first + count) {
      count++;
    }
    RETURN_IF_ERROR(PullBlocks(*first, count));
    next_ = *first + count;
    left -= count;
  }
  return Status::Ok();
}

Status TablePuller::PullBlocks(uint64_t first, uint64_t count) {
  PageTableView& view = *core_.table();
  const uint64_t page = first * PageTableView::kBlockPages;
  const uint64_t pages = std::min(count * PageTableView::kBlockPages, view.covered() - page);
  RETURN_IF_ERROR(
      read_(view.ReadOf(page, pages, core_.region().entries_offset, entries_.get(), entries_region_->lkey())));
  for (uint64_t i = 0; i < pages; i++) {
    view.Set(page + i, entries_[i]);
  }
  pulled_bytes_.Add(pages * sizeof(uint64_t));
  return Status::Ok();
}

}  // namespace termfs::tlib::client

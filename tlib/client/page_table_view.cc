// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/page_table_view.h"

#include <sys/mman.h>

#include <bit>

namespace termfs::tlib::client {

Result<std::unique_ptr<PageTableView>> PageTableView::Create(uint64_t max_pages) {
  void* const memory = mmap(nullptr, max_pages * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus("reserve memory for a copy of the server's page table");
  }
  return std::unique_ptr<PageTableView>(new PageTableView(max_pages, static_cast<std::atomic<uint64_t>*>(memory)));
}

PageTableView::~PageTableView() { munmap(entries_, pages_ * sizeof(uint64_t)); }

void PageTableView::Cover(uint64_t pages, driver::RKey rkey) {
  MutexLock lock(mutex_);
  if (pages > covered_.load(std::memory_order_relaxed)) {
    rkey_.store(rkey.value, std::memory_order_relaxed);
    covered_.store(pages, std::memory_order_release);
  }
}

driver::SendWorkRequest PageTableView::ReadOf(uint64_t first, uint64_t count, uint64_t entries_offset, uint64_t* to,
                                              driver::LKey lkey) const {
  driver::SendWorkRequest request;
  request.opcode = driver::Opcode::kRdmaRead;
  request.local = {.addr = to, .length = static_cast<uint32_t>(count * sizeof(uint64_t)), .lkey = lkey};
  request.remote_offset = entries_offset + first * sizeof(uint64_t);
  request.rkey = {rkey_.load(std::memory_order_relaxed)};
  return request;
}

std::optional<uint64_t> PageTableView::NextUsed(uint64_t block) const {
  for (uint64_t word = block / 64; word < used_.size(); word++) {
    uint64_t bits = used_[word].load(std::memory_order_relaxed);
    if (word == block / 64) {
      bits &= ~uint64_t{0} << (block % 64);
    }
    if (bits != 0) {
      return word * 64 + static_cast<uint64_t>(std::countr_zero(bits));
    }
  }
  return std::nullopt;
}

}  // namespace termfs::tlib::client

// SPDX-License-Identifier: Apache-2.0
//
// The bytes of MemoryServer's region, as they are and as they were flushed.
#include <algorithm>
#include <cstring>

#include "tests/fakes/memory_tlib.h"

namespace termfs {

bool MemoryServer::PageIsZero(PageIndex page) {
  MutexLock lock(region_mutex_);
  const auto begin = bytes_.begin() + static_cast<ptrdiff_t>(StartOf(page).value);
  return std::all_of(begin, begin + kPageSize, [](std::byte b) { return b == std::byte{0}; });
}

Status MemoryServer::ForPages(RegionOffset offset, uint64_t length, const PerPage& per_page) {
  for (uint64_t done = 0; done < length;) {
    const uint64_t at = offset.value + done;
    const uint64_t part = std::min(length - done, kPageSize - (at & (kPageSize - 1)));
    {
      MutexLock lock(region_mutex_);
      if (at > bytes_.size() || part > bytes_.size() - at) {
        return Status::Error(EIO, "beyond the region");
      }
      RETURN_IF_ERROR(per_page(bytes_.data() + at, done, part));
    }
    done += part;
  }
  return Status::Ok();
}

Status MemoryServer::Resize(uint64_t pages) {
  MutexLock lock(region_mutex_);
  bytes_.resize(pages << kPageBits);
  flushed_.resize(pages << kPageBits);
  return Status::Ok();
}

Status MemoryServer::Read(RegionOffset offset, std::span<std::byte> to) {
  if (holding_server_reads_ && tlib::server::Task::InTask()) {
    ++held_server_reads_;
    while (holding_server_reads_) {
      tlib::server::Task::ParkUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
    }
    --held_server_reads_;
  }
  return ForPages(offset, to.size(), [&](const std::byte* page, uint64_t done, uint64_t part) {
    std::memcpy(to.data() + done, page, part);
    return Status::Ok();
  });
}

Status MemoryServer::Write(RegionOffset offset, std::span<const std::byte> from) {
  return ForPages(offset, from.size(), [&](std::byte* page, uint64_t done, uint64_t part) -> Status {
    if (pages_until_failure_ >= 0 && pages_until_failure_-- == 0) {
      return Status::Error(EIO, "injected: the device refuses");
    }
    std::memcpy(page, from.data() + done, part);
    return Status::Ok();
  });
}

Status MemoryServer::Zero(std::span<const tlib::server::PageRange> ranges) {
  for (const auto& range : ranges) {
    zeroed_pages_ += range.count;
    RETURN_IF_ERROR(
        ForPages(StartOf(range.first), range.count << kPageBits, [](std::byte* page, uint64_t, uint64_t part) {
          std::memset(page, 0, part);
          return Status::Ok();
        }));
  }
  return Flush(ranges);
}

Status MemoryServer::Flush(std::span<const tlib::server::PageRange> ranges) {
  while (holding_flushes_) {
    tlib::server::Task::ParkUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
  }
  if (flush_fails_.exchange(false)) {
    return Status::Error(EIO, "injected: the device does not flush");
  }
  for (const auto& range : ranges) {
    RETURN_IF_ERROR(ForPages(StartOf(range.first), range.count << kPageBits,
                             [this](const std::byte* page, uint64_t, uint64_t part) {
                               std::memcpy(flushed_.data() + (page - bytes_.data()), page, part);
                               return Status::Ok();
                             }));
  }
  return Status::Ok();
}

void MemoryServer::ForgetUnflushed() {
  MutexLock lock(region_mutex_);
  bytes_ = flushed_;
}

}  // namespace termfs

// SPDX-License-Identifier: Apache-2.0
#include "fs/server/evacuation.h"

#include <algorithm>

#include "base/log.h"

namespace termfs::fs::server {

namespace {

constexpr size_t kExtentsPerLook = 1024;
constexpr uint64_t kPagesAtOnce = 1024;  // for so long nobody else writes to the file
constexpr uint64_t kPagesPerCopy = 64;
constexpr std::chrono::seconds kPatience{20};  // for one inode's gate

bool IsZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

Result<Evacuation::Pass> Evacuation::Run(const std::function<bool()>& cancelled) {
  Pass pass;
  std::string from;
  do {
    ASSIGN_OR_RETURN(metadata::Namespace::Beyond beyond, p_.names.ListBeyond(from, kExtentsPerLook));
    for (const auto& [ino, extent] : beyond.extents) {
      pass.found += extent.pages;
      for (uint64_t done = 0; done < extent.pages; done += kPagesAtOnce) {
        if (cancelled()) {
          return Status::Error(ECANCELED, "the change of the capacity was called off");
        }
        metadata::Extent part = extent;
        part.file_page += done;
        part.region_page.value += done;
        part.pages = std::min(kPagesAtOnce, extent.pages - done);
        const Result<bool> moved = MoveOne(ino, part);
        if (moved.status().code() == ENOSPC || moved.status().code() == ECANCELED) {
          return moved.status();
        }
        if (!moved.ok()) {
          LOG_INFO("inode {} is not moved yet: {}", ino, moved.status().ToDebugString());
          pass.obstacle = moved.status();
          break;
        }
        pass.moved += *moved ? part.pages : 0;
      }
    }
    from = std::move(beyond.next);
  } while (!from.empty());
  return pass;
}

Result<bool> Evacuation::MoveOne(uint64_t ino, const metadata::Extent& extent) {
  const InodeRef inode = p_.inodes.Get(ino);
  RETURN_IF_ERROR(p_.server.RunInCoroutine([&] { return EnterAlone(*inode); }));
  bool moved = false;
  const Status status = p_.reclaimer.Run([&]() -> Status {
    ASSIGN_OR_RETURN(moved, Carry(*inode, extent));
    return Status::Ok();
  });
  {
    MutexLock lock(inode->mutex);
    inode->frozen = false;
  }
  inode->gate.Leave(GateMode::kExclusive);
  RETURN_IF_ERROR(status);
  return moved;
}

Status Evacuation::EnterAlone(Inode& inode) {
  RETURN_IF_ERROR(inode.gate.Enter(GateMode::kExclusive, std::chrono::steady_clock::now() + kPatience, nullptr));
  Status revoked = p_.coherence.Revoke(inode, 0);
  if (!revoked.ok()) {
    {
      MutexLock lock(inode.mutex);
      inode.frozen = false;
    }
    inode.gate.Leave(GateMode::kExclusive);
  }
  return revoked;
}

// On the reclaimer's thread. What is reserved and not used is pending-free, so it is freed in the next pass.
Result<bool> Evacuation::Carry(Inode& inode, const metadata::Extent& extent) {
  ASSIGN_OR_RETURN(const auto to, p_.names.Reserve(inode.ino, extent.pages));
  RETURN_IF_ERROR(p_.server.RunInCoroutine([&] { return Copy(extent, to); }));
  ASSIGN_OR_RETURN(const bool moved, p_.names.MoveExtent(inode.ino, extent, to));
  p_.reclaimer.NoteChange();
  if (!moved) {
    return false;
  }
  MutexLock lock(inode.mutex);
  uint64_t page = extent.file_page;
  for (const metadata::RegionRange& range : to) {
    inode.extents.Set({page, range.pages, range.first.value});
    page += range.pages;
  }
  inode.frees.fetch_add(1, std::memory_order_release);
  inode.NewVersion(p_.versions, Inode::Change::kAny);
  return true;
}

// Pages of zeros are zero pages there already.
Status Evacuation::Copy(const metadata::Extent& extent, const std::vector<metadata::RegionRange>& to) {
  tlib::server::RegionIo& region = p_.server.region();
  std::vector<std::byte> bytes(kPagesPerCopy << kPageBits);
  std::vector<tlib::server::PageRange> written;
  uint64_t from = extent.region_page.value;
  for (const metadata::RegionRange& range : to) {
    for (uint64_t done = 0; done < range.pages;) {
      const uint64_t pages = std::min(kPagesPerCopy, range.pages - done);
      const std::span<std::byte> all = std::span(bytes).first(pages << kPageBits);
      RETURN_IF_ERROR(region.Read({(from + done) << kPageBits}, all));
      const auto page_is_zero = [&](uint64_t page) { return IsZero(all.subspan(page << kPageBits, kPageSize)); };
      for (uint64_t page = 0; page < pages;) {
        const uint64_t first = page;
        while (page < pages && !page_is_zero(page)) {
          ++page;
        }
        if (first < page) {
          RETURN_IF_ERROR(region.Write({(range.first.value + done + first) << kPageBits},
                                       all.subspan(first << kPageBits, (page - first) << kPageBits)));
        } else {
          ++page;
        }
      }
      done += pages;
    }
    from += range.pages;
    written.push_back({range.first, range.pages});
  }
  return region.Flush(written);
}

}  // namespace termfs::fs::server

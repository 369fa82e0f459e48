// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/exported_memory.h"

#include <algorithm>
#include <cstring>

#include "driver/softnic/page_table.h"

namespace termfs::driver::softnic {
namespace {

const PageTableHeader& HeaderOf(const Export& region) {
  return *reinterpret_cast<const PageTableHeader*>(region.object->data());
}

uint64_t SizeOf(const Export& region) {
  if (!region.frames) {
    return region.size;
  }
  const uint64_t pages = HeaderOf(region).pages.load(std::memory_order_acquire);
  return std::min(pages, region.max_pages) << kPageBits;
}

bool Covers(const Export& region, uint64_t offset, uint64_t length) {
  const uint64_t size = SizeOf(region);
  return offset <= size && length <= size - offset;
}

// Each word at once; and after whatever was read before it.
void CopyWords(std::byte* to, const std::byte* from, size_t size) {
  FenceAfterRacyReads();
  for (size_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t word = reinterpret_cast<const std::atomic<uint64_t>*>(from + at)->load(std::memory_order_acquire);
    std::memcpy(to + at, &word, sizeof(word));
  }
}

std::atomic<uint64_t>& WordAt(std::byte* at) { return *reinterpret_cast<std::atomic<uint64_t>*>(at); }

}  // namespace

const Export* ExportedMemory::Find(RKey rkey) {
  Known& known = known_[rkey.value % known_.size()];
  if (known.rkey != rkey || known.region == nullptr || !registry_->IsValid(*known.region)) [[unlikely]] {
    known = {rkey, registry_->FindExport({rkey.value ^ key_mask_}, domain_)};
  }
  return known.region.get();
}

bool ExportedMemory::Allows(RKey rkey, uint64_t offset, uint64_t length, Access access) {
  return FindAllowed(rkey, offset, length, access) != nullptr;
}

const Export* ExportedMemory::FindAllowed(RKey rkey, uint64_t offset, uint64_t length, Access access) {
  const Export* const region = Find(rkey);
  if (region == nullptr || !Covers(*region, offset, length)) {
    return nullptr;
  }
  const bool allowed = region->frames ? access == Access::kRemoteRead && AllowsOneSidedRead(region->kind) &&
                                            region->kind != RegionKind::kOdp
                                      : Has(region->access, access);
  return allowed ? region : nullptr;
}

bool ExportedMemory::Read(RKey rkey, uint64_t offset, std::span<std::byte> to) {
  const Export* const found = FindAllowed(rkey, offset, to.size(), Access::kRemoteRead);
  if (found == nullptr) {
    return false;
  }
  const Export& region = *found;
  if (region.frames) {
    return ReadPage(region, offset, to);
  }
  const std::byte* const from = region.object->data() + region.offset + offset;
  if (region.words && (reinterpret_cast<uintptr_t>(from) | to.size()) % sizeof(uint64_t) == 0) {
    CopyWords(to.data(), from, to.size());
  } else {
    RacyCopy(to.data(), from, to.size());
  }
  return true;
}

bool ExportedMemory::ReadPage(const Export& region, uint64_t offset, std::span<std::byte> to) {
  const PageTableHeader& header = HeaderOf(region);
  const auto& entry =
      reinterpret_cast<const PageTableEntry*>(region.object->data() + kEntriesOffset)[offset >> kPageBits];
  const auto in_page = static_cast<uint32_t>(offset % kPageSize);
  switch (CopyPage<RacyCopyOfCold>(entry, region.frames->data(), static_cast<uint32_t>(region.max_pages), in_page,
                                   to.data(), to.size())) {
    case PageCopy::kData:
      return true;
    case PageCopy::kCorrupt:
      return false;
    case PageCopy::kMagic:
    case PageCopy::kUnstable:
      break;
  }
  Pattern pattern;
  uint64_t version = 0;
  if (!LoadPattern(header, &pattern, &version)) {
    return false;
  }
  for (size_t done = 0; done < to.size();) {
    const size_t in_line = (in_page + done) % pattern.line.size();
    const size_t part = std::min(to.size() - done, pattern.line.size() - in_line);
    std::memcpy(to.data() + done, pattern.line.data() + in_line, part);
    done += part;
  }
  return true;
}

void ExportedMemory::Prefetch(RKey rkey, uint64_t offset, uint64_t length) {
  const Export* const region = Find(rkey);
  if (region == nullptr || !region->frames || !Covers(*region, offset, length)) {
    return;
  }
  const auto& entry =
      reinterpret_cast<const PageTableEntry*>(region->object->data() + kEntriesOffset)[offset >> kPageBits];
  PrefetchPage(entry, region->frames->data(), static_cast<uint32_t>(region->max_pages),
               static_cast<uint32_t>(offset % kPageSize), length);
}

std::byte* ExportedMemory::Reach(RKey rkey, uint64_t offset, uint64_t length, Access access) {
  const Export* const region = FindAllowed(rkey, offset, length, access);
  return region != nullptr ? region->object->data() + region->offset + offset : nullptr;
}

bool ExportedMemory::Write(RKey rkey, uint64_t offset, std::span<const std::byte> from) {
  std::byte* const to = Reach(rkey, offset, from.size(), Access::kRemoteWrite);
  if (to == nullptr) {
    return false;
  }
  RacyCopy(to, from.data(), from.size());
  return true;
}

bool ExportedMemory::CompareSwap(RKey rkey, uint64_t offset, uint64_t compare, uint64_t swap, uint64_t* before) {
  std::byte* const at = Reach(rkey, offset, sizeof(uint64_t), Access::kRemoteAtomic);
  if (at == nullptr || reinterpret_cast<uintptr_t>(at) % sizeof(uint64_t) != 0) {
    return false;
  }
  *before = compare;
  WordAt(at).compare_exchange_strong(*before, swap, std::memory_order_seq_cst);
  return true;
}

bool ExportedMemory::FetchAdd(RKey rkey, uint64_t offset, uint64_t add, uint64_t* before) {
  std::byte* const at = Reach(rkey, offset, sizeof(uint64_t), Access::kRemoteAtomic);
  if (at == nullptr || reinterpret_cast<uintptr_t>(at) % sizeof(uint64_t) != 0) {
    return false;
  }
  *before = WordAt(at).fetch_add(add, std::memory_order_seq_cst);
  return true;
}

}  // namespace termfs::driver::softnic

// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/remote_region.h"

#include <cstring>

namespace termfs::driver::softnic {

Result<std::unique_ptr<RemoteRegion>> RemoteRegion::Create(const SocketMessage& answer, std::span<const UniqueFd> fds,
                                                           const std::shared_ptr<Mapping>& validity,
                                                           MappingCache& cache, bool maps_files) {
  if (answer.ok == 0) {
    return Status::Error(EACCES, "the peer grants no access with this key");
  }
  if (answer.validity_slot >= kValiditySlots) {
    return Status::Error(EPROTO, "the peer's key has no place in its table of valid keys");
  }
  std::unique_ptr<RemoteRegion> region(new RemoteRegion);
  region->rkey_ = RKey{answer.rkey};
  region->access_ = static_cast<Access>(answer.access);
  region->validity_ = validity;
  region->validity_word_ = reinterpret_cast<const std::atomic<uint32_t>*>(validity->data()) + answer.validity_slot;
  region->validity_generation_ = answer.validity_generation;
  if (answer.has_pages != 0) {
    RETURN_IF_ERROR(region->MapPages(answer, fds, cache, maps_files ? MappedKind::kRegion : MappedKind::kSealed));
  } else {
    RETURN_IF_ERROR(region->MapPlain(answer, fds, cache));
  }
  return region;
}

Status RemoteRegion::MapPlain(const SocketMessage& answer, std::span<const UniqueFd> fds, MappingCache& cache) {
  constexpr uint64_t kLimit = uint64_t{1} << 46;
  if (!fds[0].valid() || answer.offset > kLimit || answer.size > kLimit || answer.size == 0) {
    return Status::Error(EPROTO, "the peer's memory region makes no sense");
  }
  // The bits are only what the peer says; if the mapping fails, they were not true.
  const bool writable = Allows(Access::kRemoteWrite) || Allows(Access::kRemoteAtomic);
  const MappedKind kind = writable ? MappedKind::kSealedToWrite : MappedKind::kSealed;
  ASSIGN_OR_RETURN(mappings_[0], cache.Map(fds[0], answer.offset + answer.size, kind));
  data_ = mappings_[0]->data() + answer.offset;
  size_ = answer.size;
  return Status::Ok();
}

Status RemoteRegion::MapPages(const SocketMessage& answer, std::span<const UniqueFd> fds, MappingCache& cache,
                              MappedKind kind) {
  if (!fds[0].valid() || !fds[1].valid() || answer.max_pages == 0 || answer.max_pages > kMaxPages ||
      answer.region_kind > static_cast<uint32_t>(RegionKind::kTerm)) {
    return Status::Error(EPROTO, "the peer's region makes no sense");
  }
  has_pages_ = true;
  kind_ = static_cast<RegionKind>(answer.region_kind);
  access_ = Access::kRemoteRead;  // a page table is never written through
  ASSIGN_OR_RETURN(mappings_[0], cache.Map(fds[0], PageTableBytes(answer.max_pages), kind));
  ASSIGN_OR_RETURN(mappings_[1], cache.Map(fds[1], answer.max_pages << kPageBits, kind));
  header_ = reinterpret_cast<const PageTableHeader*>(mappings_[0]->data());
  entries_ = reinterpret_cast<const PageTableEntry*>(mappings_[0]->data() + kEntriesOffset);
  frames_ = mappings_[1]->data();
  max_frames_ = static_cast<uint32_t>(answer.max_pages);
  max_size_ = answer.max_pages << kPageBits;
  return Status::Ok();
}

bool RemoteRegion::CopyPattern(uint32_t in_page, std::byte* to, size_t length) {
  if (magic_frame_ == nullptr || header_->pattern_version.load(std::memory_order_acquire) != pattern_version_) {
    Pattern pattern;
    if (!LoadPattern(*header_, &pattern, &pattern_version_)) {
      return false;
    }
    if (magic_frame_ == nullptr) {
      magic_frame_ = std::make_unique<std::array<std::byte, kPageSize>>();
    }
    for (size_t at = 0; at < kPageSize; at += pattern.line.size()) {
      std::memcpy(magic_frame_->data() + at, pattern.line.data(), pattern.line.size());
    }
  }
  std::memcpy(to, magic_frame_->data() + in_page, length);
  return true;
}

}  // namespace termfs::driver::softnic

// SPDX-License-Identifier: Apache-2.0
//
// RemoteRegion: a peer's memory region as a queue pair knows it after asking for its rkey: mapped, with the access that
// the owner allows. Everything in the mappings is the peer's and may be anything: what is used as an index is copied
// once and checked, so a hostile peer can make us deliver nonsense but never read or write outside the mappings.
//
// Thread-safety: belongs to its queue pair's thread.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/page.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/nic.h"
#include "driver/softnic/layout.h"
#include "driver/softnic/mapping.h"
#include "driver/softnic/page_table.h"

namespace termfs::driver::softnic {

class RemoteRegion {
 public:
  // From the peer's answer. EACCES: the peer refused the key. EPROTO: what it sent makes no sense.
  static Result<std::unique_ptr<RemoteRegion>> Create(const SocketMessage& answer, std::span<const UniqueFd> fds,
                                                      const std::shared_ptr<Mapping>& validity, MappingCache& cache,
                                                      bool maps_files);

  RKey rkey() const { return rkey_; }
  bool has_pages() const { return has_pages_; }
  RegionKind kind() const { return kind_; }
  // Whether the owner has not deregistered it.
  bool valid() const { return validity_word_->load(std::memory_order_acquire) == validity_generation_; }
  bool Allows(Access access) const { return Has(access_, access); }
  bool Covers(uint64_t offset, uint64_t length) const {
    const uint64_t size = has_pages_ ? PagesSize() : size_;
    return offset <= size && length <= size - offset;
  }

  // Of a region without page table. REQUIRES: Covers.
  std::byte* At(uint64_t offset) const { return data_ + offset; }
  uint64_t size() const { return size_; }

  // It will not be used for a while.
  void LetGo() const {
    if (!has_pages_) {
      mappings_[0]->LetGo();
    }
  }

  // --- Of a region with a page table. REQUIRES: page < pages that Covers has accepted.
  PageCopy Copy(PageIndex page, uint32_t in_page, std::byte* to, size_t length) const {
    return CopyPage(entries_[page.value], frames_, max_frames_, in_page, to, length);
  }
  // All checks, Covers included, and one attempt at a part of a page: its bytes, or the pattern's where it is absent.
  // False when anything stands against it. REQUIRES: the part does not leave its page.
  bool CopyNow(uint64_t offset, std::byte* to, size_t length) {
    const uint64_t page = offset >> kPageBits;
    if (offset >= max_size_ || page >= header_->pages.load(std::memory_order_acquire) || !valid() ||
        !Allows(Access::kRemoteRead)) [[unlikely]] {
      return false;
    }
    const PageTableEntry& entry = entries_[page];
    const uint64_t seen = entry.load(std::memory_order_acquire);
    if (FrameOf(seen) >= max_frames_) [[unlikely]] {
      return FrameOf(seen) == kMagicFrame && kind_ != RegionKind::kOdp &&
             CopyPattern(static_cast<uint32_t>(offset % kPageSize), to, length);
    }
    RacyCopy(to, frames_ + (uint64_t{FrameOf(seen)} << kPageBits) + offset % kPageSize, length);
    FenceAfterRacyReads();
    return entry.load(std::memory_order_relaxed) == seen;
  }
  // What an absent page reads as. False: the peer's pattern cannot be read.
  bool CopyPattern(uint32_t in_page, std::byte* to, size_t length);

  // Starts loading what Copy will need: first the entry, a little later the frame.
  void PrefetchEntry(uint64_t offset) const {
    if (offset < max_size_) {
      __builtin_prefetch(&entries_[offset >> kPageBits]);
    }
  }
  void PrefetchFrame(uint64_t offset, uint32_t length) const;

 private:
  RemoteRegion() = default;
  Status MapPlain(const SocketMessage& answer, std::span<const UniqueFd> fds, MappingCache& cache);
  Status MapPages(const SocketMessage& answer, std::span<const UniqueFd> fds, MappingCache& cache, MappedKind kind);
  uint64_t PagesSize() const {
    return std::min(header_->pages.load(std::memory_order_acquire) << kPageBits, max_size_);
  }

  RKey rkey_;
  bool has_pages_ = false;
  RegionKind kind_ = RegionKind::kTerm;
  Access access_{};
  const std::atomic<uint32_t>* validity_word_ = nullptr;
  uint32_t validity_generation_ = 0;
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;

  const PageTableHeader* header_ = nullptr;
  const PageTableEntry* entries_ = nullptr;
  const std::byte* frames_ = nullptr;
  uint32_t max_frames_ = 0;
  uint64_t max_size_ = 0;  // bytes: max_pages
  uint64_t pattern_version_ = 0;
  std::unique_ptr<std::array<std::byte, kPageSize>> magic_frame_;  // the pattern; null: not known

  std::shared_ptr<Mapping> validity_;
  std::array<std::shared_ptr<Mapping>, kMaxMessageFds> mappings_;
};

inline void RemoteRegion::PrefetchFrame(uint64_t offset, uint32_t length) const {
  if (offset >= max_size_) {
    return;
  }
  PrefetchPage(entries_[offset >> kPageBits], frames_, max_frames_, static_cast<uint32_t>(offset % kPageSize), length);
}

}  // namespace termfs::driver::softnic

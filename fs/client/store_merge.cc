// SPDX-License-Identifier: Apache-2.0
#include "fs/client/store_merge.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace termfs::fs::client {

StoreMerge::Pages StoreMerge::PagesOf(uint64_t offset, uint64_t length) {
  const uint64_t first = offset >> kPageBits;
  if (length == 0) {
    return {.first = first, .end = first};
  }
  const uint64_t last = length > kToEnd - offset ? kToEnd : offset + length - 1;
  return {.first = first, .end = (last >> kPageBits) + 1};
}

void StoreMerge::Set(Pages pages) {
  for (uint64_t page = pages.first; page < pages.end; ++page) {
    std::unique_ptr<Chunk>& chunk = read_[page / kChunkPages];
    if (chunk == nullptr) {
      chunk = std::make_unique<Chunk>();
    }
    (*chunk)[page % kChunkPages / 64] |= uint64_t{1} << (page % 64);
  }
}

void StoreMerge::Clear(Pages pages) {
  for (auto at = read_.lower_bound(pages.first / kChunkPages); at != read_.end();) {
    const uint64_t start = at->first * kChunkPages;
    if (start >= pages.end) {
      return;
    }
    const uint64_t first = std::max(start, pages.first);
    const uint64_t end = std::min(start + kChunkPages, pages.end);
    for (uint64_t page = first; page < end; ++page) {
      (*at->second)[page % kChunkPages / 64] &= ~(uint64_t{1} << (page % 64));
    }
    const bool empty = std::all_of(at->second->begin(), at->second->end(), [](uint64_t word) { return word == 0; });
    at = empty ? read_.erase(at) : std::next(at);
  }
}

std::vector<uint64_t> StoreMerge::Read(Pages pages) const {
  std::vector<uint64_t> found;
  for (auto at = read_.lower_bound(pages.first / kChunkPages); at != read_.end(); ++at) {
    const uint64_t start = at->first * kChunkPages;
    if (start >= pages.end) {
      break;
    }
    for (size_t i = 0; i < at->second->size(); ++i) {
      for (uint64_t word = (*at->second)[i]; word != 0; word &= word - 1) {
        const uint64_t page = start + i * 64 + static_cast<uint64_t>(std::countr_zero(word));
        if (pages.Covers(page)) {
          found.push_back(page);
        }
      }
    }
  }
  return found;
}

bool StoreMerge::IsChanging(uint64_t page) const {
  return std::any_of(changes_.begin(), changes_.end(),
                     [page](const Change* change) { return change->pages_.Covers(page); });
}

void StoreMerge::Reading(uint64_t offset, uint64_t length) {
  const Pages pages = PagesOf(offset, length);
  MutexLock lock(mutex_);
  Set(pages);
  if (changes_.empty() && !bases_.empty()) {  // left behind by a kernel that did not drop its pages in time: it has now
    for (uint64_t page = pages.first; page < pages.end; ++page) {
      bases_.erase(page);
    }
  }
}

void StoreMerge::HasRead(uint64_t offset, uint64_t length, std::span<const std::byte> bytes) {
  const Pages pages = PagesOf(offset, length);
  MutexLock lock(mutex_);
  if (changes_.empty()) {
    return;
  }
  for (uint64_t page = pages.first; page < pages.end; ++page) {
    if (!IsChanging(page)) {
      continue;
    }
    std::unique_ptr<Base>& base = bases_[page];
    base = std::make_unique<Base>();  // zeros
    const uint64_t at = (page << kPageBits) - std::min(offset, page << kPageBits);
    if (at < bytes.size()) {
      const auto part = bytes.subspan(at, std::min<uint64_t>(kPageSize, bytes.size() - at));
      std::copy(part.begin(), part.end(), base->begin());
    }
  }
}

size_t StoreMerge::CountRead(Pages pages) {
  MutexLock lock(mutex_);
  return read_.empty() ? 0 : Read(pages).size();
}

std::vector<uint64_t> StoreMerge::Forget(Pages pages) {
  MutexLock lock(mutex_);
  std::vector<uint64_t> forgotten = Read(pages);
  Clear(pages);
  return forgotten;
}

void StoreMerge::Remember(const std::vector<uint64_t>& pages) {
  MutexLock lock(mutex_);
  for (const uint64_t page : pages) {
    Set({.first = page, .end = page + 1});
  }
}

Result<std::vector<uint64_t>> StoreMerge::Change::Begin(StoreMerge& merge, Pages pages, TimePoint deadline) {
  MutexLock lock(merge.mutex_);
  merge_ = &merge;
  pages_ = pages;
  preparing_ = true;
  // Those that wait for the write-backs, which may wait for one that is preparing already.
  const auto held_up = [&]() REQUIRES(merge.mutex_) {
    return std::any_of(merge.write_backs_.begin(), merge.write_backs_.end(),
                       [&](const WriteBack* other) { return other->pages_.Meets(pages); }) ||
           std::any_of(merge.changes_.begin(), merge.changes_.end(),
                       [&](const Change* other) { return other->preparing_ && other->pages_.Meets(pages); });
  };
  while (held_up()) {
    if (!merge.moved_.WaitUntil(merge.mutex_, deadline)) {
      merge_ = nullptr;
      return Status::Error(ETIMEDOUT, "pages of the file are being written back");
    }
  }
  merge.changes_.push_back(this);
  std::vector<uint64_t> unknown;
  if (!merge.read_.empty()) {
    unknown = merge.Read(pages);
    found_ = !unknown.empty();
    merge.Clear(pages);
    std::erase_if(unknown, [&](uint64_t page) REQUIRES(merge.mutex_) { return merge.bases_.contains(page); });
  }
  // What another change has found there is not dropped yet.
  found_ = found_ || std::any_of(merge.bases_.begin(), merge.bases_.end(),
                                 [&](const auto& base) { return pages.Covers(base.first); });
  preparing_ = !unknown.empty();
  return unknown;
}

void StoreMerge::Change::SetBase(uint64_t page, std::span<const std::byte> bytes) {
  auto base = std::make_unique<Base>();  // zeros
  std::copy_n(bytes.begin(), std::min<size_t>(bytes.size(), kPageSize), base->begin());
  MutexLock lock(merge_->mutex_);
  merge_->bases_.try_emplace(page, std::move(base));  // unless the kernel was given it meanwhile
}

void StoreMerge::Change::Prepared() {
  MutexLock lock(merge_->mutex_);
  preparing_ = false;
  merge_->moved_.NotifyAll();
}

bool StoreMerge::Change::MayBeStale() const {
  if (merge_ == nullptr || found_) {
    return merge_ != nullptr;
  }
  MutexLock lock(merge_->mutex_);
  return !merge_->read_.empty() && !merge_->Read(pages_).empty();
}

void StoreMerge::Change::End(bool dropped) {
  if (merge_ == nullptr) {
    return;
  }
  StoreMerge& merge = *std::exchange(merge_, nullptr);
  MutexLock lock(merge.mutex_);
  std::erase(merge.changes_, this);
  if (preparing_) {
    preparing_ = false;
    merge.moved_.NotifyAll();
  }
  if (dropped && !merge.bases_.empty()) {
    std::erase_if(merge.bases_, [&](const auto& base) REQUIRES(merge.mutex_) {
      return pages_.Covers(base.first) && !merge.IsChanging(base.first);
    });
  }
}

void StoreMerge::AppendStored(uint64_t offset, std::span<const std::byte> bytes, std::vector<Piece>& pieces) {
  const auto add = [&pieces](uint64_t at, std::span<const std::byte> part) {
    if (!pieces.empty() && pieces.back().offset + pieces.back().bytes.size() == at &&
        pieces.back().bytes.data() + pieces.back().bytes.size() == part.data()) {
      pieces.back().bytes = {pieces.back().bytes.data(), pieces.back().bytes.size() + part.size()};
    } else {
      pieces.push_back({.offset = at, .bytes = part});
    }
  };
  const auto found = bases_.find(offset >> kPageBits);
  if (found == bases_.end()) {
    return add(offset, bytes);
  }
  const std::span<std::byte> base = std::span(*found->second).subspan(offset & (kPageSize - 1), bytes.size());
  for (size_t begin = 0; begin < bytes.size();) {
    if (bytes[begin] == base[begin]) {
      ++begin;
      continue;
    }
    size_t end = begin + 1;
    while (end < bytes.size() && bytes[end] != base[end]) {
      ++end;
    }
    add(offset + begin, bytes.subspan(begin, end - begin));
    begin = end;
  }
  std::copy(bytes.begin(), bytes.end(), base.begin());
}

Result<std::vector<StoreMerge::Piece>> StoreMerge::WriteBack::Begin(StoreMerge& merge, uint64_t offset,
                                                                    std::span<const std::byte> bytes,
                                                                    TimePoint deadline) {
  const Pages pages = PagesOf(offset, bytes.size());
  MutexLock lock(merge.mutex_);
  const auto held_up = [&]() REQUIRES(merge.mutex_) {
    return std::any_of(merge.changes_.begin(), merge.changes_.end(),
                       [&](const Change* change) { return change->preparing_ && change->pages_.Meets(pages); });
  };
  while (held_up()) {
    if (!merge.moved_.WaitUntil(merge.mutex_, deadline)) {
      return Status::Error(ETIMEDOUT, "pages of the file are being changed");
    }
  }
  merge_ = &merge;
  pages_ = pages;
  merge.write_backs_.push_back(this);
  std::vector<Piece> pieces;
  for (size_t done = 0; done < bytes.size();) {
    const uint64_t at = offset + done;
    const size_t part = std::min<size_t>(bytes.size() - done, kPageSize - (at & (kPageSize - 1)));
    merge.AppendStored(at, bytes.subspan(done, part), pieces);
    done += part;
  }
  return pieces;
}

StoreMerge::WriteBack::~WriteBack() {
  if (merge_ != nullptr) {
    MutexLock lock(merge_->mutex_);
    std::erase(merge_->write_backs_, this);
    merge_->moved_.NotifyAll();
  }
}

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
#include "fs/extent_map.h"

#include <algorithm>

#include "base/check.h"

namespace termfs::fs {

namespace {

Segment CutTo(const Segment& segment, uint64_t begin, uint64_t end) {
  const uint64_t first = std::max(segment.file_page, begin);
  return {first, std::min(segment.end(), end) - first, segment.region_of(first)};
}

bool Continues(const Segment& left, const Segment& right) {
  return left.end() == right.file_page &&
         (left.is_hole() ? right.is_hole() : !right.is_hole() && left.region_page + left.pages == right.region_page);
}

}  // namespace

size_t ExtentMap::LowerBound(uint64_t page) const {
  return static_cast<size_t>(
      std::partition_point(segments_.begin(), segments_.end(), [page](const Segment& s) { return s.end() <= page; }) -
      segments_.begin());
}

ptrdiff_t ExtentMap::Find(uint64_t page) const {
  const size_t i = LowerBound(page);
  return i < segments_.size() && segments_[i].file_page <= page ? static_cast<ptrdiff_t>(i) : -1;
}

void ExtentMap::Set(const Segment& segment) {
  TERMFS_CHECK(segment.pages > 0 && segment.end() <= kMaxFilePages);
  const size_t first = LowerBound(segment.file_page);
  size_t last = first;
  std::vector<Segment> replacement;
  while (last < segments_.size() && segments_[last].file_page < segment.end()) {
    ++last;
  }
  if (first < last && segments_[first].file_page < segment.file_page) {
    replacement.push_back(CutTo(segments_[first], 0, segment.file_page));
  }
  replacement.push_back(segment);
  if (first < last && segments_[last - 1].end() > segment.end()) {
    replacement.push_back(CutTo(segments_[last - 1], segment.end(), kMaxFilePages));
  }
  size_t begin = first;
  if (begin > 0 && Continues(segments_[begin - 1], replacement.front())) {
    replacement.insert(replacement.begin(), segments_[--begin]);
  }
  if (last < segments_.size() && Continues(replacement.back(), segments_[last])) {
    replacement.push_back(segments_[last++]);
  }
  size_t kept = 0;  // merge within the replacement
  for (size_t i = 1; i < replacement.size(); ++i) {
    if (Continues(replacement[kept], replacement[i])) {
      replacement[kept].pages += replacement[i].pages;
    } else {
      replacement[++kept] = replacement[i];
    }
  }
  replacement.resize(kept + 1);
  const size_t overwrite = std::min(replacement.size(), last - begin);
  const auto at = segments_.begin() + static_cast<ptrdiff_t>(begin);
  std::copy_n(replacement.begin(), overwrite, at);
  if (overwrite < replacement.size()) {
    segments_.insert(at + static_cast<ptrdiff_t>(overwrite), replacement.begin() + static_cast<ptrdiff_t>(overwrite),
                     replacement.end());
  } else {
    segments_.erase(at + static_cast<ptrdiff_t>(overwrite), segments_.begin() + static_cast<ptrdiff_t>(last));
  }
}

void ExtentMap::FillUnknown(const Segment& segment) {
  uint64_t page = segment.file_page;
  while ((page = FirstUnknown(page, segment.end())) < segment.end()) {
    const size_t next = LowerBound(page);
    const uint64_t end = next < segments_.size() ? std::min(segment.end(), segments_[next].file_page) : segment.end();
    Set(CutTo(segment, page, end));
    page = end;
  }
}

uint64_t ExtentMap::FirstUnknown(uint64_t page, uint64_t end) const {
  for (size_t i = LowerBound(page); page < end; ++i) {
    if (i == segments_.size() || segments_[i].file_page > page) {
      return page;
    }
    page = segments_[i].end();
  }
  return end;
}

std::vector<Segment> ExtentMap::Cut(uint64_t page, uint64_t end) const {
  std::vector<Segment> cut;
  for (size_t i = LowerBound(page); i < segments_.size() && segments_[i].file_page < end; ++i) {
    cut.push_back(CutTo(segments_[i], page, end));
  }
  return cut;
}

bool ExtentMap::Allocated(uint64_t page, uint64_t end) const {
  for (size_t i = LowerBound(page); page < end; ++i) {
    if (i == segments_.size() || segments_[i].file_page > page || segments_[i].is_hole()) {
      return false;
    }
    page = segments_[i].end();
  }
  return true;
}

}  // namespace termfs::fs

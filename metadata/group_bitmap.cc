// SPDX-License-Identifier: Apache-2.0
#include "metadata/group_bitmap.h"

#include <algorithm>
#include <bit>

#include "metadata/coding.h"

namespace termfs::metadata {

namespace {

// A record's first byte. After kWords come all words; after kChanges the pages, ascending, 16 bits each, that differ
// from the page before (page 0: that are taken).
constexpr uint8_t kWords = 1;
constexpr uint8_t kChanges = 2;

constexpr size_t kMostChanges = kGroupPages / 8 / sizeof(uint16_t);  // as long as all words

Status Damaged() { return Status::Error(EIO, "allocation group: damaged record, run termfs fsck"); }

}  // namespace

Result<GroupBitmap> GroupBitmap::Decode(uint32_t pages, std::string_view bytes) {
  Decoder decoder(bytes);
  switch (decoder.U8()) {
    case kWords:
      return DecodeWords(pages, decoder.Rest());
    case kChanges:
      return DecodeChanges(pages, decoder.Rest());
    default:
      return Damaged();
  }
}

Result<GroupBitmap> GroupBitmap::DecodeWords(uint32_t pages, std::string_view bytes) {
  Decoder decoder(bytes);
  GroupBitmap bitmap(pages);
  for (uint64_t& word : bitmap.words_) {
    word = decoder.U64();
  }
  return decoder.Finished() ? Result<GroupBitmap>(bitmap) : Damaged();
}

Result<GroupBitmap> GroupBitmap::DecodeChanges(uint32_t pages, std::string_view bytes) {
  const size_t count = bytes.size() / sizeof(uint16_t);
  if (count >= kMostChanges) {
    return Damaged();
  }
  Decoder decoder(bytes);
  GroupBitmap bitmap(pages);
  bool taken = false;
  uint32_t from = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t page = decoder.U16();
    if (page >= kGroupPages || (i > 0 && page <= from)) {
      return Damaged();
    }
    if (taken) {
      bitmap.Take({from, page - from});
    }
    from = page;
    taken = !taken;
  }
  if (taken) {
    bitmap.Take({from, static_cast<uint32_t>(kGroupPages) - from});
  }
  return decoder.Finished() ? Result<GroupBitmap>(bitmap) : Damaged();
}

std::string GroupBitmap::Encode() const {
  Encoder changes(kChanges);
  bool taken = false;
  size_t count = 0;
  for (uint32_t page = FindTaken(0, true); page < kGroupPages && count < kMostChanges; page = FindTaken(page, !taken)) {
    changes.U16(static_cast<uint16_t>(page));
    taken = !taken;
    ++count;
  }
  if (count < kMostChanges) {
    return changes.Take();
  }
  Encoder words(kWords);
  for (const uint64_t word : words_) {
    words.U64(word);
  }
  return words.Take();
}

void GroupBitmap::Set(PageRun run, bool taken) {
  const uint32_t end = run.first + run.pages;
  for (uint32_t page = run.first; page < end;) {
    const uint32_t in_word = page % 64;
    const uint32_t n = std::min(64 - in_word, end - page);
    const uint64_t mask = (n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1) << in_word;
    uint64_t& word = words_[page / 64];
    word = taken ? word | mask : word & ~mask;
    page += n;
  }
}

uint32_t GroupBitmap::FindTaken(uint32_t from, bool value) const {
  for (uint32_t page = from; page < kGroupPages;) {
    const uint64_t word = value ? words_[page / 64] : ~words_[page / 64];
    const uint64_t rest = word >> (page % 64);
    if (rest != 0) {
      return page + static_cast<uint32_t>(std::countr_zero(rest));
    }
    page = (page / 64 + 1) * 64;
  }
  return kGroupPages;
}

PageRun GroupBitmap::NextFree(uint32_t from) const {
  const uint32_t first = FindTaken(from, false);
  if (first >= pages_) {
    return {};
  }
  return {first, std::min(FindTaken(first, true), pages_) - first};
}

PageRun GroupBitmap::FindFree(uint32_t from, uint32_t want) const {
  PageRun longest;
  for (const auto& [begin, end] : {std::pair<uint32_t, uint32_t>{from, pages_}, {0, from}}) {
    for (PageRun run = NextFree(begin); run.pages != 0 && run.first < end; run = NextFree(run.first + run.pages)) {
      if (run.pages >= want) {
        return run;
      }
      if (run.pages > longest.pages) {
        longest = run;
      }
    }
  }
  return longest;
}

uint32_t GroupBitmap::CountFree() const {
  uint32_t taken = 0;
  for (uint32_t word = 0; word < pages_ / 64; ++word) {
    taken += static_cast<uint32_t>(std::popcount(words_[word]));
  }
  for (uint32_t page = pages_ / 64 * 64; page < pages_; ++page) {
    taken += this->taken(page) ? 1 : 0;
  }
  return pages_ - taken;
}

}  // namespace termfs::metadata

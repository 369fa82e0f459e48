// SPDX-License-Identifier: Apache-2.0
#include "metadata/group_bitmap.h"

#include <algorithm>
#include <bit>

#include "metadata/coding.h"

namespace termfs::metadata {

namespace {
constexpr uint8_t kVersion = 1;
}

Result<GroupBitmap> GroupBitmap::Decode(uint32_t pages, std::string_view bytes) {
  Decoder decoder(bytes);
  GroupBitmap bitmap(pages);
  const uint8_t version = decoder.U8();
  for (uint64_t& word : bitmap.words_) {
    word = decoder.U64();
  }
  if (version != kVersion || !decoder.Finished()) {
    return Status::Error(EIO, "allocation group: damaged record, run termfs fsck");
  }
  return bitmap;
}

std::string GroupBitmap::Encode() const {
  Encoder encoder(kVersion);
  for (const uint64_t word : words_) {
    encoder.U64(word);
  }
  return encoder.Take();
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

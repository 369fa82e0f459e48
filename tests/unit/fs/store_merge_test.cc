// SPDX-License-Identifier: Apache-2.0
#include "fs/client/store_merge.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace termfs::fs::client {
namespace {

using Pages = StoreMerge::Pages;

constexpr uint64_t kPages = 4;  // of a Kernel
const auto kSoon = [] { return std::chrono::steady_clock::now() + std::chrono::seconds(10); };

std::vector<std::byte> Filled(char with) { return std::vector<std::byte>(kPageSize, static_cast<std::byte>(with)); }

std::string Text(const std::vector<StoreMerge::Piece>& pieces) {
  std::string text;
  for (const auto& piece : pieces) {
    text += std::to_string(piece.offset) + ":";
    for (const std::byte byte : piece.bytes) {
      text += static_cast<char>(byte);
    }
    text += " ";
  }
  return text;
}

// A write-back of `page`, which the kernel got full of `base`, with `stored` at `at`.
std::string WrittenBack(StoreMerge& merge, uint64_t page, char base, uint64_t at, std::string_view stored) {
  auto bytes = Filled(base);
  for (size_t i = 0; i < stored.size(); ++i) {
    bytes[at + i] = static_cast<std::byte>(stored[i]);
  }
  StoreMerge::WriteBack back;
  const auto pieces = back.Begin(merge, page << kPageBits, bytes, kSoon());
  EXPECT_TRUE(pieces.ok());
  return Text(*pieces);
}

}  // namespace

TEST(StoreMerge, WriteBack_WithNoChangeUnderWay_IsWhole) {
  StoreMerge merge;
  merge.Reading(0, kPageSize);
  merge.HasRead(0, kPageSize, Filled('o'));
  const auto bytes = Filled('s');
  StoreMerge::WriteBack back;
  const auto pieces = back.Begin(merge, 0, bytes, kSoon());
  ASSERT_TRUE(pieces.ok());
  ASSERT_EQ(pieces->size(), 1U);
  EXPECT_EQ((*pieces)[0].bytes.size(), kPageSize);
}

TEST(StoreMerge, WriteBack_OfAPageReadBeforeAChange_IsWhatWasStored) {
  StoreMerge merge;
  merge.Reading(kPageSize, kPageSize);
  merge.HasRead(kPageSize, kPageSize, Filled('o'));
  StoreMerge::Change change;
  const auto unknown = change.Begin(merge, {.first = 1, .end = 2}, kSoon());
  ASSERT_TRUE(unknown.ok());
  ASSERT_EQ(*unknown, std::vector<uint64_t>{1});
  change.SetBase(1, Filled('o'));
  change.Prepared();
  EXPECT_EQ(WrittenBack(merge, 1, 'o', 100, "new"), "4196:new ");
  EXPECT_EQ(WrittenBack(merge, 1, 'o', 100, "new"), "") << "the kernel's page has that as its base now";
  EXPECT_TRUE(change.MayBeStale());
}

TEST(StoreMerge, WriteBack_OfAPageReadDuringAChange_IsWhatWasStored) {
  StoreMerge merge;
  StoreMerge::Change change;
  const auto unknown = change.Begin(merge, {.first = 0, .end = 2}, kSoon());
  ASSERT_TRUE(unknown.ok() && unknown->empty());
  EXPECT_FALSE(change.MayBeStale());
  merge.Reading(0, 2 * kPageSize);
  EXPECT_TRUE(change.MayBeStale()) << "its bytes may be of before the change";
  auto bytes = Filled('a');
  bytes.resize(kPageSize + 4, static_cast<std::byte>('b'));  // the file ends there
  merge.HasRead(0, 2 * kPageSize, bytes);
  EXPECT_EQ(WrittenBack(merge, 0, 'a', 4094, "xy"), "4094:xy ");
  auto tail = std::vector<std::byte>(kPageSize);
  tail[0] = tail[1] = tail[2] = tail[3] = static_cast<std::byte>('b');
  tail[2] = static_cast<std::byte>('c');
  StoreMerge::WriteBack back;
  const auto pieces = back.Begin(merge, kPageSize, tail, kSoon());
  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ(Text(*pieces), "4098:c ") << "zeros behind the end are the base, too";
}

TEST(StoreMerge, WriteBack_OfSeveralPages_JoinsWhatIsWhole) {
  StoreMerge merge;
  merge.Reading(0, 3 * kPageSize);
  StoreMerge::Change change;
  ASSERT_TRUE(change.Begin(merge, {.first = 1, .end = 2}, kSoon()).ok());
  change.SetBase(1, Filled('o'));
  change.Prepared();
  std::vector<std::byte> bytes(3 * kPageSize, static_cast<std::byte>('s'));
  std::fill(bytes.begin() + kPageSize, bytes.begin() + 2 * kPageSize, static_cast<std::byte>('o'));
  bytes[kPageSize] = bytes[2 * kPageSize - 1] = static_cast<std::byte>('t');
  StoreMerge::WriteBack back;
  const auto pieces = back.Begin(merge, 0, bytes, kSoon());
  ASSERT_TRUE(pieces.ok());
  ASSERT_EQ(pieces->size(), 2U);
  EXPECT_EQ((*pieces)[0].bytes.size(), kPageSize + 1);
  EXPECT_EQ((*pieces)[1].offset, 2 * kPageSize - 1);
  EXPECT_EQ((*pieces)[1].bytes.size(), kPageSize + 1);
}

TEST(StoreMerge, Base_OfAPageThatTheKernelReadAgain_IsWhatItGot) {
  StoreMerge merge;
  merge.Reading(0, kPageSize);
  StoreMerge::Change change;
  ASSERT_TRUE(change.Begin(merge, {.first = 0, .end = 1}, kSoon()).ok());
  merge.HasRead(0, kPageSize, Filled('n'));  // by a read that began before
  change.SetBase(0, Filled('o'));
  change.Prepared();
  EXPECT_EQ(WrittenBack(merge, 0, 'n', 7, "o"), "7:o ") << "a store of the value that was there before the change";
}

TEST(StoreMerge, Change_ThatEndsWithItsPagesDropped_LeavesNothing) {
  StoreMerge merge;
  merge.Reading(0, kPageSize);
  {
    StoreMerge::Change change;
    ASSERT_TRUE(change.Begin(merge, {.first = 0, .end = 1}, kSoon()).ok());
    change.SetBase(0, Filled('o'));
    change.Prepared();
    change.End(true);
  }
  EXPECT_EQ(merge.CountRead({.first = 0, .end = 1}), 0U);
  EXPECT_EQ(WrittenBack(merge, 0, 'o', 0, "").size(), 2 + kPageSize + 1);
}

TEST(StoreMerge, Change_WhosePagesWereNotDropped_LeavesTheBaseUntilTheKernelReadsAgain) {
  StoreMerge merge;
  merge.Reading(0, kPageSize);
  StoreMerge::Change change;
  ASSERT_TRUE(change.Begin(merge, {.first = 0, .end = 1}, kSoon()).ok());
  change.SetBase(0, Filled('o'));
  change.Prepared();
  change.End(false);
  EXPECT_EQ(WrittenBack(merge, 0, 'o', 5, "s"), "5:s ");
  merge.Reading(0, kPageSize);
  merge.HasRead(0, kPageSize, Filled('n'));
  EXPECT_EQ(WrittenBack(merge, 0, 'n', 5, "s").size(), 2 + kPageSize + 1);
}

TEST(StoreMerge, Change_BesideAnotherThatHasFoundPages_IsStaleToo) {
  StoreMerge merge;
  merge.Reading(0, kPageSize);
  StoreMerge::Change one;
  ASSERT_EQ(one.Begin(merge, {.first = 0, .end = 1}, kSoon())->size(), 1U);
  one.SetBase(0, Filled('o'));
  one.Prepared();
  StoreMerge::Change other;
  EXPECT_TRUE(other.Begin(merge, {.first = 0, .end = 4}, kSoon())->empty()) << "the base is known";
  EXPECT_TRUE(other.MayBeStale());
  one.End(true);
  EXPECT_EQ(WrittenBack(merge, 0, 'o', 9, "s"), "9:s ") << "the other one still needs it";
}

TEST(StoreMerge, Change_WaitsForWriteBacksThatHaveBegun) {
  StoreMerge merge;
  const auto bytes = Filled('o');
  auto back = std::make_unique<StoreMerge::WriteBack>();
  ASSERT_TRUE(back->Begin(merge, 0, bytes, kSoon()).ok());
  StoreMerge::Change elsewhere;
  EXPECT_TRUE(elsewhere.Begin(merge, {.first = 1, .end = 2}, kSoon()).ok());
  StoreMerge::Change late;
  EXPECT_EQ(late.Begin(merge, {.first = 0, .end = 1}, std::chrono::steady_clock::now()).status().code(), ETIMEDOUT);
  StoreMerge::Change change;
  std::thread writer([&] { back.reset(); });
  EXPECT_TRUE(change.Begin(merge, {.first = 0, .end = 1}, kSoon()).ok());
  writer.join();
}

TEST(StoreMerge, WriteBack_WaitsForAChangeThatReadsTheBase) {
  StoreMerge merge;
  merge.Reading(0, kPageSize);
  StoreMerge::Change change;
  ASSERT_TRUE(change.Begin(merge, {.first = 0, .end = 1}, kSoon()).ok());
  const auto bytes = Filled('o');
  StoreMerge::WriteBack late;
  EXPECT_EQ(late.Begin(merge, 0, bytes, std::chrono::steady_clock::now()).status().code(), ETIMEDOUT);
  std::thread preparing([&] {
    change.SetBase(0, bytes);
    change.Prepared();
  });
  StoreMerge::WriteBack back;
  const auto pieces = back.Begin(merge, 0, bytes, kSoon());
  preparing.join();
  ASSERT_TRUE(pieces.ok());
  EXPECT_TRUE(pieces->empty());
}

TEST(StoreMerge, Forget_AndRemember_AreOfThoseInTheRange) {
  StoreMerge merge;
  merge.Reading(10 << kPageBits, 100 << kPageBits);
  merge.Reading(uint64_t{5000} << kPageBits, kPageSize);
  EXPECT_EQ(merge.CountRead({.first = 0, .end = UINT64_MAX}), 101U);
  const auto forgotten = merge.Forget({.first = 50, .end = UINT64_MAX});
  EXPECT_EQ(forgotten.size(), 61U);
  EXPECT_EQ(merge.CountRead({.first = 0, .end = UINT64_MAX}), 40U);
  merge.Remember(forgotten);
  EXPECT_EQ(merge.CountRead({.first = 0, .end = UINT64_MAX}), 101U);
}

TEST(StoreMerge, PagesOf_EndsWithTheLastByte) {
  EXPECT_EQ(StoreMerge::PagesOf(4095, 2).end, 2U);
  EXPECT_EQ(StoreMerge::PagesOf(4096, 0).end, 1U);
  EXPECT_EQ(StoreMerge::PagesOf(4096, StoreMerge::kToEnd).first, 1U);
  EXPECT_GT(StoreMerge::PagesOf(4096, StoreMerge::kToEnd).end, uint64_t{1} << 50);
}

}  // namespace termfs::fs::client

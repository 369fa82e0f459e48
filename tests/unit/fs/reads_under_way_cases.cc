// SPDX-License-Identifier: Apache-2.0
//
// Many reads under way in one lane, over any volume: each brings what Read brings.
#include <linux/falloc.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/page.h"
#include "base/random.h"
#include "tests/unit/fs/file_cases.h"
#include "tests/unit/fs/lane_of_reads.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

constexpr size_t kPlaces = 16;
constexpr size_t kPlaceBytes = 64 << 10;

}  // namespace

// Resident and absent pages, holes, the end of the file, and other operations of the lane in between.
TEST_P(Files, ReadsUnderWay_BringWhatReadBrings) {
  constexpr size_t kFileBytes = 22 << 20;  // more than fits into memory
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* const file = a.Create("f");
  std::string model(kFileBytes + 777, '\0');
  for (size_t i = 0; i < model.size(); ++i) {
    const bool hole = (i >> 14) % 11 == 3;  // of 16 KiB
    model[i] = hole ? '\0' : static_cast<char>(i * 7 + (i >> 12));
  }
  for (size_t i = 0; i < model.size(); i += 16 << 10) {
    if ((i >> 14) % 11 != 3) {
      ASSERT_TRUE(a.Write(file, i, std::string_view(model).substr(i, 16 << 10)).ok());
    }
  }
  ASSERT_TRUE(a.fs->Sync(*a.lane, file, false).ok());
  LaneOfReads reads(*a.fs, kPlaces, kPlaceBytes);
  OpenFile* const other = a.Create("other");
  Random random(11);
  std::map<uint64_t, std::string> expected;
  size_t most_under_way = 0;
  for (int i = 0; i < 4000; ++i) {
    if (reads.room() == 0) {
      ASSERT_TRUE(reads.Await().ok());
    }
    const uint64_t offset = random.Below(model.size() + 10000);
    const size_t size = 1 + random.Below(i % 8 == 0 ? kPlaceBytes : 3 * kPageSize);
    const uint64_t token = reads.Begin(file, offset, size);
    expected[token] = offset < model.size() ? model.substr(offset, size) : "";
    most_under_way = std::max(most_under_way, reads.under_way());
    if (i % 97 == 0) {
      const std::string text = std::to_string(i);
      ASSERT_TRUE(a.fs->Write(reads.lane(), other, 0, std::as_bytes(std::span(text)), {}).ok());
      const auto back = a.fs->Read(reads.lane(), other, 0, text.size());
      ASSERT_TRUE(back.ok());
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(back->data()), back->size()), text);
    }
    for (const auto& [ended, bytes] : reads.TakeDone()) {
      ASSERT_TRUE(bytes == expected[ended]) << "read " << ended;
      expected.erase(ended);
    }
  }
  reads.AwaitAll();
  for (const auto& [ended, bytes] : reads.TakeDone()) {
    ASSERT_TRUE(bytes == expected[ended]) << "read " << ended;
    expected.erase(ended);
  }
  EXPECT_TRUE(expected.empty());
  if (a.Metric("rpc_reads_total") > 0) {  // there is none in memory
    EXPECT_GT(most_under_way, 4u) << "or it shows nothing";
  }
  a.Close(other);
  a.Close(file);
}

// Each page has a number that grows. What is read was there at some moment between the begin and the end.
TEST_P(Files, ReadsUnderWay_WhileAnotherWrites_AreNeitherTooOldNorTooNew) {
  constexpr uint64_t kPages = 2500;  // more than fit into memory
  constexpr uint64_t kWindow = 16;   // where both are at a time
  const auto volume = Make(uint64_t{16} << 20);
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* const file = a.Create("f");
  OpenFile* const written = b.Open("f");
  std::array<std::atomic<uint64_t>, kPages> begun{};
  std::array<std::atomic<uint64_t>, kPages> ended{};
  std::array<std::atomic<uint64_t>, kPages> punched{};  // by the write of that number, before it
  const auto page_of = [](uint64_t number) {
    std::string page(kPageSize, '\0');
    for (size_t i = 0; i < kPageSize; i += sizeof(number)) {
      std::memcpy(page.data() + i, &number, sizeof(number));
    }
    return page;
  };
  for (uint64_t page = 0; page < kPages; ++page) {
    ASSERT_TRUE(b.Write(written, page << kPageBits, page_of(0)).ok());
  }
  ASSERT_TRUE(b.fs->Sync(*b.lane, written, false).ok());
  std::atomic<uint64_t> window{0};
  std::jthread writer([&](const std::stop_token& stop) {
    Random random(3);
    for (uint64_t number = 1; !stop.stop_requested(); ++number) {
      const uint64_t page = window + random.Below(kWindow);
      begun[page] = number;
      if (number % 7 == 0) {
        punched[page] = number;
        const int punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        EXPECT_TRUE(b.fs->Allocate(*b.lane, written, punch, page << kPageBits, kPageSize).ok());
      }
      EXPECT_TRUE(b.Write(written, page << kPageBits, page_of(number)).ok());
      ended[page] = number;
    }
  });
  LaneOfReads reads(*a.fs, kPlaces, kPageSize);
  Random random(4);
  struct Expected {
    uint64_t page = 0;
    uint64_t least = 0;
  };
  std::map<uint64_t, Expected> expected;
  for (int i = 0; i < 3000 && !HasFatalFailure(); ++i) {
    if (reads.room() == 0) {
      ASSERT_TRUE(reads.Await().ok());
    }
    if (i % 64 == 0) {
      window = random.Below(kPages - kWindow);
    }
    const uint64_t page = window + random.Below(kWindow);
    const uint64_t least = ended[page];
    expected[reads.Begin(file, page << kPageBits, kPageSize)] = {.page = page, .least = least};
    for (const auto& [token, bytes] : reads.TakeDone()) {
      uint64_t number = 0;
      ASSERT_EQ(bytes.size(), kPageSize);
      std::memcpy(&number, bytes.data(), sizeof(number));
      EXPECT_TRUE(bytes == page_of(number)) << "of two versions";
      const auto& [of, at_least] = expected[token];
      const bool hole = number == 0 && punched[of] > at_least;
      EXPECT_TRUE(number >= at_least || hole) << number << " of page " << of << ", which had " << at_least;
      EXPECT_LE(number, begun[of].load());
    }
  }
  writer.request_stop();
  writer.join();
  reads.AwaitAll();
  b.Close(written);
  a.Close(file);
}

TEST_P(Files, ReadsUnderWay_OutsideOfThePlaces_AreRefused) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* const file = a.Create("f");
  LaneOfReads reads(*a.fs, 1, kPageSize);
  const auto begin = [&](client::Lane& lane, size_t size, size_t place) {
    return a.fs->BeginRead(lane, {.file = file, .offset = 0, .size = size, .place = place, .token = 0}).status().code();
  };
  EXPECT_EQ(begin(reads.lane(), kPageSize, 0), 0);
  EXPECT_EQ(begin(reads.lane(), kPageSize + 1, 0), EINVAL);
  EXPECT_EQ(begin(reads.lane(), kPageSize, 1), EINVAL);
  EXPECT_EQ(begin(reads.lane(), 1, kPageSize), EINVAL);
  EXPECT_EQ(begin(reads.lane(), 1, SIZE_MAX), EINVAL);
  EXPECT_EQ(begin(*a.lane, 1, 0), EINVAL) << "a lane without places";
  a.Close(file);
}

}  // namespace termfs::fs

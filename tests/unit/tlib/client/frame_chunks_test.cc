// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/frame_chunks.h"

#include <gtest/gtest.h>

#include <thread>

#include "tlib/client/page_table_view.h"

namespace termfs::tlib::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

FrameChunks::Keys KeysOf(uint64_t epoch) { return {.chunk_frames = 1024, .epoch = epoch, .chunks = {{5}, {0}, {7}}}; }

TEST(FrameChunks, Keys_NameWhatIsThereAndNothingElse) {
  const FrameChunks::Keys keys = KeysOf(1);
  EXPECT_EQ(keys.Of(0).value, 5U);
  EXPECT_EQ(keys.Of(1023).value, 5U);
  EXPECT_EQ(keys.Of(1024).value, 0U);
  EXPECT_EQ(keys.Of(2048).value, 7U);
  EXPECT_EQ(keys.Of(3072).value, 0U);
  EXPECT_EQ(keys.Of(driver::kWritingFrame - 1).value, 0U);
  EXPECT_EQ(FrameChunks::Keys().Of(0).value, 0U);
}

TEST(FrameChunks, Revoke_ForgetsAllAndTakesNoOlderKeys) {
  FrameChunks chunks;
  chunks.Learn(KeysOf(1));
  uint64_t version = 0;
  EXPECT_EQ(chunks.Get(&version)->Of(0).value, 5U);
  EXPECT_TRUE(chunks.Revoke(3, steady_clock::now()).ok());
  EXPECT_NE(chunks.version(), version);
  EXPECT_EQ(chunks.Get(&version)->Of(0).value, 0U);
  chunks.Learn(KeysOf(2));  // an answer that was on its way
  EXPECT_EQ(chunks.Get(&version)->Of(0).value, 0U);
  chunks.Learn(KeysOf(3));
  EXPECT_EQ(chunks.Get(&version)->Of(0).value, 5U);
}

TEST(FrameChunks, Revoke_WaitsForWhoReads) {
  FrameChunks chunks;
  chunks.Learn(KeysOf(1));
  const auto reader = chunks.AddReader();
  const auto other = chunks.AddReader();
  uint64_t version = 0;
  chunks.Get(&version);
  ASSERT_TRUE(reader->Enter(version));
  EXPECT_EQ(chunks.Revoke(2, steady_clock::now() + milliseconds(5)).code(), ETIMEDOUT);
  EXPECT_FALSE(other->Enter(version)) << "with keys that are revoked";
  std::atomic<bool> left{false};
  std::thread reading([&] {
    std::this_thread::sleep_for(milliseconds(20));
    left = true;
    reader->Leave();
  });
  EXPECT_TRUE(chunks.Revoke(2, steady_clock::now() + seconds(60)).ok());
  EXPECT_TRUE(left);
  reading.join();
  chunks.Get(&version);
  ASSERT_TRUE(reader->Enter(version));
  EXPECT_TRUE(chunks.Revoke(2, steady_clock::now()).ok()) << "by who reads with the keys since then";
  chunks.RemoveReader(reader);
}

TEST(FrameChunks, Asking_OneAtATimeAndNotAtOnceAgain) {
  FrameChunks chunks;
  ASSERT_TRUE(chunks.BeginAsking());
  EXPECT_FALSE(chunks.BeginAsking());
  chunks.EndAsking();
  EXPECT_FALSE(chunks.BeginAsking());
  EXPECT_TRUE(chunks.Revoke(1, steady_clock::now()).ok());  // now there is something new to hear
  EXPECT_TRUE(chunks.BeginAsking());
}

TEST(PageTableView, Learn_KeepsAFrameThatIsKnown) {
  const auto view = PageTableView::Create(2000).value();
  EXPECT_EQ(view->entry(1999), PageTableView::kUnknown);
  const uint64_t frame = driver::MakeEntry(3, 12);
  view->Set(7, frame);
  view->Learn(7, true);
  EXPECT_EQ(view->entry(7), frame);
  view->Learn(7, false);
  EXPECT_FALSE(PageTableView::NamesFrame(view->entry(7)));
  EXPECT_NE(view->entry(7), PageTableView::kUnknown);
  view->Learn(7, true);
  EXPECT_EQ(view->entry(7), PageTableView::kUnknown);
}

// A server whose region grows lets its longer table be READ by another key.
TEST(PageTableView, Cover_TakesTheKeyOfTheLongerTable) {
  const auto view = PageTableView::Create(5000).value();
  EXPECT_EQ(view->blocks(), 0U);
  view->Cover(2000, {7});
  EXPECT_EQ(view->blocks(), 4U);
  EXPECT_EQ(view->CoveredOf(0), PageTableView::kBlockPages);
  EXPECT_EQ(view->CoveredOf(3), 2000 - 3 * PageTableView::kBlockPages);
  uint64_t entries[2] = {};
  EXPECT_EQ(view->ReadOf(10, 2, 4096, entries, {}).rkey, driver::RKey{7});
  EXPECT_EQ(view->ReadOf(10, 2, 4096, entries, {}).remote_offset, 4096 + 10 * sizeof(uint64_t));
  EXPECT_EQ(view->ReadOf(10, 2, 4096, entries, {}).local.length, sizeof(entries));
  view->Cover(1000, {8});
  EXPECT_EQ(view->covered(), 2000U);
  EXPECT_EQ(view->ReadOf(10, 2, 4096, entries, {}).rkey, driver::RKey{7}) << "the other key ends too early";
  view->Cover(3000, {9});
  EXPECT_EQ(view->covered(), 3000U);
  EXPECT_EQ(view->ReadOf(10, 2, 4096, entries, {}).rkey, driver::RKey{9});
}

TEST(PageTableView, NamesFrame_OnlyWhatWasPublished) {
  EXPECT_TRUE(PageTableView::NamesFrame(driver::MakeEntry(1, 0)));
  EXPECT_FALSE(PageTableView::NamesFrame(driver::MakeEntry(0, 0)));
  EXPECT_FALSE(PageTableView::NamesFrame(driver::MakeEntry(1, driver::kMagicFrame)));
  EXPECT_FALSE(PageTableView::NamesFrame(driver::MakeEntry(1, driver::kWritingFrame)));
}

TEST(PageTableView, NextUsed_FindsBlocksInUse) {
  const auto view = PageTableView::Create(uint64_t{1} << 20).value();
  EXPECT_FALSE(view->NextUsed(0).has_value());
  view->Use(3);
  view->Use(64);
  view->Use(2047);
  EXPECT_EQ(view->NextUsed(0), 3U);
  EXPECT_EQ(view->NextUsed(3), 3U);
  EXPECT_EQ(view->NextUsed(4), 64U);
  EXPECT_EQ(view->NextUsed(65), 2047U);
  EXPECT_FALSE(view->NextUsed(2048).has_value());
}

}  // namespace
}  // namespace termfs::tlib::client

// SPDX-License-Identifier: Apache-2.0
//
// What a killed server may leave of a page; tests/crash kills one at every point, and has no client that READs.
#include "tlib/server/tier_recovery.h"

#include <gtest/gtest.h>

#include "tests/unit/tlib/server_storage/task_fixture.h"
#include "tests/unit/tlib/server_storage/test_tier.h"

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kPages = 300;  // several words of the log's
constexpr uint32_t kFrames = 64;

class TierRecoveryTest : public testing::Test {
 protected:
  static PageEntry OnSsd() {
    PageEntry entry;
    entry.set_on_ssd(true);
    return entry;
  }
  static PageEntry InFrame(PageState state, uint32_t frame) {
    PageEntry entry = OnSsd();
    entry.set_state(state);
    entry.set_frame({frame});
    return entry;
  }
  void Leave(uint64_t page, PageEntry entry) { tier_.cells[page].store(entry.bits()); }

  Result<RecoveredTier> Recover() {
    Result<RecoveredTier> found = Status::Error(EIO, "did not run");
    runner_.Run([&] {
      found = RecoverTier({.term = *tier_.term,
                           .log = *tier_.log,
                           .states = tier_.states,
                           .frames = tier_.frames,
                           .supply = tier_.supply,
                           .policy = tier_.policy,
                           .cleaner = tier_.cleaner},
                          kFrames);
    });
    return found;
  }

  TaskRunner runner_{1};
  TestTier tier_{kPages, kFrames};
};

TEST_F(TierRecoveryTest, AbsentPageThatIsStillPublished_IsHidden) {
  for (const uint64_t page : {0, 100, 299}) {
    tier_.term->Publish({page}, {7});
  }
  Leave(100, InFrame(PageState::kClean, 7));
  const auto found = Recover();
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_FALSE(tier_.present_bit({0}));
  EXPECT_TRUE(tier_.present_bit({100}));
  EXPECT_FALSE(tier_.present_bit({299}));
  EXPECT_EQ(found->pages, 1U);
  EXPECT_EQ(tier_.supply.Owner({7}), PageIndex{100});
}

TEST_F(TierRecoveryTest, LoggedPages_AreMarkedAndNoOthers) {
  for (const uint64_t page : {63, 64, 200}) {
    Leave(page, OnSsd());
    tier_.log->Set({page});
  }
  Leave(201, OnSsd());
  tier_.log->Set({128});  // was zeroed, and the log not synced yet
  const auto found = Recover();
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  for (const uint64_t page : {63, 64, 200}) {
    EXPECT_TRUE(tier_.states.Peek({page}).marked()) << page;
  }
  EXPECT_FALSE(tier_.states.Peek({201}).marked());
  EXPECT_FALSE(tier_.log->IsSet({128}));
  EXPECT_EQ(found->unmarked, 1U);
}

TEST_F(TierRecoveryTest, AbsentPageWhoseMarkIsMissing_IsMarkedByTheNextCommit) {
  Leave(201, OnSsd());
  ASSERT_TRUE(Recover().ok());
  runner_.Run([&] { EXPECT_TRUE(tier_.cleaner.Commit().ok()); });
  EXPECT_TRUE(tier_.log->IsSet({201}));
}

TEST_F(TierRecoveryTest, LoadingAndDirtyPages_AreAbsentAndQueued) {
  Leave(5, InFrame(PageState::kLoading, 3));
  Leave(70, InFrame(PageState::kWritingBackRedirtied, 4));
  const auto found = Recover();
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_EQ(tier_.states.Peek({5}).state(), PageState::kAbsent);
  EXPECT_EQ(tier_.states.Peek({70}).state(), PageState::kDirty);
  EXPECT_EQ(found->dirty, 1U);
  EXPECT_FALSE(tier_.frames.taken({3}));
  EXPECT_TRUE(tier_.frames.taken({4}));
}

TEST_F(TierRecoveryTest, TwoPagesInOneFrame_AreRefused) {
  Leave(5, InFrame(PageState::kClean, 3));
  Leave(70, InFrame(PageState::kClean, 3));
  EXPECT_EQ(Recover().status().code(), EUCLEAN);
  EXPECT_FALSE(tier_.present_bit({5}));  // nothing is published before all is known to be sound
}

}  // namespace
}  // namespace termfs::tlib::server

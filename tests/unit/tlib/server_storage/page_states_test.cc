// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/page_states.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>

#include "tests/fakes/fake_nic.h"
#include "tests/unit/tlib/server_storage/task_fixture.h"

namespace termfs::tlib::server {
namespace {

constexpr PageIndex kPage{5};
constexpr driver::FrameIndex kFrame{3};

driver::TermRegionOptions Options() {
  driver::TermRegionOptions options;
  options.max_pages = options.pages = 16;
  return options;
}

class PageStatesTest : public testing::Test {
 protected:
  PageStatesTest() { EXPECT_TRUE(term_.Commit({0}, 16).ok()); }

  void InstallDirty() {
    states_.AcquireExclusive(kPage, PageStates::WriteBack::kMayRun);
    EXPECT_TRUE(states_.Install(kPage, kFrame));
    states_.ReleaseExclusive(kPage);
  }
  void WriteBackAndMark() {
    EXPECT_EQ(states_.BeginWriteBack(kPage), kFrame);
    EXPECT_TRUE(states_.EndWriteBack(kPage, true).mark_pending);
    EXPECT_TRUE(states_.BeginMark(kPage));
    EXPECT_TRUE(states_.EndMark(kPage, true));
  }

  driver::FakeTermRegion term_{Options()};
  std::array<std::atomic<uint64_t>, 16> cells_{};
  PageStates states_{term_, cells_};
  TaskRunner runner_{1};
};

TEST_F(PageStatesTest, TryEvict_UntilMarkedDurably_Refuses) {
  runner_.Run([&] {
    InstallDirty();
    EXPECT_FALSE(states_.TryEvict(kPage, kFrame)) << "dirty";
    EXPECT_EQ(states_.BeginWriteBack(kPage), kFrame);
    EXPECT_FALSE(states_.TryEvict(kPage, kFrame)) << "being written back";
    EXPECT_TRUE(states_.EndWriteBack(kPage, true).mark_pending);
    EXPECT_FALSE(states_.TryEvict(kPage, kFrame)) << "mark pending";
    EXPECT_TRUE(states_.BeginMark(kPage));
    EXPECT_FALSE(states_.TryEvict(kPage, kFrame)) << "mark committing";
    EXPECT_TRUE(states_.EndMark(kPage, false));
    EXPECT_FALSE(states_.TryEvict(kPage, kFrame)) << "commit failed";
    EXPECT_TRUE(states_.BeginMark(kPage));
    EXPECT_TRUE(states_.EndMark(kPage, true));
    states_.AcquireShared(kPage);
    EXPECT_FALSE(states_.TryEvict(kPage, kFrame)) << "read";
    states_.ReleaseShared(kPage);
    EXPECT_FALSE(states_.TryEvict(kPage, {4})) << "in another frame";
    EXPECT_NE(term_.Published(kPage), nullptr);
    EXPECT_TRUE(states_.TryEvict(kPage, kFrame));
    EXPECT_EQ(term_.Published(kPage), nullptr);
    EXPECT_TRUE(states_.Peek(kPage).on_ssd());
  });
}

TEST_F(PageStatesTest, TryInstall_OnlyIfAbsentAndNotHeldAndChecked) {
  runner_.Run([&] {
    states_.AcquireShared(kPage);
    EXPECT_FALSE(states_.TryInstall(kPage, kFrame, nullptr).done) << "read";
    states_.ReleaseShared(kPage);
    states_.AcquireExclusive(kPage, PageStates::WriteBack::kMayRun);
    EXPECT_FALSE(states_.TryInstall(kPage, kFrame, nullptr).done) << "written";
    states_.ReleaseExclusive(kPage);
    const auto refused = states_.TryInstall(kPage, kFrame, [] { return Status::Error(ESTALE, "moved on"); });
    EXPECT_FALSE(refused.done);
    EXPECT_EQ(refused.checked.code(), ESTALE);
    EXPECT_EQ(states_.Peek(kPage).state(), PageState::kAbsent);
    EXPECT_EQ(states_.dirty(), 0U);

    const auto installed = states_.TryInstall(kPage, kFrame, [] { return Status::Ok(); });
    EXPECT_TRUE(installed.done);
    EXPECT_TRUE(installed.queue);
    EXPECT_EQ(states_.Peek(kPage).state(), PageState::kDirty);
    EXPECT_FALSE(states_.Peek(kPage).held());
    EXPECT_NE(term_.Published(kPage), nullptr);
    EXPECT_FALSE(states_.TryInstall(kPage, {4}, nullptr).done) << "present";
    EXPECT_EQ(states_.Peek(kPage).frame(), kFrame);
  });
}

TEST_F(PageStatesTest, EndWriteBack_Failed_StaysDirtyAndUnmarked) {
  runner_.Run([&] {
    InstallDirty();
    states_.SetUnqueued(kPage);
    EXPECT_TRUE(states_.BeginWriteBack(kPage).has_value());
    const auto end = states_.EndWriteBack(kPage, false);
    EXPECT_TRUE(end.queue);
    EXPECT_FALSE(end.mark_pending);
    EXPECT_EQ(states_.Peek(kPage).state(), PageState::kDirty);
    EXPECT_FALSE(states_.Peek(kPage).on_ssd());
    EXPECT_EQ(states_.dirty(), 1U);
  });
}

TEST_F(PageStatesTest, EndWriteBack_NotesThePendingMarkBeforeAnybodySeesThePageClean) {
  runner_.Run([&] {
    InstallDirty();
    EXPECT_TRUE(states_.BeginWriteBack(kPage).has_value());
    bool noted = false;
    states_.EndWriteBack(kPage, true, [&] {
      noted = true;
      EXPECT_TRUE(states_.Peek(kPage).writing_back());
    });
    EXPECT_TRUE(noted);
    EXPECT_EQ(states_.Peek(kPage).state(), PageState::kClean);
  });
}

TEST_F(PageStatesTest, Drop_WhileCommitting_TakesThePageOutOfTheCommit) {
  runner_.Run([&] {
    InstallDirty();
    EXPECT_TRUE(states_.BeginWriteBack(kPage).has_value());
    states_.EndWriteBack(kPage, true);
    EXPECT_TRUE(states_.BeginMark(kPage));
    states_.AcquireExclusive(kPage, PageStates::WriteBack::kMustEnd);
    EXPECT_EQ(states_.Drop(kPage), kFrame);
    states_.ReleaseExclusive(kPage);
    states_.WhileCommitting(kPage, [] { ADD_FAILURE() << "the page is zero now"; });
    EXPECT_FALSE(states_.EndMark(kPage, true));
    EXPECT_FALSE(states_.Peek(kPage).marked());
    EXPECT_FALSE(states_.Peek(kPage).on_ssd());
  });
}

TEST_F(PageStatesTest, Drop_ThenWrittenAgain_IsNotMarkedByTheOldCommit) {
  runner_.Run([&] {
    InstallDirty();
    EXPECT_TRUE(states_.BeginWriteBack(kPage).has_value());
    states_.EndWriteBack(kPage, true);
    EXPECT_TRUE(states_.BeginMark(kPage));  // a commit that is flushing the device
    states_.AcquireExclusive(kPage, PageStates::WriteBack::kMustEnd);
    states_.Drop(kPage);
    EXPECT_TRUE(states_.MarkOnSsd(kPage));  // new bytes, which that flush may have missed
    states_.ReleaseExclusive(kPage);
    EXPECT_FALSE(states_.EndMark(kPage, true));
    EXPECT_FALSE(states_.Peek(kPage).marked());
    EXPECT_TRUE(states_.Peek(kPage).mark_pending());
  });
}

TEST_F(PageStatesTest, AcquireExclusive_AmongReaders_IsNotStarvedAndExcludesThem) {
  bool writing = false;
  int reads = 0;
  bool written = false;
  std::vector<std::function<void()>> tasks;
  for (int i = 0; i < 4; i++) {
    tasks.push_back([&] {
      while (!written && reads < 1000000) {  // some reader always holds the page
        states_.AcquireShared(kPage);
        EXPECT_FALSE(writing);
        Task::Yield();
        reads++;
        states_.ReleaseShared(kPage);
      }
    });
  }
  tasks.push_back([&] {
    Task::Yield();
    const int reads_before = reads;
    states_.AcquireExclusive(kPage, PageStates::WriteBack::kMayRun);
    EXPECT_LE(reads, reads_before + 4) << "a reader that came later went first";
    writing = true;
    Task::Yield();
    writing = false;
    written = true;
    states_.ReleaseExclusive(kPage);
  });
  runner_.RunAll(std::move(tasks));
  EXPECT_FALSE(states_.Peek(kPage).held());
}

TEST_F(PageStatesTest, BeginLoad_Readers_WaitForItsEnd) {
  int found = 0;
  runner_.RunAll({[&] {
                    EXPECT_TRUE(states_.BeginLoad(kPage, kFrame));
                    EXPECT_FALSE(states_.BeginLoad(kPage, {9}));
                    for (int i = 0; i < 10; i++) {
                      Task::Yield();
                    }
                    EXPECT_EQ(found, 0);
                    states_.EndLoad(kPage, true);
                  },
                  [&] {
                    EXPECT_TRUE(states_.AcquireShared(kPage).present());
                    found = 1;
                    states_.ReleaseShared(kPage);
                  }});
  EXPECT_EQ(found, 1);
  EXPECT_EQ(states_.present(), 1U);
}

TEST_F(PageStatesTest, WriteBackThenRewrite_NeedsNoMarkAgain) {
  runner_.Run([&] {
    InstallDirty();
    WriteBackAndMark();
    states_.AcquireExclusive(kPage, PageStates::WriteBack::kMayRun);
    states_.MarkDirty(kPage);
    states_.ReleaseExclusive(kPage);
    EXPECT_TRUE(states_.BeginWriteBack(kPage).has_value());
    EXPECT_FALSE(states_.EndWriteBack(kPage, true).mark_pending);
  });
}

}  // namespace
}  // namespace termfs::tlib::server

// SPDX-License-Identifier: Apache-2.0
#include "mount/reader_sizes.h"

#include <gtest/gtest.h>

namespace termfs::mount {
namespace {

using Next = ReaderSizes::Next;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kIno = 7;

struct Kernel {
  ReaderSizes sizes;
  ReaderSizes::TimePoint now{seconds(1000)};
  void Notify() {
    ASSERT_EQ(sizes.BeginNotification(kIno, now), now);
    sizes.EndNotification(kIno);
  }
  Next Show(uint64_t size, uint32_t reader = 1) {
    const uint64_t notifications = sizes.notifications(kIno);
    const Next next = sizes.Show(kIno, size, notifications, reader, now);
    if (next == Next::kStore) {
      sizes.Stored(kIno, size, notifications);
    }
    return next;
  }
  void Asks(uint32_t reader = 1) { sizes.Asks(kIno, reader, now); }
};

}  // namespace

TEST(ReaderSizes, Show_OfAnInodeThatWasNotNotified_IsAnswered) {
  Kernel kernel;
  EXPECT_EQ(kernel.Show(100), Next::kAnswer);
}

TEST(ReaderSizes, Show_AfterANotification_IsStoredOnce) {
  Kernel kernel;
  kernel.Notify();
  EXPECT_EQ(kernel.Show(100), Next::kStore);
  EXPECT_EQ(kernel.Show(100), Next::kAnswer);
  EXPECT_EQ(kernel.Show(101), Next::kStore);
  EXPECT_EQ(kernel.sizes.BeginNotification(kIno + 64, kernel.now), kernel.now) << "another inode";
  kernel.now += ReaderSizes::kSettling;
  kernel.Notify();
  EXPECT_EQ(kernel.Show(101), Next::kStore) << "it may have been dropped";
}

TEST(ReaderSizes, AfterRead_TellsWhatTheSizeWas) {
  using Sizes = std::pair<uint64_t, uint64_t>;
  EXPECT_EQ(ReaderSizes::AfterRead(4096, 4096, 4096), (Sizes{8192, ReaderSizes::kUnknown}));
  EXPECT_EQ(ReaderSizes::AfterRead(4096, 4096, 10), (Sizes{4106, 4106}));
  EXPECT_EQ(ReaderSizes::AfterRead(4096, 4096, 0), (Sizes{0, 4096}));
}

TEST(ReaderSizes, MayDiffer_UnlessTheKernelWasSeenToGoByThatSize) {
  Kernel kernel;
  kernel.sizes.LooksAtSizes(true);
  const auto differs = [&](uint64_t least, uint64_t most = ReaderSizes::kUnknown) {
    return kernel.sizes.MayDiffer(kIno, least, most);
  };
  EXPECT_FALSE(differs(10, 10)) << "it takes what a short read says";
  kernel.Notify();
  EXPECT_TRUE(differs(10, 10));
  EXPECT_FALSE(differs(10)) << "it may believe in any size, but in none that is smaller";
  kernel.sizes.Seen(kIno, 10, kernel.sizes.given(kIno));
  EXPECT_FALSE(differs(10, 10));
  EXPECT_TRUE(differs(0, 9));
  EXPECT_TRUE(differs(11, 11));
  EXPECT_TRUE(differs(11));
  const uint64_t given = kernel.sizes.given(kIno);
  EXPECT_EQ(kernel.Show(20), Next::kStore);
  EXPECT_TRUE(differs(10, 10));
  EXPECT_FALSE(differs(20, 20));
  kernel.sizes.Seen(kIno, 10, given);
  EXPECT_TRUE(differs(10, 10)) << "it was looked at before";
  kernel.sizes.NoteGiven(kIno, 30);
  EXPECT_FALSE(differs(30, 30));
  kernel.Notify();
  EXPECT_EQ(kernel.Show(10), Next::kStore);
  kernel.Notify();  // at once: nothing waits for a size that can be seen
}

TEST(ReaderSizes, MayDiffer_BesideAChangeOfItsOwn) {
  Kernel kernel;
  kernel.sizes.LooksAtSizes(true);
  const auto differs = [&](uint64_t size) { return kernel.sizes.MayDiffer(kIno, size, size); };
  kernel.sizes.BeginOwnCut(kIno, kernel.now);
  EXPECT_FALSE(kernel.sizes.Knows(kIno)) << "no reply was dropped";
  kernel.sizes.Seen(kIno, 10, kernel.sizes.given(kIno));
  EXPECT_FALSE(differs(10));
  kernel.sizes.EndOwnCut(kIno, kernel.now);
  EXPECT_TRUE(differs(10)) << "the answer is on its way";
  kernel.sizes.Seen(kIno, 5, kernel.sizes.given(kIno));
  EXPECT_FALSE(differs(5));
  kernel.now += ReaderSizes::kOnTheWay + ReaderSizes::kCutOnTheWay;
  kernel.sizes.Unsure(kIno + 64, kernel.now);
  EXPECT_EQ(kernel.sizes.given(kIno), 0u) << "forgotten";
}

TEST(ReaderSizes, Show_WhileAnotherReaderStores_IsStoredToo) {
  Kernel kernel;
  kernel.Notify();
  const uint64_t notifications = kernel.sizes.notifications(kIno);
  EXPECT_EQ(kernel.sizes.Show(kIno, 100, notifications, 1, kernel.now), Next::kStore);
  EXPECT_EQ(kernel.sizes.Show(kIno, 100, notifications, 2, kernel.now), Next::kStore);
  kernel.sizes.Stored(kIno, 100, notifications);
  kernel.sizes.Stored(kIno, 100, notifications);
  EXPECT_EQ(kernel.sizes.Show(kIno, 100, notifications, 2, kernel.now), Next::kAnswer);
}

TEST(ReaderSizes, Show_OfAnEmptyFile_IsNotStored) {
  Kernel kernel;
  kernel.Notify();
  EXPECT_EQ(kernel.Show(0), Next::kAnswer);
}

TEST(ReaderSizes, Show_AskedBeforeANotification_IsAskedAgain) {
  Kernel kernel;
  kernel.Notify();
  const uint64_t before = kernel.sizes.notifications(kIno);
  EXPECT_EQ(kernel.Show(100), Next::kStore);
  kernel.Asks();
  kernel.Notify();
  EXPECT_EQ(kernel.sizes.Show(kIno, 100, before, 1, kernel.now), Next::kAskAgain);
  EXPECT_EQ(kernel.Show(100), Next::kStore);
}

TEST(ReaderSizes, Show_WhileTheKernelIsBeingNotified_IsAskedAgain) {
  Kernel kernel;
  ASSERT_EQ(kernel.sizes.BeginNotification(kIno, kernel.now), kernel.now);
  EXPECT_EQ(kernel.Show(100), Next::kAskAgain);
  kernel.now += ReaderSizes::kNotifying;
  EXPECT_EQ(kernel.Show(100), Next::kStore) << "it waits for a page, and has heard of it";
  kernel.sizes.EndNotification(kIno);
}

TEST(ReaderSizes, Show_LongAfterTheLastNotification_IsAnswered) {
  Kernel kernel;
  kernel.Notify();
  kernel.now += ReaderSizes::kOnTheWay;
  EXPECT_EQ(kernel.Show(100), Next::kAnswer);
}

TEST(ReaderSizes, Show_AfterAnUnsureAnswer_IsStored) {
  Kernel kernel;
  kernel.sizes.Unsure(kIno, kernel.now);
  EXPECT_EQ(kernel.Show(100), Next::kStore);
}

TEST(ReaderSizes, BeginNotification_AfterTheFirstSize_WaitsForAMoment) {
  Kernel kernel;
  kernel.Notify();
  EXPECT_EQ(kernel.Show(100), Next::kStore);  // the kernel may have believed in more
  EXPECT_EQ(kernel.sizes.BeginNotification(kIno, kernel.now), kernel.now + ReaderSizes::kTakesOver);
  kernel.Asks(2);
  EXPECT_GT(kernel.sizes.BeginNotification(kIno, kernel.now), kernel.now) << "another reader";
  kernel.Asks();
  kernel.Notify();
}

TEST(ReaderSizes, BeginNotification_AfterAGreaterSize_WaitsForNothing) {
  Kernel kernel;
  kernel.Notify();
  kernel.Show(100);
  kernel.now += ReaderSizes::kTakesOver;
  for (uint64_t size = 101; size < 110; ++size) {
    kernel.Notify();
    EXPECT_EQ(kernel.Show(size), Next::kStore);
  }
}

TEST(ReaderSizes, BeginNotification_AfterASmallerSize_WaitsForTheRead) {
  Kernel kernel;
  kernel.Notify();
  kernel.Show(100);
  kernel.Asks();
  kernel.Notify();
  EXPECT_EQ(kernel.Show(50), Next::kStore);
  EXPECT_EQ(kernel.sizes.BeginNotification(kIno, kernel.now), kernel.now + ReaderSizes::kSettling);
  kernel.sizes.HasReadShort(kIno, kernel.now);
  EXPECT_EQ(kernel.sizes.BeginNotification(kIno, kernel.now), kernel.now + ReaderSizes::kTakesOver);
  kernel.now += ReaderSizes::kTakesOver;
  kernel.Notify();
  kernel.Show(50);
  kernel.Notify();  // that is known
}

TEST(ReaderSizes, BeginNotification_WithoutARead_WaitsForABoundedTime) {
  Kernel kernel;
  kernel.Notify();
  kernel.Show(100);
  kernel.Asks();
  kernel.Notify();
  kernel.Show(50);
  kernel.now += ReaderSizes::kSettling;
  kernel.Notify();
  kernel.Show(50);
  kernel.Notify();
}

TEST(ReaderSizes, BeginNotification_AfterASmallerSize_WaitsForEachReader) {
  Kernel kernel;
  kernel.Notify();
  kernel.Show(100, 1);
  kernel.Show(100, 2);
  kernel.Asks(1);
  EXPECT_GT(kernel.sizes.BeginNotification(kIno, kernel.now), kernel.now);
  kernel.Asks(2);
  kernel.Notify();
}

TEST(ReaderSizes, NoteGiven_OfAGreaterSize_IsToBeTakenBack) {
  Kernel kernel;
  kernel.Notify();
  kernel.Show(100);
  kernel.Asks();
  kernel.Notify();
  kernel.sizes.NoteGiven(kIno, 200);
  kernel.Show(100);
  EXPECT_GT(kernel.sizes.BeginNotification(kIno, kernel.now), kernel.now);
}

TEST(ReaderSizes, WhileASizeIsBeingStored_NotificationsWait) {
  Kernel kernel;
  kernel.Notify();
  const uint64_t notifications = kernel.sizes.notifications(kIno);
  ASSERT_EQ(kernel.sizes.Show(kIno, 100, notifications, 1, kernel.now), Next::kStore);
  kernel.Asks();
  EXPECT_GT(kernel.sizes.BeginNotification(kIno, kernel.now), kernel.now);
  kernel.sizes.Stored(kIno, 100, notifications);
  kernel.Notify();
  kernel.sizes.BeginStore(kIno, kernel.now);
  EXPECT_GT(kernel.sizes.BeginNotification(kIno, kernel.now), kernel.now);
  kernel.now += ReaderSizes::kStoring;
  kernel.Notify();  // but not for ever
  kernel.sizes.Stored(kIno, 100, notifications);
}

}  // namespace termfs::mount

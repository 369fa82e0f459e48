// SPDX-License-Identifier: Apache-2.0
#include "base/spin_policy.h"

#include <gtest/gtest.h>

namespace termfs {

using std::chrono::microseconds;

namespace {

constexpr microseconds kShortest{5};
constexpr microseconds kLongest{350};

SpinPolicy After(std::initializer_list<microseconds> pattern) {
  SpinPolicy policy(kLongest);
  for (int i = 0; i < 16; ++i) {
    for (const microseconds wait : pattern) {
      policy.Waited(wait);
    }
  }
  return policy;
}

}  // namespace

TEST(SpinPolicy, PollsForLong_WhereWaitsEndWithinThat) {
  EXPECT_EQ(After({}).length(), kShortest) << "nothing is known yet";
  EXPECT_EQ(After({microseconds(300)}).length(), kLongest) << "large writes, one after the other";
  EXPECT_EQ(After({microseconds(0), microseconds(90)}).length(), kLongest) << "misses, one after the other";
  EXPECT_EQ(After({microseconds(500)}).length(), kShortest) << "2000 a second";
  EXPECT_EQ(After({microseconds(90), microseconds(1900)}).length(), kShortest) << "500 misses a second";
}

TEST(SpinPolicy, PollsForAShortWait_AmongLongOnes) {
  EXPECT_EQ(After({microseconds(15), microseconds(15), microseconds(15), microseconds(10'000)}).length(),
            microseconds(20))
      << "requests that follow one another, then nothing";
  EXPECT_EQ(After({microseconds(30), microseconds(90), microseconds(10'000)}).length(), kShortest)
      << "what is saved by polling is less than what it costs";
}

TEST(SpinPolicy, TwoOtherWaits_ChangeNothing) {
  SpinPolicy policy = After({microseconds(10)});
  policy.Waited(microseconds(5000));
  policy.Waited(microseconds(5000));
  EXPECT_EQ(policy.length(), kLongest);
  policy.Waited(microseconds(5000));
  EXPECT_LT(policy.length(), kLongest);
  policy = After({microseconds(5000)});
  policy.Waited(microseconds(10));
  EXPECT_EQ(policy.length(), kShortest);
}

TEST(SpinPolicy, IsNeverLongerThanItMayBe) {
  SpinPolicy policy(microseconds(10));
  EXPECT_EQ(policy.length(), kShortest);
  for (int i = 0; i < 100; ++i) {
    policy.Waited(microseconds(i % 10));
    EXPECT_LE(policy.length(), microseconds(10));
  }
}

}  // namespace termfs

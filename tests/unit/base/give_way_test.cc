// SPDX-License-Identifier: Apache-2.0
#include "base/give_way.h"

#include <gtest/gtest.h>

namespace termfs {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Of so many wake-ups, those at which it gave way, and was gone for `taken`.
int Given(GiveWay& give_way, int wake_ups, std::chrono::nanoseconds taken) {
  int given = 0;
  for (int i = 0; i < wake_ups; i++) {
    if (give_way.Due()) {
      give_way.Gave(taken);
      given++;
    }
  }
  return given;
}

TEST(GiveWay, AmongThoseWhoMakeSomething_EachTime) {
  GiveWay give_way;
  EXPECT_EQ(Given(give_way, 1000, microseconds(50)), 1000);
}

TEST(GiveWay, BesideAProgramThatComputes_EverMoreSeldom) {
  GiveWay give_way;
  EXPECT_EQ(Given(give_way, 100, milliseconds(3)), 6);  // after 0, 1, 3, 7, 15 and 31 that it left out
  EXPECT_LT(Given(give_way, 100'000, milliseconds(3)), 40);
}

TEST(GiveWay, OnceThatIsGone_EachTimeAgain) {
  GiveWay give_way;
  Given(give_way, 100'000, milliseconds(3));
  Given(give_way, 20'000, microseconds(50));
  EXPECT_EQ(Given(give_way, 1000, microseconds(50)), 1000);
}

}  // namespace
}  // namespace termfs

// SPDX-License-Identifier: Apache-2.0
#include "base/interruption.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace termfs {
namespace {

bool Readable(int fd) {
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&one, 1, 0) == 1;
}

TEST(Interruption, Interrupt_TheRunningOperation) {
  auto interruption = Interruption::Create();
  ASSERT_TRUE(interruption.ok());
  Interruption& i = **interruption;
  i.Begin(7);
  EXPECT_FALSE(i.requested());
  EXPECT_FALSE(Readable(i.fd()));
  const uint32_t word = i.word().load();
  EXPECT_TRUE(i.Interrupt(7));
  EXPECT_NE(i.word().load(), word);
  EXPECT_TRUE(i.requested());
  EXPECT_TRUE(Readable(i.fd()));
  EXPECT_TRUE(i.Interrupt(7)) << "a second time";
  i.Drain();
  EXPECT_TRUE(i.requested()) << "until the operation ends";
  i.End();
  EXPECT_FALSE(i.requested());
}

TEST(Interruption, Interrupt_TooLateOrTooEarly_EndsNothing) {
  auto interruption = Interruption::Create();
  ASSERT_TRUE(interruption.ok());
  Interruption& i = **interruption;
  i.Begin(7);
  i.End();
  EXPECT_FALSE(i.Interrupt(7));
  i.Begin(8);
  EXPECT_FALSE(i.Interrupt(7));
  EXPECT_FALSE(i.Interrupt(9));
  EXPECT_FALSE(i.requested());
}

}  // namespace
}  // namespace termfs

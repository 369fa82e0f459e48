// SPDX-License-Identifier: Apache-2.0
#include "base/start_thread.h"

#include <gtest/gtest.h>

#include "tests/unit/no_threads.h"

namespace termfs {
namespace {

TEST(StartThread, AtALimit_IsAnError_AndWorksAgainAfterIt) {
  bool ran = false;
  {
    const NoThreads none;
    EXPECT_EQ(StartThread([&] { ran = true; }).status().code(), EAGAIN);
  }
  EXPECT_FALSE(ran);
  auto thread = StartThread([&] { ran = true; });
  ASSERT_TRUE(thread.ok()) << thread.status().ToString();
  thread->join();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace termfs

// SPDX-License-Identifier: Apache-2.0
#include "base/futex.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace termfs {
namespace {

using std::chrono::steady_clock;

class FutexTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!FutexWaitsForSeveral()) {
      GTEST_SKIP() << "the kernel cannot sleep on several words";
    }
  }
  std::atomic<uint32_t> one_{1};
  std::atomic<uint32_t> two_{2};
  const steady_clock::time_point never_ = steady_clock::now() + std::chrono::hours(1);
};

TEST_F(FutexTest, WaitForFutexes_AnyWordThatHasChanged_DoesNotSleep) {
  for (const auto& [first, second] : {std::pair(0U, 2U), std::pair(1U, 0U)}) {
    const std::array<FutexWait, 2> words = {FutexWait{.word = &one_, .expected = first, .scope = FutexScope::kHost},
                                            FutexWait{.word = &two_, .expected = second}};
    EXPECT_TRUE(WaitForFutexes(words, never_));
  }
}

TEST_F(FutexTest, WaitForFutexes_EndsAtTheDeadline) {
  const std::array<FutexWait, 2> words = {FutexWait{.word = &one_, .expected = 1, .scope = FutexScope::kHost},
                                          FutexWait{.word = &two_, .expected = 2}};
  const auto deadline = steady_clock::now() + std::chrono::milliseconds(20);
  while (steady_clock::now() < deadline) {  // a signal may end a sleep before
    EXPECT_TRUE(WaitForFutexes(words, deadline));
  }
  EXPECT_TRUE(WaitForFutexes(words, steady_clock::now() - std::chrono::seconds(1))) << "a deadline in the past";
}

TEST_F(FutexTest, WaitForFutexes_UnmappedWord_CannotBeDone) {
  const FutexWait word{.word = nullptr, .expected = 1, .scope = FutexScope::kHost};
  EXPECT_FALSE(WaitForFutexes({&word, 1}, never_));
}

TEST_F(FutexTest, WakeFutex_EndsSleepsOnEitherWord) {
  for (std::atomic<uint32_t>* word : {&one_, &two_}) {
    const FutexScope scope = word == &one_ ? FutexScope::kHost : FutexScope::kProcess;
    const std::array<FutexWait, 2> words = {
        FutexWait{.word = &one_, .expected = one_.load(), .scope = FutexScope::kHost},
        FutexWait{.word = &two_, .expected = two_.load()}};
    const uint32_t before = word->load();
    std::jthread sleeper([&] {
      while (word->load() == before && steady_clock::now() < never_) {
        EXPECT_TRUE(WaitForFutexes(words, never_));
      }
    });
    word->fetch_add(1);
    WakeFutex(*word, scope);
  }
}

}  // namespace
}  // namespace termfs

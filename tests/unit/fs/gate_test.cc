// SPDX-License-Identifier: Apache-2.0
#include "fs/server/gate.h"

#include <gtest/gtest.h>

#include "tests/fakes/memory_tlib.h"

namespace termfs::fs::server {

using std::chrono::steady_clock;

namespace {

// Runs what a test says as tasks of one worker, step by step.
class GateTest : public testing::Test {
 protected:
  Deadline Late() { return steady_clock::now() + std::chrono::seconds(30); }
  // A task that enters, says so, and leaves when told.
  struct Visitor {
    std::atomic<bool> asked{false}, inside{false}, may_leave{false}, left{false};
  };
  void Visit(Visitor& visitor, GateMode mode) {
    server_.Spawn([this, &visitor, mode] {
      visitor.asked = true;
      ASSERT_TRUE(gate_.Enter(mode, Late(), nullptr).ok());
      visitor.inside = true;
      while (!visitor.may_leave) {
        tlib::server::Task::Yield();
      }
      gate_.Leave(mode);
      visitor.left = true;
    });
    WaitFor(visitor.asked);
    Settle();
  }
  static void WaitFor(const std::atomic<bool>& flag) {
    const auto deadline = steady_clock::now() + std::chrono::seconds(30);
    while (!flag && steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    ASSERT_TRUE(flag);
  }
  // Every task of the worker has run on as far as it can.
  void Settle() {
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(server_.RunInCoroutine([] { return Status::Ok(); }).ok());
    }
  }
  void Leave(Visitor& visitor) {
    visitor.may_leave = true;
    WaitFor(visitor.left);
    Settle();
  }

  MemoryServer server_{1};
  Gate gate_;
};

TEST_F(GateTest, Shared_AreInsideTogether) {
  Visitor a, b;
  Visit(a, GateMode::kShared);
  Visit(b, GateMode::kShared);
  EXPECT_TRUE(a.inside && b.inside);
  Leave(a);
  Leave(b);
}

TEST_F(GateTest, Exclusive_IsAloneAndInTurn) {
  Visitor a, b, c, d;
  Visit(a, GateMode::kShared);
  Visit(b, GateMode::kExclusive);
  Visit(c, GateMode::kShared);
  Visit(d, GateMode::kShared);
  EXPECT_FALSE(b.inside);
  EXPECT_FALSE(c.inside) << "it must not overtake";
  Leave(a);
  EXPECT_TRUE(b.inside);
  EXPECT_FALSE(c.inside);
  Leave(b);
  EXPECT_TRUE(c.inside && d.inside);
  EXPECT_FALSE(gate_.TryEnter(GateMode::kExclusive));
  Leave(c);
  Leave(d);
  EXPECT_TRUE(gate_.TryEnter(GateMode::kExclusive));
  EXPECT_FALSE(gate_.TryEnter(GateMode::kShared));
  gate_.Leave(GateMode::kExclusive);
}

TEST_F(GateTest, Enter_GivesUpAtDeadlineAndWhenCancelled) {
  Visitor a, c;
  Visit(a, GateMode::kShared);
  std::atomic<bool> cancelled{true};
  EXPECT_EQ(server_.RunInCoroutine([&] { return gate_.Enter(GateMode::kExclusive, Late(), &cancelled); }).code(),
            ECANCELED);
  EXPECT_EQ(
      server_.RunInCoroutine([&] { return gate_.Enter(GateMode::kExclusive, steady_clock::now(), nullptr); }).code(),
      ETIMEDOUT);
  Visit(c, GateMode::kShared);
  EXPECT_TRUE(c.inside) << "who gave up blocks nobody";
  Leave(a);
  Leave(c);
}

}  // namespace

}  // namespace termfs::fs::server

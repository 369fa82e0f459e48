// SPDX-License-Identifier: Apache-2.0
#include "base/event_loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <thread>
#include <vector>

namespace termfs {
namespace {

struct SocketPair {
  UniqueFd here;
  UniqueFd there;
  SocketPair() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    here.Reset(fds[0]);
    there.Reset(fds[1]);
  }
};

void Send(const UniqueFd& fd) { ASSERT_EQ(write(fd.get(), "x", 1), 1); }

void Drain(const UniqueFd& fd) {
  char bytes[64];
  ASSERT_GT(read(fd.get(), bytes, sizeof(bytes)), 0);
}

class EventLoopTest : public ::testing::Test {
 protected:
  EventLoopTest() : loop_(std::move(EventLoop::Create()).value()) {}
  std::unique_ptr<EventLoop> loop_;
};

TEST_F(EventLoopTest, Post_RunsInOrderOnTheLoopsThread) {
  std::vector<int> seen;
  const auto self = std::this_thread::get_id();
  std::jthread other([&] {
    for (int i = 0; i < 1000; i++) {
      loop_->Post([&seen, i, self] {
        EXPECT_EQ(std::this_thread::get_id(), self);
        seen.push_back(i);
      });
    }
    loop_->Stop();
  });
  loop_->Run();
  ASSERT_EQ(seen.size(), 1000U);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST_F(EventLoopTest, Post_BeforeTheLoopEndsIsRun) {
  bool ran = false;
  loop_->Post([&] {
    loop_->Stop();
    loop_->Post([&] { ran = true; });
  });
  loop_->Run();
  EXPECT_TRUE(ran);
}

TEST_F(EventLoopTest, Add_CallsWithPendingEvents) {
  SocketPair pair;
  uint32_t got = 0;
  ASSERT_TRUE(loop_
                  ->Add(pair.here.get(), EPOLLIN,
                        [&](uint32_t events) {
                          got = events;
                          Drain(pair.here);
                          loop_->Stop();
                        })
                  .ok());
  Send(pair.there);
  loop_->Run();
  EXPECT_EQ(got, static_cast<uint32_t>(EPOLLIN));
}

TEST_F(EventLoopTest, Add_ReportsTheOtherSidesEnd) {
  SocketPair pair;
  uint32_t got = 0;
  ASSERT_TRUE(loop_
                  ->Add(pair.here.get(), EPOLLRDHUP,
                        [&](uint32_t events) {
                          got = events;
                          loop_->Stop();
                        })
                  .ok());
  pair.there.Reset(-1);
  loop_->Run();
  EXPECT_TRUE((got & EPOLLHUP) != 0 && (got & EPOLLRDHUP) != 0) << got;
}

TEST_F(EventLoopTest, Add_TwiceOrOfNothingFails) {
  SocketPair pair;
  int calls = 0;
  ASSERT_TRUE(loop_->Add(pair.here.get(), EPOLLOUT, [&](uint32_t) { calls++; }).ok());
  EXPECT_EQ(loop_->Add(pair.here.get(), EPOLLOUT, [&](uint32_t) { calls += 100; }).code(), EEXIST);
  EXPECT_EQ(loop_->Add(-1, EPOLLIN, [](uint32_t) {}).code(), EBADF);
  loop_->Stop();
  loop_->Run();
  EXPECT_LE(calls, 1) << "the first callback stays the descriptor's";
}

TEST_F(EventLoopTest, Modify_ChangesWhatIsWatched) {
  SocketPair pair;
  uint32_t got = 0;
  ASSERT_TRUE(loop_
                  ->Add(pair.here.get(), EPOLLIN,
                        [&](uint32_t events) {
                          got = events;
                          loop_->Stop();
                        })
                  .ok());
  ASSERT_TRUE(loop_->Modify(pair.here.get(), EPOLLOUT).ok());
  loop_->Run();
  EXPECT_EQ(got, static_cast<uint32_t>(EPOLLOUT));
  EXPECT_EQ(loop_->Modify(pair.there.get(), EPOLLIN).code(), ENOENT);
}

TEST_F(EventLoopTest, Remove_OfItselfInItsCallback) {
  SocketPair pair;
  int calls = 0;
  ASSERT_TRUE(loop_
                  ->Add(pair.here.get(), EPOLLOUT,
                        [&](uint32_t) {
                          loop_->Remove(pair.here.get());
                          calls++;  // the closure must have survived
                          loop_->Post([&] { loop_->Post([&] { loop_->Stop(); }); });
                        })
                  .ok());
  loop_->Run();
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, Remove_DropsAnEventThatIsPending) {
  SocketPair pairs[2];
  int calls = 0;
  for (int i = 0; i < 2; i++) {
    ASSERT_TRUE(loop_
                    ->Add(pairs[i].here.get(), EPOLLOUT,
                          [&, other = pairs[1 - i].here.get()](uint32_t) {
                            calls++;
                            loop_->Remove(other);
                            loop_->Stop();
                          })
                    .ok());
  }
  loop_->Run();  // both are ready in the first batch
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, Add_OfAReusedNumberDoesNotGetTheOldOnesEvents) {
  SocketPair pairs[2];
  SocketPair quiet;
  bool replaced = false;
  int wrong = 0;
  for (int i = 0; i < 2; i++) {
    ASSERT_TRUE(loop_
                    ->Add(pairs[i].here.get(), EPOLLOUT,
                          [&, other = &pairs[1 - i].here](uint32_t) {
                            ASSERT_FALSE(replaced);
                            replaced = true;
                            const int number = other->get();
                            loop_->Remove(number);
                            ASSERT_EQ(dup2(quiet.here.get(), number), number);  // closes the old one
                            ASSERT_TRUE(loop_->Add(number, EPOLLIN, [&](uint32_t) { wrong++; }).ok());
                            loop_->Remove(pairs[0].here.get() == number ? pairs[1].here.get() : pairs[0].here.get());
                            loop_->Stop();
                          })
                    .ok());
  }
  loop_->Run();
  EXPECT_TRUE(replaced);
  EXPECT_EQ(wrong, 0) << "nothing was ever sent to the new descriptor";
}

TEST_F(EventLoopTest, Every_Ticks) {
  int ticks = 0;
  loop_->Every(std::chrono::milliseconds(1), [&] {
    if (++ticks == 3) {
      loop_->Stop();
    }
  });
  loop_->Run();
  EXPECT_GE(ticks, 3);
}

TEST_F(EventLoopTest, Every_TicksWhileDescriptorsKeepItBusy) {
  SocketPair pair;
  uint64_t calls = 0;
  int ticks = 0;
  ASSERT_TRUE(loop_->Add(pair.here.get(), EPOLLOUT, [&](uint32_t) { calls++; }).ok());  // always ready
  loop_->Every(std::chrono::milliseconds(1), [&] {
    if (++ticks == 3) {
      loop_->Stop();
    }
  });
  loop_->Run();
  EXPECT_GE(ticks, 3);
  EXPECT_GT(calls, 0U);
}

}  // namespace
}  // namespace termfs

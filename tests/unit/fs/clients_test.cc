// SPDX-License-Identifier: Apache-2.0
//
// What is kept of a client that is away, and for how long one that has arrived again may take to say what it had.
#include "fs/server/clients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/metadata/test_volume.h"

namespace termfs::fs::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ElementsAre;
using testing::IsEmpty;
using tlib::server::SessionEnd;
using tlib::server::SessionInfo;

constexpr uint64_t kReturning = 7;
constexpr uint32_t kPatience = 1;  // seconds
constexpr milliseconds kNothing{0};

class ClientsTest : public metadata::VolumeTest {
 protected:
  SessionInfo Session(uint64_t id) {
    SessionInfo info;
    info.id.value = id;
    info.client = kReturning;
    info.reconnect_seconds = kPatience;
    return info;
  }

  // It had session 1, lost it, and has session 2.
  void ArriveAgain() {
    ASSERT_TRUE(clients_.Arrived(Session(1)).ok());
    ASSERT_TRUE(End(1, SessionEnd::How::kLost).back);
    Return(2);
  }
  Clients::Expected End(uint64_t session, SessionEnd::How how) {
    return clients_.Ended(kReturning, session, {.how = how}, [](bool) {});
  }
  void Return(uint64_t session) { Return(clients_, session); }
  void Return(Clients& clients, uint64_t session) {
    const auto standing = clients.Arrived(Session(session));
    ASSERT_TRUE(standing.ok()) << standing.status().ToString();
    ASSERT_EQ(*standing, Clients::Standing::kReturned);
  }

  // The sessions that are to be expelled now.
  std::vector<uint64_t> Silent() {
    std::vector<uint64_t> sessions;
    clients_.Expire([](uint64_t) {}, [&sessions](uint64_t session) { sessions.push_back(session); });
    return sessions;
  }

  Clients clients_{ns(), /*longest_grant=*/kNothing, /*least_to_resume=*/kNothing};
};

TEST_F(ClientsTest, Silent_IsExpelledAndForgotten) {
  ArriveAgain();
  EXPECT_THAT(Silent(), IsEmpty());
  std::this_thread::sleep_for(std::chrono::seconds(kPatience));
  EXPECT_THAT(Silent(), ElementsAre(2));
  EXPECT_FALSE(End(2, SessionEnd::How::kExpelled).back);
  EXPECT_FALSE(clients_.AnyExpected());
}

TEST_F(ClientsTest, Resuming_GivesTimeAsLongAsItGoesOn) {
  ArriveAgain();
  const auto end = steady_clock::now() + 2 * std::chrono::seconds(kPatience);
  auto last = steady_clock::now();
  while (steady_clock::now() < end) {
    clients_.Resuming(kReturning);
    const std::vector<uint64_t> silent = Silent();
    if (steady_clock::now() - last < std::chrono::seconds(kPatience)) {  // unless this thread did not run for so long
      ASSERT_THAT(silent, IsEmpty());
    }
    last = steady_clock::now();
    std::this_thread::sleep_for(milliseconds(20));
  }
  std::this_thread::sleep_for(std::chrono::seconds(kPatience));
  EXPECT_THAT(Silent(), ElementsAre(2));
}

TEST_F(ClientsTest, Resumed_StaysThoughItSaysNothing) {
  ArriveAgain();
  clients_.Resumed(kReturning);
  std::this_thread::sleep_for(std::chrono::seconds(kPatience));
  EXPECT_THAT(Silent(), IsEmpty());
}

// Somebody else may have had its locks since, whatever becomes of the session in which it hears of that.
TEST_F(ClientsTest, Expelled_IsKeptNothingUntilItHasResumed) {
  ASSERT_TRUE(clients_.Arrived(Session(1)).ok());
  EXPECT_FALSE(End(1, SessionEnd::How::kExpelled).keeps_files);
  Return(2);
  EXPECT_FALSE(clients_.WasKept(kReturning));
  EXPECT_FALSE(End(2, SessionEnd::How::kLost).keeps_files);
  Return(3);
  EXPECT_FALSE(clients_.WasKept(kReturning));
  clients_.NoteResumed(kReturning);
  clients_.Resumed(kReturning);
  EXPECT_TRUE(End(3, SessionEnd::How::kLost).keeps_files);
  Return(4);
  EXPECT_TRUE(End(4, SessionEnd::How::kLost).keeps_files) << "nobody else has had its locks";
  Return(5);
  EXPECT_TRUE(clients_.WasKept(kReturning));
}

TEST_F(ClientsTest, Expelled_IsKeptNothingByALaterStart) {
  ASSERT_TRUE(clients_.Arrived(Session(1)).ok());
  ASSERT_TRUE(clients_.NoteCaches(kReturning).ok());
  EXPECT_TRUE(End(1, SessionEnd::How::kExpelled).back);
  {
    Clients later(ns(), kNothing, kNothing);
    ASSERT_TRUE(later.Load().ok());
    EXPECT_FALSE(later.AnyLocks()) << "nobody waits for what it does not have";
    EXPECT_FALSE(later.AnyExpected());
    Return(later, 2);
    EXPECT_FALSE(later.WasKept(kReturning));
    later.NoteResumed(kReturning);
    later.Resumed(kReturning);
  }
  Clients again(ns(), kNothing, kNothing);
  ASSERT_TRUE(again.Load().ok());
  EXPECT_TRUE(again.AnyLocks());
  Return(again, 3);
  EXPECT_TRUE(again.WasKept(kReturning));
}

TEST_F(ClientsTest, Ended_TheClientComesBackOnlyAfterItsLocksWereSeenTo) {
  using How = SessionEnd::How;
  uint64_t session = 1;
  for (const How how : {How::kExpelled, How::kLost, How::kGoodbye}) {
    ASSERT_TRUE(clients_.Arrived(Session(session)).ok());
    clients_.NoteResumed(kReturning);
    clients_.Resumed(kReturning);
    int calls = 0;
    clients_.Ended(kReturning, session, {.how = how}, [&](bool keeps) {
      ++calls;
      EXPECT_EQ(keeps, how == How::kLost);
      EXPECT_EQ(clients_.Arrived(Session(session + 1)).status().code(), EBUSY);
      Clients later(ns(), kNothing, kNothing);
      ASSERT_TRUE(later.Load().ok());
      EXPECT_EQ(later.AnyLocks(), keeps) << "if the server dies now";
    });
    EXPECT_EQ(calls, 1);
    ++session;
  }
}

TEST_F(ClientsTest, Expire_ItsLocksEndWhenNoLaterStartExpectsIt) {
  ASSERT_TRUE(clients_.Arrived(Session(1)).ok());
  ASSERT_TRUE(End(1, SessionEnd::How::kLost).back);
  std::this_thread::sleep_for(std::chrono::seconds(kPatience));
  int calls = 0;
  clients_.Expire(
      [&](uint64_t client) {
        ++calls;
        EXPECT_EQ(client, kReturning);
        EXPECT_EQ(clients_.Arrived(Session(2)).status().code(), EBUSY);
        Clients later(ns(), kNothing, kNothing);
        ASSERT_TRUE(later.Load().ok());
        EXPECT_FALSE(later.AnyLocks());
      },
      [](uint64_t) {});
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace termfs::fs::server

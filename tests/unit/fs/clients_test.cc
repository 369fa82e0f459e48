// SPDX-License-Identifier: Apache-2.0
//
// For how long a client that has arrived again may take to say what it had.
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

constexpr uint64_t kClient = 7;
constexpr uint32_t kPatience = 1;  // seconds
constexpr milliseconds kNothing{0};

class ClientsTest : public metadata::VolumeTest {
 protected:
  SessionInfo Session(uint64_t id) {
    SessionInfo info;
    info.id.value = id;
    info.client = kClient;
    info.reconnect_seconds = kPatience;
    return info;
  }

  // It had session 1, lost it, and has session 2.
  void ArriveAgain() {
    ASSERT_TRUE(clients_.Arrived(Session(1)).ok());
    ASSERT_TRUE(clients_.Ended(kClient, 1, {.how = SessionEnd::How::kLost}).back);
    const auto standing = clients_.Arrived(Session(2));
    ASSERT_TRUE(standing.ok());
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
  EXPECT_FALSE(clients_.Ended(kClient, 2, {.how = SessionEnd::How::kExpelled}).back);
  EXPECT_FALSE(clients_.AnyExpected());
}

TEST_F(ClientsTest, Resuming_GivesTimeAsLongAsItGoesOn) {
  ArriveAgain();
  const auto end = steady_clock::now() + 2 * std::chrono::seconds(kPatience);
  auto last = steady_clock::now();
  while (steady_clock::now() < end) {
    clients_.Resuming(kClient);
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
  clients_.Resumed(kClient);
  std::this_thread::sleep_for(std::chrono::seconds(kPatience));
  EXPECT_THAT(Silent(), IsEmpty());
}

}  // namespace
}  // namespace termfs::fs::server

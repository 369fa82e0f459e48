// SPDX-License-Identifier: Apache-2.0
#include "mount/connection.h"

#include <gtest/gtest.h>

namespace termfs::mount {

namespace {

std::string Json(const Connection& connection) {
  JsonWriter json;
  json.BeginObject();
  AddMember(json, connection);
  json.EndObject();
  return json.text();
}

}  // namespace

TEST(Connection, Connected) {
  const Connection connection =
      ConnectionOf({{"link_up", 1}, {"link_given_up", 0}, {"link_down_seconds", 0}, {"link_reconnections_total", 1}});
  EXPECT_EQ(ForPeople(connection), "connected, 1 reconnection");
  EXPECT_EQ(InAWord(connection), "up");
  EXPECT_EQ(Json(connection), R"({"connection":{"state":"connected","seconds":0,"reconnections":1}})");
}

TEST(Connection, Reconnecting) {
  const Connection connection =
      ConnectionOf({{"link_up", 0}, {"link_given_up", 0}, {"link_down_seconds", 5}, {"link_reconnections_total", 2}});
  EXPECT_EQ(ForPeople(connection), "reconnecting for 5 s, 2 reconnections");
  EXPECT_EQ(InAWord(connection), "down:5s");
  EXPECT_EQ(Json(connection), R"({"connection":{"state":"reconnecting","seconds":5,"reconnections":2}})");
}

TEST(Connection, GivenUp) {
  const Connection connection =
      ConnectionOf({{"link_up", 0}, {"link_given_up", 1}, {"link_down_seconds", 80}, {"link_reconnections_total", 0}});
  EXPECT_EQ(ForPeople(connection), "given up, without the server for 80 s, 0 reconnections");
  EXPECT_EQ(InAWord(connection), "given-up:80s");
  EXPECT_EQ(Json(connection), R"({"connection":{"state":"given up","seconds":80,"reconnections":0}})");
}

// A file system in memory has no link and no server to lose.
TEST(Connection, WithoutALink_IsConnected) { EXPECT_EQ(InAWord(ConnectionOf({})), "up"); }

}  // namespace termfs::mount

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

TEST(Connection, StatesAndHowTheyAreSaid) {
  const struct {
    uint64_t up, given_up, seconds, reconnections;
    const char* people;
    const char* word;
    const char* json;
  } rows[] = {
      {1, 0, 0, 1, "connected, 1 reconnection", "up", R"("connected","seconds":0,"reconnections":1)"},
      {0, 0, 5, 2, "reconnecting for 5 s, 2 reconnections", "down:5s",
       R"("reconnecting","seconds":5,"reconnections":2)"},
      {0, 1, 80, 0, "given up, without the server for 80 s, 0 reconnections", "given-up:80s",
       R"("given up","seconds":80,"reconnections":0)"},
  };
  for (const auto& row : rows) {
    const Connection connection = ConnectionOf({{"link_up", row.up},
                                                {"link_given_up", row.given_up},
                                                {"link_down_seconds", row.seconds},
                                                {"link_reconnections_total", row.reconnections}});
    EXPECT_EQ(ForPeople(connection), row.people);
    EXPECT_EQ(InAWord(connection), row.word);
    EXPECT_EQ(Json(connection), std::string(R"({"connection":{"state":)") + row.json + "}}");
  }
}

// A file system in memory has no link and no server to lose.
TEST(Connection, WithoutALink_IsConnected) { EXPECT_EQ(InAWord(ConnectionOf({})), "up"); }

}  // namespace termfs::mount

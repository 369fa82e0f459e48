// SPDX-License-Identifier: Apache-2.0
#include "mount/connection.h"

#include <fmt/format.h>

namespace termfs::mount {

using State = Connection::State;

Connection ConnectionOf(const std::map<std::string, uint64_t>& metrics) {
  const auto value = [&metrics](const char* name) {
    const auto found = metrics.find(name);
    return found == metrics.end() ? 0 : found->second;
  };
  Connection connection;
  if (metrics.contains("link_up") && value("link_up") == 0) {
    connection.state = value("link_given_up") != 0 ? State::kGivenUp : State::kReconnecting;
    connection.seconds = value("link_down_seconds");
  }
  connection.reconnections = value("link_reconnections_total");
  return connection;
}

std::string ForPeople(const Connection& connection) {
  std::string text = "connected";
  if (connection.state == State::kReconnecting) {
    text = fmt::format("reconnecting for {} s", connection.seconds);
  } else if (connection.state == State::kGivenUp) {
    text = fmt::format("given up, without the server for {} s", connection.seconds);
  }
  return text + fmt::format(", {} reconnection{}", connection.reconnections, connection.reconnections == 1 ? "" : "s");
}

std::string InAWord(const Connection& connection) {
  if (connection.state == State::kConnected) {
    return "up";
  }
  return fmt::format("{}:{}s", connection.state == State::kGivenUp ? "given-up" : "down", connection.seconds);
}

void AddMember(JsonWriter& json, const Connection& connection) {
  const char* const state = connection.state == State::kConnected      ? "connected"
                            : connection.state == State::kReconnecting ? "reconnecting"
                                                                       : "given up";
  json.Key("connection")
      .BeginObject()
      .Member("state", state)
      .Member("seconds", connection.seconds)
      .Member("reconnections", connection.reconnections)
      .EndObject();
}

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// Whether a mount has its server, as it says of itself (fs/client/server_link.h), for people and for programs.
#pragma once

#include <cstdint>
#include <string>

#include "mount/json.h"
#include "mount/mount_point.h"

namespace termfs::mount {

struct Connection {
  enum class State : uint8_t {
    kConnected,
    kReconnecting,  // programs wait
    kGivenUp,       // programs get EIO; the server is still looked for
  };
  State state = State::kConnected;
  uint64_t seconds = 0;  // since the server was lost
  uint64_t reconnections = 0;
};

Connection ConnectionOf(const std::map<std::string, uint64_t>& metrics);
// "connected, 2 reconnections", "reconnecting for 5 s, ...", "given up, without the server for 80 s, ...".
std::string ForPeople(const Connection& connection);
// In one word: "up", "down:5s", "given-up:80s".
std::string InAWord(const Connection& connection);
// The member "connection" of the object: its state ("connected", "reconnecting", "given up"), seconds, reconnections.
void AddMember(JsonWriter& json, const Connection& connection);

}  // namespace termfs::mount

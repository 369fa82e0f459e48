// SPDX-License-Identifier: Apache-2.0
//
// TellClients: what clients have to know before the server goes on: new magic patterns, chunks of frames that go. Who
// does not acknowledge in time is expelled, and gone when this returns.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tlib/server/session_table.h"
#include "tlib/server/worker_set.h"

namespace termfs::tlib::server {

using ExpelClient = std::function<void(SessionId, const std::string& why)>;

struct ClientNotice {
  uint16_t opcode = 0;
  std::span<const std::byte> body;
  std::string unheard;  // why a client that does not acknowledge is expelled
};

// In a task. ETIMEDOUT: a client that was expelled is still not gone.
Status TellClients(WorkerSet& workers, SessionTable& sessions, std::span<const SessionId> clients,
                   const ClientNotice& notice, const ExpelClient& expel);

}  // namespace termfs::tlib::server

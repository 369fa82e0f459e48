// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/pattern_switch.h"

#include <cstring>
#include <utility>

#include "tlib/rpc/messages.h"
#include "tlib/server/tell_clients.h"

namespace termfs::tlib::server {
namespace {

PatternBody ToBody(const PatternSwitch::Known& known) {
  PatternBody body;
  std::memcpy(body.current, known.current.line.data(), sizeof(body.current));
  if (known.former.has_value()) {
    std::memcpy(body.former, known.former->line.data(), sizeof(body.former));
    body.has_former = 1;
  }
  return body;
}

}  // namespace

Status PatternSwitch::Switch(const driver::Pattern& pattern, const ExpelClient& expel) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(switching_, true)) {
      return Status::Error(EBUSY, "the pattern is being changed already");
    }
  }
  Status done = SwitchInTurn(pattern, expel);
  MutexLock lock(mutex_);
  switching_ = false;
  return done;
}

Status PatternSwitch::SwitchInTurn(const driver::Pattern& pattern, const ExpelClient& expel) {
  const driver::Pattern former = known().current;
  // Known first, told then: who says Hello, or asks again after it opened its callback queue pair, learns both here.
  SetKnown({pattern, former});
  Status told = Tell({pattern, former}, expel);
  if (told.ok()) {
    told = region_.term().SetPattern(pattern);
  }
  if (!told.ok()) {
    SetKnown({former, pattern});  // an absent page may read as either
    return told;
  }
  SetKnown({pattern, std::nullopt});
  return Tell({pattern, std::nullopt}, expel);
}

Status PatternSwitch::Tell(const Known& known, const ExpelClient& expel) {
  const PatternBody body = ToBody(known);
  const ClientNotice notice{.opcode = kSetPattern,
                            .body = std::as_bytes(std::span(&body, 1)),
                            .unheard = "it does not acknowledge the new magic pattern"};
  return workers_.Run([&] { return TellClients(workers_, sessions_, sessions_.WithCallbacks(), notice, expel); });
}

}  // namespace termfs::tlib::server

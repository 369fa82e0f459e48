// SPDX-License-Identifier: Apache-2.0
//
// Granting: what the reply to one request grants to its session's kernel. Nothing, when the session has none that
// caches. Make one before anything is read; see grants.h for the order of things.
#pragma once

#include <string_view>

#include "fs/server/grants.h"
#include "fs/server/sessions.h"

namespace termfs::fs::server {

class Granting {
 public:
  Granting(GrantTable& table, const Session& session)
      : table_(table),
        session_(session.id),
        caches_(session.caches.load(std::memory_order_relaxed)),
        changes_(table.changes()) {}

  bool caches() const { return caches_; }
  uint64_t session() const { return session_; }
  bool Entry(uint64_t parent, std::string_view name) {
    return entry_ = caches_ && table_.Add(GrantKey::Entry(parent, name), session_);
  }
  bool Attributes(uint64_t ino) { return attributes_ = caches_ && table_.Add(GrantKey::Attributes(ino), session_); }
  void NoAttributes() { attributes_ = false; }
  void Nothing() { entry_ = attributes_ = false; }
  // Something has changed since this was made, maybe what was read.
  bool Changed() const { return table_.changes() != changes_; }

  bool entry() const { return entry_; }
  bool attributes() const { return attributes_; }

 private:
  GrantTable& table_;
  const uint64_t session_;
  const bool caches_;
  const uint64_t changes_;
  bool entry_ = false;
  bool attributes_ = false;
};

}  // namespace termfs::fs::server

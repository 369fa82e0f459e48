// SPDX-License-Identifier: Apache-2.0
//
// One request under way: the call, who made it, and how it blocks. GateHold: being inside an inode's gate.
#pragma once

#include <optional>
#include <utility>

#include "fs/server/inode_table.h"
#include "fs/server/sessions.h"
#include "metadata/types.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

using Bytes = std::vector<std::byte>;

struct Request {
  tlib::server::Call& call;
  Session& session;
  const metadata::Stamp* stamp = nullptr;      // of a request whose effect must not happen twice
  const metadata::Receipt* receipt = nullptr;  // it has been carried out before, and this is what came of it

  // Runs `work` where it may block, and returns what it returns.
  template <typename Work>
  auto Blocking(Work work) const {
    std::optional<decltype(work())> result;
    call.RunBlocking([&] { result.emplace(work()); });
    return std::move(*result);
  }
};

class GateHold {
 public:
  static Result<GateHold> Enter(Inode& inode, GateMode mode, const Session& session) {
    constexpr std::chrono::seconds kPatience{60};
    RETURN_IF_ERROR(inode.gate.Enter(mode, std::chrono::steady_clock::now() + kPatience, &session.expelled));
    return GateHold(&inode, mode);
  }
  GateHold(GateHold&& other) noexcept : inode_(std::exchange(other.inode_, nullptr)), mode_(other.mode_) {}
  GateHold(const GateHold&) = delete;
  GateHold& operator=(const GateHold&) = delete;
  ~GateHold() { Leave(); }

  GateMode mode() const { return mode_; }

  void Leave() {
    Inode* inode = std::exchange(inode_, nullptr);
    if (inode == nullptr) {
      return;
    }
    if (mode_ == GateMode::kExclusive) {
      MutexLock lock(inode->mutex);
      inode->frozen = false;
    }
    inode->gate.Leave(mode_);
  }

 private:
  GateHold(Inode* inode, GateMode mode) : inode_(inode), mode_(mode) {}
  Inode* inode_;
  GateMode mode_;
};

}  // namespace termfs::fs::server

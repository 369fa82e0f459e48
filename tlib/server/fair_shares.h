// SPDX-License-Identifier: Apache-2.0
//
// FairShares: how much of a pool each of those who use it may hold, so that no client, frozen, slow or hostile, keeps
// the others waiting. With n of them, which hold something or wait, each may have a part of n + 1 of the pool, and what
// is left is for who comes next. See "Shares of a worker" in docs/design_notes.md.
//
// Thread-safety: that of its pool.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace termfs::tlib::server {

class FairShares {
 public:
  // `total` of whatever the pool has; `least`: what one may always have, if it is there.
  FairShares(uint32_t total, uint32_t least) : total_(total), least_(least) {}

  void BeginWait(uint64_t owner) { ++uses_[owner].waiting; }
  void EndWait(uint64_t owner) {
    const auto use = uses_.find(owner);
    --use->second.waiting;
    Forget(use);
  }
  // Counting those that wait. REQUIRES: it waits.
  bool MayTake(uint64_t owner, uint32_t count) const {
    const uint64_t held = uses_.at(owner).held;
    return held + count <= std::max<uint64_t>(least_, total_ / (uses_.size() + 1));
  }
  void Take(uint64_t owner, uint32_t count) { uses_[owner].held += count; }
  void Give(uint64_t owner, uint32_t count) {
    const auto use = uses_.find(owner);
    use->second.held -= count;
    Forget(use);
  }

 private:
  struct Use {
    uint32_t held = 0;
    uint32_t waiting = 0;
  };
  void Forget(std::unordered_map<uint64_t, Use>::iterator use) {
    if (use->second.held == 0 && use->second.waiting == 0) {
      uses_.erase(use);
    }
  }

  const uint32_t total_;
  const uint32_t least_;
  std::unordered_map<uint64_t, Use> uses_;
};

}  // namespace termfs::tlib::server

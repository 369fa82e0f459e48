// SPDX-License-Identifier: Apache-2.0
//
// MovedNames: what the renames of this mount have moved, and where to. A kernel moves the entry that it knows, the
// server the one there was; when another mount has changed the name in between, the kernel's is wrong, and what is
// recalled is the name that it had. See "Leases for what the kernel caches".
//
// Thread-safety: none.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace termfs::mount {

class MovedNames {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Name {
    uint64_t parent = 0;
    std::string name;
    friend bool operator==(const Name&, const Name&) = default;
  };

  // Remembers at most so many renames.
  explicit MovedNames(size_t most) : most_(most) {}

  // In the order of the renames. `until`: the kernel uses nothing of what was moved any more; never earlier than that
  // of the one before.
  void Add(Name from, Name to, bool exchange, Time until);
  // Nothing of what was moved so far is used any more.
  void Clear();
  // Where an entry that the kernel knew by this name may be now, but for that name. None: more was moved than is
  // remembered.
  std::optional<std::vector<Name>> Where(uint64_t parent, std::string_view name, Time now) const;

 private:
  struct Move {
    Name from;
    Name to;
    bool exchange;
    Time until;
  };
  const size_t most_;
  std::deque<Move> moves_;
  Time forgotten_until_{};  // of what is not remembered
};

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
#include "mount/moved_names.h"

#include <algorithm>
#include <utility>

namespace termfs::mount {

void MovedNames::Add(Name from, Name to, bool exchange, Time until) {
  if (moves_.size() >= most_) {
    forgotten_until_ = std::max(forgotten_until_, moves_.front().until);
    moves_.pop_front();
  }
  moves_.push_back({std::move(from), std::move(to), exchange, until});
}

void MovedNames::Clear() {
  moves_.clear();
  forgotten_until_ = {};
}

std::optional<std::vector<MovedNames::Name>> MovedNames::Where(uint64_t parent, std::string_view name, Time now) const {
  if (now < forgotten_until_) {
    return std::nullopt;
  }
  std::vector<Name> names = {{.parent = parent, .name = std::string(name)}};
  const auto reach = [&names](const Name& from, const Name& to) {
    const auto has = [&names](const Name& one) { return std::find(names.begin(), names.end(), one) != names.end(); };
    const bool reached = has(from);
    if (reached && !has(to)) {
      names.push_back(to);
    }
    return reached;
  };
  for (const Move& move : moves_) {
    if (move.until > now && !reach(move.from, move.to) && move.exchange) {
      reach(move.to, move.from);
    }
  }
  names.erase(names.begin());
  return names;
}

}  // namespace termfs::mount

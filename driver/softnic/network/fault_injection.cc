// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/fault_injection.h"

#include <cstdlib>
#include <string>

namespace termfs::driver::softnic {
namespace {

constexpr uint64_t kMostOvertaking = 8;  // packets
constexpr size_t kPast = 512;            // of them

}  // namespace

Result<FaultOptions> ParseFaults(std::string_view text) {
  FaultOptions options;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const size_t equals = one.find('=');
    const std::string_view name = one.substr(0, equals);
    const std::string value(equals == std::string_view::npos ? "" : one.substr(equals + 1));
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    const bool is_seed = name == "seed";
    if (value.empty() || *end != '\0' || number < 0 || (!is_seed && number > 1)) {
      return Status::Error(EINVAL, "network faults: \"" + std::string(one) + "\" is no name=probability");
    }
    if (is_seed) {
      options.seed = static_cast<uint64_t>(number);
    } else if (name == "loss") {
      options.loss = number;
    } else if (name == "duplication") {
      options.duplication = number;
    } else if (name == "reordering") {
      options.reordering = number;
    } else if (name == "corruption") {
      options.corruption = number;
    } else if (name == "replay") {
      options.replay = number;
    } else {
      return Status::Error(EINVAL, "network faults: \"" + std::string(name) +
                                       "\" is none of loss, duplication, reordering, corruption, replay, seed");
    }
  }
  return options;
}

void FaultInjection::Pass(std::span<const std::byte> packet, const Send& send) {
  std::list<Held> leaving;
  {
    MutexLock lock(mutex_);
    for (auto held = held_.begin(); held != held_.end();) {
      const auto next = std::next(held);
      if (--held->packets_left == 0) {
        leaving.splice(leaving.end(), held_, held);
      }
      held = next;
    }
    if (options_.replay > 0) {
      if (past_.size() < kPast) {
        past_.push_back({{packet.begin(), packet.end()}, send, 0, {}});
      } else {
        past_[oldest_++ % kPast] = {{packet.begin(), packet.end()}, send, 0, {}};
      }
      if (random_.Double() < options_.replay) {
        leaving.push_back(past_[random_.Below(past_.size())]);
      }
    }
    if (random_.Double() >= options_.loss) {
      Held one{{packet.begin(), packet.end()}, send, 1 + random_.Below(kMostOvertaking), {}};
      if (random_.Double() < options_.corruption) {
        one.packet[random_.Below(one.packet.size())] ^= static_cast<std::byte>(1U << random_.Below(8));
      }
      if (random_.Double() < options_.duplication) {
        leaving.push_front(one);
      }
      if (random_.Double() < options_.reordering) {
        one.due = std::chrono::steady_clock::now() + options_.hold;
        held_.push_back(std::move(one));
      } else {
        leaving.push_front(std::move(one));
      }
    }
  }
  Emit(leaving);
}

void FaultInjection::Release(TimePoint now) {
  std::list<Held> leaving;
  {
    MutexLock lock(mutex_);
    for (auto held = held_.begin(); held != held_.end();) {
      const auto next = std::next(held);
      if (held->due <= now) {
        leaving.splice(leaving.end(), held_, held);
      }
      held = next;
    }
  }
  Emit(leaving);
}

void FaultInjection::Emit(std::list<Held>& leaving) {
  for (const Held& one : leaving) {
    one.send(one.packet);
  }
}

}  // namespace termfs::driver::softnic

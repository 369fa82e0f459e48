// SPDX-License-Identifier: Apache-2.0
//
// FaultInjection: a network that loses, doubles, delays, reorders, corrupts and replays packets, for tests: what a
// software RNIC sends goes through it, packet by packet. The same seed makes the same decisions.
//
// Thread-safety: any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "base/result.h"

namespace termfs::driver::softnic {

// Probabilities of one packet, 0 to 1.
struct FaultOptions {
  double loss = 0;
  double duplication = 0;
  double reordering = 0;  // it leaves after up to 8 packets that follow it, or after `hold`
  double corruption = 0;  // one bit of it changes
  double replay = 0;      // one of the last 512 packets is sent once more after it
  std::chrono::milliseconds hold{5};
  uint64_t seed = 1;
};

// "loss=0.01,duplication=0.01,reordering=0.02,corruption=0.001,replay=0.01,seed=7", in any order. EINVAL says what is
// wrong.
Result<FaultOptions> ParseFaults(std::string_view text);

class FaultInjection {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Send = std::function<void(std::span<const std::byte> packet)>;

  explicit FaultInjection(const FaultOptions& options) : options_(options), random_(options.seed) {}

  // Calls `send` for what of it, and of packets that were held back, leaves now.
  void Pass(std::span<const std::byte> packet, const Send& send) EXCLUDES(mutex_);
  // What was held back for long enough. Those of any destination are kept together, so `send` is theirs.
  void Release(TimePoint now) EXCLUDES(mutex_);

 private:
  struct Held {
    std::vector<std::byte> packet;
    Send send;
    uint64_t packets_left;
    TimePoint due;
  };
  static void Emit(std::list<Held>& leaving);

  const FaultOptions options_;
  Mutex mutex_;
  Random random_ GUARDED_BY(mutex_);
  std::list<Held> held_ GUARDED_BY(mutex_);
  std::vector<Held> past_ GUARDED_BY(mutex_);
  size_t oldest_ GUARDED_BY(mutex_) = 0;
};

}  // namespace termfs::driver::softnic

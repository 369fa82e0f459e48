// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <ctime>

namespace termfs {
namespace {

Nanoseconds Read(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return std::chrono::seconds(now.tv_sec) + Nanoseconds(now.tv_nsec);
}

class SystemClock final : public Clock {
 public:
  BootTime Now() const override { return {Read(CLOCK_BOOTTIME)}; }
  Nanoseconds RealTime() const override { return Read(CLOCK_REALTIME); }
};

}  // namespace

const Clock& Clock::System() {
  static const SystemClock clock;
  return clock;
}

}  // namespace termfs

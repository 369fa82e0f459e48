// SPDX-License-Identifier: Apache-2.0
//
// Time, as a seam: production code asks a Clock, tests move one by hand (tests/fakes/manual_clock.h).
//
// Thread-safety: all methods may be called from any thread.
#pragma once

#include <chrono>

namespace termfs {

using Nanoseconds = std::chrono::nanoseconds;

// A point on CLOCK_BOOTTIME, which goes on while the machine sleeps; lease arithmetic needs that.
struct BootTime {
  Nanoseconds since_boot{0};
  friend auto operator<=>(const BootTime&, const BootTime&) = default;
  friend BootTime operator+(BootTime t, Nanoseconds d) { return {t.since_boot + d}; }
  friend Nanoseconds operator-(BootTime a, BootTime b) { return a.since_boot - b.since_boot; }
};

class Clock {
 public:
  virtual ~Clock() = default;
  virtual BootTime Now() const = 0;
  // Wall clock, nanoseconds since the epoch: for file times only.
  virtual Nanoseconds RealTime() const = 0;

  // The machine's clocks. Process lifetime.
  static const Clock& System();
};

}  // namespace termfs

// SPDX-License-Identifier: Apache-2.0
#include "base/size.h"

#include <fmt/format.h>

#include <array>

namespace termfs {

std::string ReadableSize(uint64_t bytes) {
  constexpr std::array<const char*, 7> kUnits = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  constexpr uint64_t kShort = 10'000;  // fewer of a unit are read at a glance
  size_t unit = 0;
  uint64_t whole = bytes;
  for (; whole != 0 && whole % 1024 == 0; whole /= 1024) {
    unit++;
  }
  if (whole < (unit == 0 ? 1024 : kShort)) {
    return fmt::format("{} {}", whole, kUnits[unit]);
  }
  auto value = static_cast<double>(bytes);
  for (unit = 0; value >= 1024; value /= 1024) {
    unit++;
  }
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

}  // namespace termfs

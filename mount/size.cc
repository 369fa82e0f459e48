// SPDX-License-Identifier: Apache-2.0
#include "mount/size.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace termfs::mount {
namespace {

constexpr std::string_view kUnits = "KMGTPE";

Status Bad(std::string_view text, std::string_view allowed) {
  return Status::Error(EINVAL, fmt::format("'{}' is not {}", text, allowed));
}

// The power of 1024 that a unit such as "G", "gib" or "" stands for.
Result<int> UnitShift(std::string_view unit) {
  if (unit.empty() || unit == "B" || unit == "b") {
    return 0;
  }
  const char letter = unit.front() >= 'a' ? static_cast<char>(unit.front() - 'a' + 'A') : unit.front();
  const size_t index = kUnits.find(letter);
  const std::string_view rest = unit.substr(1);
  const bool known = rest.empty() || rest == "B" || rest == "b" || rest == "iB" || rest == "ib";
  if (index == std::string_view::npos || !known) {
    return Status::Error(EINVAL, "unit");
  }
  return static_cast<int>(10 * (index + 1));
}

}  // namespace

Result<uint64_t> ParseSize(std::string_view text) {
  constexpr std::string_view kAllowed = "a size such as 4096, 512M, 8G or 1.5T";
  const size_t digits = text.find_first_not_of("0123456789");
  const std::string_view whole_text = text.substr(0, digits);
  std::string_view rest = digits == std::string_view::npos ? std::string_view() : text.substr(digits);
  uint64_t whole = 0;
  const auto parsed = std::from_chars(whole_text.data(), whole_text.data() + whole_text.size(), whole);
  if (whole_text.empty() || parsed.ec != std::errc()) {
    return Bad(text, kAllowed);
  }
  std::string_view fraction;
  if (!rest.empty() && rest.front() == '.') {
    const size_t end = rest.find_first_not_of("0123456789", 1);
    fraction = rest.substr(1, end == std::string_view::npos ? end : end - 1);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end);
    if (fraction.empty() || fraction.size() > 12) {
      return Bad(text, kAllowed);
    }
  }
  if (!rest.empty() && rest.front() == ' ') {
    rest.remove_prefix(1);
  }
  const Result<int> shift = UnitShift(rest);
  if (!shift.ok() || (!fraction.empty() && *shift == 0)) {
    return Bad(text, kAllowed);
  }
  // In 128 bits: 64 of the number and at most 60 of the unit.
  unsigned __int128 bytes = static_cast<unsigned __int128>(whole) << *shift;
  uint64_t numerator = 0;
  uint64_t denominator = 1;
  for (const char digit : fraction) {
    numerator = numerator * 10 + static_cast<uint64_t>(digit - '0');
    denominator *= 10;
  }
  bytes += (static_cast<unsigned __int128>(numerator) << *shift) / denominator;
  if (bytes > static_cast<unsigned __int128>(INT64_MAX)) {
    return Bad(text, "a size below 8E");
  }
  return static_cast<uint64_t>(bytes);
}

Result<double> ParseRatio(std::string_view text) {
  double value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || !std::isfinite(value) ||
      value < 0.01 || value > 1) {
    return Bad(text, "a ratio from 0.01 to 1");
  }
  return value;
}

Result<uint64_t> ParseCount(std::string_view text, uint64_t low, uint64_t high) {
  uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || value < low ||
      value > high) {
    return Bad(text, fmt::format("a number from {} to {}", low, high));
  }
  return value;
}

std::string FormatCount(uint64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string FormatSize(uint64_t bytes) {
  if (bytes < 1024) {
    return fmt::format("{} B", bytes);
  }
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (value /= 1024; value >= 1024; value /= 1024) {
    unit++;
  }
  return fmt::format("{:.{}f} {}iB", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, kUnits[unit]);
}

}  // namespace termfs::mount

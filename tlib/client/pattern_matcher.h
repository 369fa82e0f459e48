// SPDX-License-Identifier: Apache-2.0
//
// PatternMatcher: byte detection. A page part that a READ brought is data only if no aligned 64-byte line of it, nor a
// shorter piece at its ends, equals the magic pattern: a real RNIC may deliver part of a page before and part of it
// after its mapping changed, so one line that looks absent spoils the part. A false match costs one RPC, never a wrong
// byte.
//
// Cost: one comparison of eight bytes per line; the rest of a line is looked at only when those match.
//
// Thread-safety: immutable; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "driver/nic.h"

namespace termfs::tlib::client {

class PatternMatcher {
 public:
  static constexpr uint32_t kLine = 64;

  explicit PatternMatcher(const driver::Pattern& pattern) : line_(pattern.line) {
    std::memcpy(&prefix_, line_.data(), sizeof(prefix_));
  }

  // Whether any line or end piece of [data, data + length) is the pattern's. `in_page`: where in its page the part
  // begins. REQUIRES: length > 0; the part does not leave the page.
  bool Touches(const std::byte* data, uint32_t in_page, uint32_t length) const {
    if (((in_page | length) % kLine) == 0) [[likely]] {
      return AnyLine(data, data + length);
    }
    return TouchesPieces(data, in_page, length);
  }

  // The same for a part that is known to be all data or all pattern: its first line, or piece, tells.
  bool IsPattern(const std::byte* data, uint32_t in_page, uint32_t length) const {
    const uint32_t phase = in_page % kLine;
    if (phase == 0 && length >= kLine) [[likely]] {
      uint64_t word;
      std::memcpy(&word, data, sizeof(word));
      return word == prefix_ && Equals(data, 0, kLine);
    }
    return Equals(data, phase, kLine - phase < length ? kLine - phase : length);
  }

 private:
  // REQUIRES: a whole number of lines.
  bool AnyLine(const std::byte* line, const std::byte* end) const {
    for (; line != end; line += kLine) {
      uint64_t word;
      std::memcpy(&word, line, sizeof(word));
      if (word == prefix_ && Equals(line, 0, kLine)) [[unlikely]] {
        return true;
      }
    }
    return false;
  }
  bool TouchesPieces(const std::byte* data, uint32_t in_page, uint32_t length) const {
    if (const uint32_t phase = in_page % kLine; phase != 0) {
      const uint32_t head = kLine - phase < length ? kLine - phase : length;
      if (Equals(data, phase, head)) {
        return true;
      }
      data += head;
      length -= head;
    }
    const std::byte* const tail = data + size_t{length / kLine} * kLine;
    return AnyLine(data, tail) || (length % kLine != 0 && Equals(tail, 0, length % kLine));
  }
  bool Equals(const std::byte* data, uint32_t phase, uint32_t length) const {
    return std::memcmp(data, line_.data() + phase, length) == 0;
  }

  std::array<std::byte, kLine> line_;
  uint64_t prefix_ = 0;
};

}  // namespace termfs::tlib::client

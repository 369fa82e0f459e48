// SPDX-License-Identifier: Apache-2.0
//
// Big-endian numbers of 1 to 8 bytes, one behind the other, as the headers of wire protocols have them.
//
// Thread-safety: values. REQUIRES: the caller has checked that the bytes are there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace termfs::driver {

class BigEndianWriter {
 public:
  explicit BigEndianWriter(std::byte* to) : to_(to) {}
  void Put(uint64_t value, size_t bytes) {
    for (size_t i = bytes; i-- > 0;) {
      *to_++ = static_cast<std::byte>(value >> (8 * i));
    }
  }

 private:
  std::byte* to_;
};

class BigEndianReader {
 public:
  explicit BigEndianReader(const std::byte* from) : from_(from) {}
  uint64_t Get(size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
      value = value << 8 | std::to_integer<uint64_t>(*from_++);
    }
    return value;
  }
  uint8_t Get8() { return static_cast<uint8_t>(Get(1)); }
  uint16_t Get16() { return static_cast<uint16_t>(Get(2)); }
  uint32_t Get32() { return static_cast<uint32_t>(Get(4)); }
  uint64_t Get64() { return Get(8); }

 private:
  const std::byte* from_;
};

}  // namespace termfs::driver

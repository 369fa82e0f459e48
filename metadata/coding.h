// SPDX-License-Identifier: Apache-2.0
//
// Integers as big-endian bytes, so that keys sort as numbers do; and reading them back from bytes that may be damaged.
//
// Thread-safety: none. Ownership: a Decoder borrows its bytes.
#pragma once

#include <endian.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace termfs::metadata {

class Encoder {
 public:
  explicit Encoder(uint8_t first) { U8(first); }
  Encoder& U8(uint8_t value) { return Put(value, 1); }
  Encoder& U16(uint16_t value) { return Put(value, 2); }
  Encoder& U32(uint32_t value) { return Put(value, 4); }
  Encoder& U64(uint64_t value) { return Put(value, 8); }
  Encoder& Bytes(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  Encoder& Put(uint64_t value, size_t size) {
    const uint64_t big_endian = htobe64(value << (64 - 8 * size));
    bytes_.append(reinterpret_cast<const char*>(&big_endian), size);
    return *this;
  }
  std::string bytes_;
};

// After the first read beyond the end every read returns zero or nothing, and ok() is false.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}
  uint8_t U8() { return static_cast<uint8_t>(Get(1)); }
  uint16_t U16() { return static_cast<uint16_t>(Get(2)); }
  uint32_t U32() { return static_cast<uint32_t>(Get(4)); }
  uint64_t U64() { return Get(8); }
  std::string_view Bytes(size_t size) {
    if (!ok_ || size > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view result = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return result;
  }
  std::string_view Rest() { return Bytes(ok_ ? bytes_.size() : 0); }

  bool ok() const { return ok_; }
  // Everything was read and nothing was missing.
  bool Finished() const { return ok_ && bytes_.empty(); }

 private:
  uint64_t Get(size_t size) {
    uint64_t value = 0;
    const std::string_view bytes = Bytes(size);
    bytes.copy(reinterpret_cast<char*>(&value) + sizeof(value) - size, bytes.size());
    value = be64toh(value);
    return value;
  }
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace termfs::metadata

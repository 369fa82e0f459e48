// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as any value of the metadata store. The first byte chooses the record. What is taken in is written back
// byte for byte: else a damaged record would change when it is stored again.
#include <array>

#include "base/check.h"
#include "metadata/group_bitmap.h"
#include "metadata/records.h"

namespace termfs::metadata {
namespace {

// The bytes of a decoded record, or nothing.
using Again = std::string (*)(std::string_view);

std::string Superblocks(std::string_view bytes) {
  const auto decoded = DecodeSuperblock(bytes);
  if (!decoded.ok()) {
    return {};
  }
  TERMFS_CHECK(decoded->capacity_pages > 0 && (decoded->incompatible & ~kKnownIncompatible) == 0);
  std::string again = EncodeSuperblock(*decoded);
  again[0] = bytes[0];  // the format version stands for the value's own
  return again;
}
std::string Inodes(std::string_view bytes) {
  const auto decoded = DecodeInode(7, bytes);
  return decoded.ok() ? EncodeInode(*decoded) : std::string();
}
std::string Dentries(std::string_view bytes) {
  const auto decoded = DecodeDentry(bytes);
  return decoded.ok() ? EncodeDentry(*decoded) : std::string();
}
std::string Extents(std::string_view bytes) {
  const auto decoded = DecodeExtent(3, bytes);
  return decoded.ok() ? EncodeExtent(*decoded) : std::string();
}
std::string Numbers(std::string_view bytes) {
  const auto decoded = DecodeNumber(bytes);
  return decoded.ok() ? EncodeNumber(*decoded) : std::string();
}
std::string Payloads(std::string_view bytes) {
  const auto decoded = DecodeBytes(bytes);
  return decoded.ok() ? EncodeBytes(*decoded) : std::string();
}
std::string Quotas(std::string_view bytes) {
  const auto decoded = DecodeQuota(5, bytes);
  return decoded.ok() ? EncodeQuota(*decoded) : std::string();
}
// What can be said more shortly comes back like that, once.
std::string Bitmaps(std::string_view bytes) {
  const auto decoded = GroupBitmap::Decode(kGroupPages, bytes);
  if (!decoded.ok()) {
    return {};
  }
  const std::string stored = decoded->Encode();
  const auto again = GroupBitmap::Decode(kGroupPages, stored);
  TERMFS_CHECK(stored.size() <= bytes.size() && again.ok() && again->CountFree() == decoded->CountFree());
  return stored.size() < bytes.size() && again->Encode() == stored ? std::string(bytes) : stored;
}

constexpr std::array<Again, 8> kRecords = {Superblocks, Inodes, Dentries, Extents, Numbers, Payloads, Bitmaps, Quotas};

}  // namespace
}  // namespace termfs::metadata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) {
    const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
    const std::string again = termfs::metadata::kRecords[data[0] % termfs::metadata::kRecords.size()](bytes);
    TERMFS_CHECK(again.empty() || again == bytes);
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as any message between fs/client and fs/server. The first byte chooses the message.
#include <array>

#include "base/check.h"
#include "fs/proto/codec.h"
#include "fs/proto/data.h"

namespace termfs::fs {
namespace {

constexpr uint64_t kRegionPages = 1U << 20;

template <typename Table>
void TryTable(std::span<const std::byte> bytes) {
  auto decoded = Decode<Table>(bytes);
  if (decoded.ok()) {  // what was taken in can be sent on, and taken in again
    TERMFS_CHECK(Decode<Table>(Encode<Table>(*decoded)).ok());
  }
}

void TryMap(std::span<const std::byte> bytes) {
  const auto map = DecodeMap(bytes, kRegionPages);
  if (!map.ok()) {
    return;
  }
  TERMFS_CHECK(map->segments.size() <= kMaxMapSegments);
  std::vector<std::byte> again;
  EncodeMap(*map, again);
  TERMFS_CHECK(DecodeMap(again, kRegionPages).ok());
}

void TryFixed(std::span<const std::byte> bytes) {
  (void)DecodeFixed<WriteBody>(bytes).ok();
  (void)DecodeFixed<RevokeBody>(bytes).ok();
  (void)DecodeFixed<InvalidateBody>(bytes).ok();
  if (const auto reply = DecodePrefix<WriteReply>(bytes); reply.ok()) {
    TryMap(reply->second);
  }
}

using Try = void (*)(std::span<const std::byte>);
constexpr std::array<Try, 27> kMessages = {TryTable<wire::AttributesReply>,
                                           TryTable<wire::Inode>,
                                           TryTable<wire::Name>,
                                           TryTable<wire::Make>,
                                           TryTable<wire::Link>,
                                           TryTable<wire::Rename>,
                                           TryTable<wire::Set>,
                                           TryTable<wire::Open>,
                                           TryTable<wire::Opened>,
                                           TryTable<wire::Release>,
                                           TryTable<wire::Sync>,
                                           TryTable<wire::Seek>,
                                           TryTable<wire::Position>,
                                           TryTable<wire::Allocate>,
                                           TryTable<wire::Xattr>,
                                           TryTable<wire::VolumeSpace>,
                                           TryTable<wire::ReadDirectory>,
                                           TryTable<wire::Directory>,
                                           TryTable<wire::Status>,
                                           TryTable<wire::Metrics>,
                                           TryMap,
                                           TryFixed,
                                           TryTable<wire::Lock>,
                                           TryTable<wire::Locked>,
                                           TryTable<wire::Reclaim>,
                                           TryTable<wire::Reclaimed>,
                                           TryTable<wire::CachePages>};

}  // namespace
}  // namespace termfs::fs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) {
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data + 1), size - 1);
    termfs::fs::kMessages[data[0] % termfs::fs::kMessages.size()](bytes);
  }
  return 0;
}

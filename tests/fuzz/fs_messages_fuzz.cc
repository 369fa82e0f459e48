// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as any message between fs/client and fs/server. The first byte chooses the message.
#include <algorithm>
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
  if (decoded.ok()) {  // what was taken in can be sent on, and is the same at the other end
    const std::vector<std::byte> sent = Encode<Table>(*decoded);
    const auto again = Decode<Table>(sent);
    TERMFS_CHECK(again.ok() && Encode<Table>(*again) == sent);
  }
}

void TryMap(std::span<const std::byte> bytes) {
  const auto map = DecodeMap(bytes, kRegionPages);
  if (!map.ok()) {
    return;
  }
  TERMFS_CHECK(map->segments.size() <= kMaxMapSegments && map->size <= kMaxFileBytes);
  uint64_t end = 0;
  for (const Segment& segment : map->segments) {
    TERMFS_CHECK(segment.pages > 0 && segment.file_page >= end && segment.end() > segment.file_page);
    TERMFS_CHECK(segment.is_hole() ||
                 (segment.region_page < kRegionPages && segment.pages <= kRegionPages - segment.region_page));
    end = segment.end();
  }
  TERMFS_CHECK(end <= PagesFor(map->size));
  std::vector<std::byte> again;
  EncodeMap(*map, again);
  TERMFS_CHECK(bytes.empty() || again.size() == bytes.size());
  const auto second = DecodeMap(again, kRegionPages);
  std::vector<std::byte> twice;
  TERMFS_CHECK(second.ok());
  EncodeMap(*second, twice);
  TERMFS_CHECK(twice == again);
}

template <typename Body>
void TryOneFixed(std::span<const std::byte> bytes) {
  const auto body = DecodeFixed<Body>(bytes);
  TERMFS_CHECK(body.ok() == (bytes.size() == sizeof(Body)));
  if (body.ok()) {
    const auto again = AsBytes(*body);
    TERMFS_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  }
}

template <typename Reply>
void TryBeforeMap(std::span<const std::byte> bytes) {
  const auto reply = DecodePrefix<Reply>(bytes);
  TERMFS_CHECK(reply.ok() == (bytes.size() >= sizeof(Reply)));
  if (reply.ok()) {
    TERMFS_CHECK(reply->second.size() == bytes.size() - sizeof(Reply));
    TryMap(reply->second);
  }
}

void TryFixed(std::span<const std::byte> bytes) {
  TryOneFixed<ReadBody>(bytes);
  TryOneFixed<WriteBody>(bytes);
  TryOneFixed<RevokeBody>(bytes);
  TryOneFixed<FirstWriteBody>(bytes);
  TryOneFixed<FirstWriteReply>(bytes);
  TryOneFixed<InvalidateBody>(bytes);
  TryOneFixed<ShrunkBody>(bytes);
  TryBeforeMap<ReadReply>(bytes);
  TryBeforeMap<WriteReply>(bytes);
}

using Try = void (*)(std::span<const std::byte>);
constexpr std::array<Try, 39> kMessages = {TryTable<wire::AttributesReply>,
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
                                           TryTable<wire::CachePages>,
                                           TryTable<wire::Grants>,
                                           TryTable<wire::Reopen>,
                                           TryTable<wire::Resumed>,
                                           TryTable<wire::Memory>,
                                           TryTable<wire::Copy>,
                                           TryTable<wire::Copied>,
                                           TryTable<wire::QuotaChange>,
                                           TryTable<wire::Quota>,
                                           TryTable<wire::Quotas>,
                                           TryTable<wire::Ticket>,
                                           TryTable<wire::Recall>,
                                           TryTable<wire::Setting>};

}  // namespace
}  // namespace termfs::fs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 0) {
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data + 1), size - 1);
    termfs::fs::kMessages[data[0] % termfs::fs::kMessages.size()](bytes);
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "fs/proto/data.h"

#include <cstring>

#include "base/check.h"

namespace termfs::fs {

namespace {

struct MapHeader {
  uint64_t version;
  uint64_t base;
  uint64_t size;
  uint32_t count;
  uint32_t reserved;
};

}  // namespace

template <typename Body>
Result<Body> DecodeFixed(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(Body)) {
    return Status::Error(EBADMSG, "message of a wrong length");
  }
  Body body;
  std::memcpy(&body, bytes.data(), sizeof(Body));
  return body;
}

template <typename Body>
Result<std::pair<Body, std::span<const std::byte>>> DecodePrefix(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Body)) {
    return Status::Error(EBADMSG, "truncated message");
  }
  ASSIGN_OR_RETURN(const Body body, DecodeFixed<Body>(bytes.first(sizeof(Body))));
  return std::pair(body, bytes.subspan(sizeof(Body)));
}

template Result<ReadBody> DecodeFixed(std::span<const std::byte>);
template Result<WriteBody> DecodeFixed(std::span<const std::byte>);
template Result<RevokeBody> DecodeFixed(std::span<const std::byte>);
template Result<FirstWriteBody> DecodeFixed(std::span<const std::byte>);
template Result<FirstWriteReply> DecodeFixed(std::span<const std::byte>);
template Result<InvalidateBody> DecodeFixed(std::span<const std::byte>);
template Result<ShrunkBody> DecodeFixed(std::span<const std::byte>);
template Result<std::pair<ReadReply, std::span<const std::byte>>> DecodePrefix(std::span<const std::byte>);
template Result<std::pair<WriteReply, std::span<const std::byte>>> DecodePrefix(std::span<const std::byte>);

void EncodeMap(const Map& map, std::vector<std::byte>& out) {
  TERMFS_CHECK(map.segments.size() <= kMaxMapSegments);
  const MapHeader header{map.version, map.base, map.size, static_cast<uint32_t>(map.segments.size()), 0};
  const size_t at = out.size();
  out.resize(at + sizeof(header) + map.segments.size() * sizeof(Segment));
  std::memcpy(out.data() + at, &header, sizeof(header));
  if (!map.segments.empty()) {
    std::memcpy(out.data() + at + sizeof(header), map.segments.data(), map.segments.size() * sizeof(Segment));
  }
}

Result<Map> DecodeMap(std::span<const std::byte> bytes, uint64_t region_pages) {
  if (bytes.empty()) {
    return Map{};
  }
  MapHeader header;
  if (bytes.size() < sizeof(header)) {
    return Status::Error(EBADMSG, "truncated map");
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.count > kMaxMapSegments || bytes.size() != sizeof(header) + header.count * sizeof(Segment)) {
    return Status::Error(EBADMSG, "map of a wrong length");
  }
  const bool none = header.version == 0 && header.size == 0 && header.count == 0;
  if (header.size > kMaxFileBytes || (header.base > header.version && !none)) {
    return Status::Error(EBADMSG, "map with a bad header");
  }
  Map map{header.version, header.base, header.size, std::vector<Segment>(header.count)};
  if (header.count > 0) {
    std::memcpy(map.segments.data(), bytes.data() + sizeof(header), header.count * sizeof(Segment));
  }
  const uint64_t pages = PagesFor(header.size);
  uint64_t end = 0;
  for (const Segment& s : map.segments) {
    if (s.file_page < end || s.pages == 0 || s.file_page > pages || s.pages > pages - s.file_page) {
      return Status::Error(EBADMSG, "map with segments out of order");
    }
    if (!s.is_hole() && (s.region_page > region_pages || s.pages > region_pages - s.region_page)) {
      return Status::Error(EBADMSG, "map with pages beyond the region");
    }
    end = s.end();
  }
  return map;
}

}  // namespace termfs::fs

// SPDX-License-Identifier: Apache-2.0
//
// The messages that a read or a write pays for: fixed structs, little-endian, read only through the functions here,
// which check lengths and ranges.
//
// A Map is what a server grants to a session: the file's size and the place of some of its pages, good until revoked.
// `version` orders all maps of one inode; a map that a session got with a version up to a revoked one is void. What a
// session knows from a version >= `base` remains true under this one (only pages beyond the former size are new).
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/page.h"
#include "base/result.h"
#include "fs/extent_map.h"
#include "tlib/rpc/messages.h"

namespace termfs::fs {

enum ReadFlag : uint32_t {
  kReadKeepsAccessTime = 1,  // it does not count as an access
};

struct ReadBody {
  uint64_t ino = 0;
  uint64_t offset = 0;
  uint32_t length = 0;  // <= out.length
  uint32_t flags = 0;
};

struct ReadReply {
  uint32_t length = 0;  // bytes in `out`; fewer than asked for only at the end of the file
  uint32_t reserved = 0;
};

// What a request about an inode says of its first write, which the client may post if it has made the file just now.
enum class FirstWrite : uint8_t {
  kUnsaid = 0,
  kForgone = 1,  // it will not post one
  kPosted = 2,   // it has; what is asked here comes after it
};

// The longest that may be posted: it comes with its request.
inline constexpr uint32_t kMaxFirstWrite = tlib::kMaxInline;
static_assert(kMaxFirstWrite == kPageSize);

enum WriteFlag : uint32_t {
  kWriteAppend = 1,
  kWriteClearsPrivileges = 2,  // the writer may not keep the file's set-id bits
  kWriteFirst = 4,             // a posted first write: at 0, no longer than kMaxFirstWrite, with a mark
  kWriteForgoesFirst = 8,      // FirstWrite::kForgone
  kWriteBack = 16,             // stores through a mapping: nothing is written behind the end of the file
};

struct WriteBody {
  uint64_t ino = 0;
  uint64_t offset = 0;   // ignored with kWriteAppend
  uint64_t version = 0;  // of the map that the client has, 0 for none
  uint32_t length = 0;   // == in.length
  uint32_t flags = 0;
};

struct WriteReply {
  uint64_t offset = 0;  // where the bytes went
  uint64_t size = 0;    // of the file, after it
  int64_t mtime = 0;
};

struct RevokeBody {
  uint64_t ino = 0;
  uint64_t version = 0;  // maps up to this one are void
};

struct FirstWriteBody {
  uint64_t ino = 0;
  uint32_t failed = 0;  // 0: was one posted? else: that could not be carried out
  uint32_t reserved = 0;
};
struct FirstWriteReply {
  uint32_t first = 0;  // FirstWrite: forgone or posted
};

struct InvalidateBody {
  uint64_t ticket = 0;
  uint64_t ino = 0;
};

struct ShrunkBody {
  uint64_t ticket = 0;
  uint64_t ino = 0;
  uint64_t generation = 0;  // of the number
};

inline constexpr uint32_t kMaxMapSegments = 128;

struct Map {
  uint64_t version = 0;  // 0: none granted
  uint64_t base = 0;     // of none: the inode's version; maps up to it may be out of date
  uint64_t size = 0;
  std::vector<Segment> segments;  // ascending, disjoint, below PagesFor(size); at most kMaxMapSegments
};

template <typename Body>
std::span<const std::byte> AsBytes(const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body>);
  return std::as_bytes(std::span<const Body, 1>(&body, 1));
}

// The fixed struct that is all of `bytes`; EBADMSG otherwise.
template <typename Body>
Result<Body> DecodeFixed(std::span<const std::byte> bytes);

// The fixed struct at the start of `bytes`, and the rest; EBADMSG when they are too short.
template <typename Body>
Result<std::pair<Body, std::span<const std::byte>>> DecodePrefix(std::span<const std::byte> bytes);

// Appends the map's bytes.
void EncodeMap(const Map& map, std::vector<std::byte>& out);
// Checks order, bounds and that all pages lie below `region_pages`. No bytes: a map with version 0.
Result<Map> DecodeMap(std::span<const std::byte> bytes, uint64_t region_pages);

}  // namespace termfs::fs

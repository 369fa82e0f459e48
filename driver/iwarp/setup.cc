// SPDX-License-Identifier: Apache-2.0
#include "driver/iwarp/setup.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"
#include "driver/big_endian.h"

namespace termfs::driver::iwarp {
namespace {

constexpr std::array<std::string_view, 2> kKeys = {"MPA ID Req Frame", "MPA ID Rep Frame"};
constexpr size_t kKeyBytes = 16;
constexpr size_t kHeaderBytes = kKeyBytes + 4;
constexpr size_t kEnhancedBytes = 4;

constexpr uint8_t kMarkers = 0x80;
constexpr uint8_t kCrc = 0x40;
constexpr uint8_t kReject = 0x20;
constexpr uint8_t kEnhanced = 0x10;
constexpr uint8_t kRevision = 2;
constexpr uint16_t kPeerToPeer = 0x8000;    // beside IRD
constexpr uint16_t kReadyByWrite = 0x8000;  // beside ORD

std::string_view KeyOf(SetUpFrame frame) { return kKeys[static_cast<size_t>(frame)]; }

Status Malformed(const char* what) { return Status::Error(EPROTO, std::string("the set-up of a connection: ") + what); }

}  // namespace

std::vector<std::byte> Encode(SetUpFrame frame, const MpaSetUp& set_up) {
  TERMFS_CHECK(set_up.private_data.size() <= kMostPrivateData);
  std::vector<std::byte> bytes(kHeaderBytes + kEnhancedBytes + set_up.private_data.size());
  const auto key = std::as_bytes(std::span(KeyOf(frame)));
  std::copy(key.begin(), key.end(), bytes.begin());
  BigEndianWriter writer(bytes.data() + kKeyBytes);
  writer.Put((set_up.with_markers ? kMarkers : 0U) | (set_up.with_crc ? kCrc : 0U) | (set_up.rejects ? kReject : 0U) |
                 kEnhanced,
             1);
  writer.Put(kRevision, 1);
  writer.Put(kEnhancedBytes + set_up.private_data.size(), 2);
  writer.Put((set_up.peer_to_peer ? kPeerToPeer : 0U) | std::min(set_up.reads_in, kMostReads), 2);
  writer.Put((set_up.ready_by_write ? kReadyByWrite : 0U) | std::min(set_up.reads_out, kMostReads), 2);
  std::copy(set_up.private_data.begin(), set_up.private_data.end(),
            bytes.end() - static_cast<ptrdiff_t>(set_up.private_data.size()));
  return bytes;
}

Result<std::optional<DecodedSetUp>> DecodeSetUp(SetUpFrame frame, std::span<const std::byte> bytes) {
  const auto key = std::as_bytes(std::span(KeyOf(frame)));
  const size_t seen = std::min(bytes.size(), kKeyBytes);
  if (!std::equal(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(seen), key.begin())) {
    return Malformed("another protocol");
  }
  if (bytes.size() < kHeaderBytes) {
    return std::optional<DecodedSetUp>();
  }
  BigEndianReader reader(bytes.data() + kKeyBytes);
  const uint8_t flags = reader.Get8();
  const uint8_t revision = reader.Get8();
  const size_t length = reader.Get16();
  if (revision != kRevision || (flags & kEnhanced) == 0) {
    return Malformed("a revision of MPA without peer-to-peer mode");
  }
  if (length < kEnhancedBytes || length > kEnhancedBytes + kMostPrivateData) {
    return Malformed("a wrong length");
  }
  if (bytes.size() < kHeaderBytes + length) {
    return std::optional<DecodedSetUp>();
  }
  DecodedSetUp decoded;
  decoded.bytes = kHeaderBytes + length;
  MpaSetUp& set_up = decoded.set_up;
  set_up.with_markers = (flags & kMarkers) != 0;
  set_up.with_crc = (flags & kCrc) != 0;
  set_up.rejects = (flags & kReject) != 0;
  const uint16_t in = reader.Get16();
  const uint16_t out = reader.Get16();
  set_up.peer_to_peer = (in & kPeerToPeer) != 0;
  set_up.ready_by_write = (out & kReadyByWrite) != 0;
  set_up.reads_in = in & kMostReads;
  set_up.reads_out = out & kMostReads;
  const auto data = bytes.subspan(kHeaderBytes + kEnhancedBytes, length - kEnhancedBytes);
  set_up.private_data.assign(data.begin(), data.end());
  return std::optional(std::move(decoded));
}

Result<MpaSetUp> Accept(const MpaSetUp& request, uint16_t max_reads, bool wants_crc) {
  if (request.rejects) {
    return Malformed("a request that rejects");
  }
  if (request.with_markers) {
    return Malformed("markers are asked for, which are not supported");
  }
  if (request.peer_to_peer && !request.ready_by_write) {
    return Malformed("peer to peer, without an empty WRITE to begin with");
  }
  if (request.reads_in == 0) {
    return Malformed("an end that answers no READs");
  }
  MpaSetUp reply;
  reply.with_crc = wants_crc || request.with_crc;
  reply.peer_to_peer = reply.ready_by_write = request.peer_to_peer;
  reply.reads_in = max_reads;
  reply.reads_out = std::min(max_reads, request.reads_in);
  return reply;
}

Status Check(const MpaSetUp& request, const MpaSetUp& reply) {
  if (reply.rejects) {
    return Status::Error(ECONNREFUSED, "the set-up of a connection: rejected by the peer");
  }
  if (reply.with_markers) {
    return Malformed("markers are asked for, which are not supported");
  }
  if (reply.peer_to_peer != request.peer_to_peer || (reply.peer_to_peer && !reply.ready_by_write) ||
      reply.reads_in == 0 || (request.with_crc && !reply.with_crc) || reply.reads_out > request.reads_in) {
    return Malformed("a reply that does not fit the request");
  }
  return Status::Ok();
}

uint16_t ReadsOut(const MpaSetUp& own, const MpaSetUp& peer) { return std::min(own.reads_out, peer.reads_in); }

}  // namespace termfs::driver::iwarp

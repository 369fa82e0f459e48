// SPDX-License-Identifier: Apache-2.0
//
// The only readers of the hot messages' bytes (tlib/rpc/messages.h). What they hand out has been checked: lengths add
// up, counts fit what they count, no range overflows. What they cannot know (how large the region is, whose rkey it is,
// whether the epoch is the current one) is the caller's to check.
//
// Thread-safety: any. The bytes must be private to the caller: nobody else may write to them meanwhile.
// Ownership:     spans point into the message.
// Errors:        EPROTO, with what was wrong.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "tlib/rpc/messages.h"

namespace termfs::tlib {

inline constexpr uint32_t kMaxReadPages = kMaxTransfer / 4096 + 1;
inline constexpr uint32_t kMaxReadWords = (kMaxReadPages + 63) / 64;
using ReadBitmap = std::array<uint64_t, kMaxReadWords>;

struct DecodedRequest {
  RequestHeader header;  // opcode without kInline
  std::span<const std::byte> body;
  bool is_inline = false;
  std::span<const std::byte> in{};       // those of header.in, if they came along
  std::span<const std::byte> in_tags{};  // sealed: of header.in, if they did not
};
// header.in and header.out are at most kMaxTransfer long, `in` at most kMaxInline. `sealed`: it was.
Result<DecodedRequest> DecodeRequest(std::span<const std::byte> message, bool sealed = false);

struct DecodedReply {
  ReplyHeader header;
  std::span<const std::byte> body;
  std::span<const std::byte> out_tag{};  // sealed: of the bulk bytes, if there are any
};
Result<DecodedReply> DecodeReply(std::span<const std::byte> message, bool sealed = false);

struct DecodedRead {
  uint64_t offset = 0;
  uint32_t length = 0;   // > 0, == header.out.length
  uint32_t words = 0;    // as many as the range's pages need
  ReadBitmap missing{};  // no bit beyond the range's pages, at least one bit set
};
Result<DecodedRead> DecodeRead(const DecodedRequest& request);

struct DecodedWrite {
  uint64_t offset = 0;
  uint32_t length = 0;  // > 0, == header.in.length
};
Result<DecodedWrite> DecodeWrite(const DecodedRequest& request);

// Presence words of a kRead reply for a range whose pages take `words` words. EPROTO when there are not exactly so
// many.
Status DecodePresence(const DecodedReply& reply, uint32_t words, ReadBitmap& present);

// Writes header and body to `message`, returns the bytes taken. REQUIRES: they fit.
uint32_t EncodeMessage(const RequestHeader& header, std::span<const std::byte> body, std::byte* message);
uint32_t EncodeMessage(const ReplyHeader& header, std::span<const std::byte> body, std::byte* message);

}  // namespace termfs::tlib

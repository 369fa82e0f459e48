// SPDX-License-Identifier: Apache-2.0
#include "tlib/rpc/decode.h"

#include <cstring>

#include "base/check.h"
#include "tlib/rpc/page_span.h"

namespace termfs::tlib {
namespace {

Status Bad(const char* what) { return Status::Error(EPROTO, what); }

// `rest`: all behind the header, of which the first bytes are the body.
template <typename Header>
Status TakeHeader(std::span<const std::byte> message, Header& header, std::span<const std::byte>& rest) {
  if (message.size() < sizeof(Header)) {
    return Bad("message shorter than its header");
  }
  std::memcpy(&header, message.data(), sizeof(Header));
  rest = message.subspan(sizeof(Header));
  return Status::Ok();
}

Status BadLength() { return Bad("message's body is not as long as its header says"); }

bool IsRange(uint64_t offset, uint32_t length) {
  return length > 0 && length <= kMaxTransfer && offset <= UINT64_MAX - length;
}

Status CheckBuffer(const RemoteBuffer& buffer) {
  if (buffer.length > kMaxTransfer || buffer.offset > UINT64_MAX - buffer.length) {
    return Bad("bulk buffer out of range");
  }
  return Status::Ok();
}

template <typename Header>
uint32_t Encode(const Header& header, std::span<const std::byte> body, std::byte* message) {
  TERMFS_CHECK(header.body_bytes == body.size() && sizeof(Header) + body.size() <= kMaxMessage);
  std::memcpy(message, &header, sizeof(Header));
  if (!body.empty()) {
    std::memcpy(message + sizeof(Header), body.data(), body.size());
  }
  return static_cast<uint32_t>(sizeof(Header) + body.size());
}

}  // namespace

Result<DecodedRequest> DecodeRequest(std::span<const std::byte> message, bool sealed) {
  DecodedRequest request;
  std::span<const std::byte> rest;
  RETURN_IF_ERROR(TakeHeader(message, request.header, rest));
  request.is_inline = (request.header.opcode & kInline) != 0;
  request.header.opcode &= static_cast<uint16_t>(~kInline);
  const uint32_t in_bytes = request.is_inline ? request.header.in.length : 0;
  RETURN_IF_ERROR(CheckBuffer(request.header.in));
  RETURN_IF_ERROR(CheckBuffer(request.header.out));
  const uint32_t tag_bytes = sealed && !request.is_inline ? TagsOf(request.header.in.length) * kTagBytes : 0;
  if (in_bytes > kMaxInline || rest.size() != uint64_t{request.header.body_bytes} + in_bytes + tag_bytes) {
    return BadLength();
  }
  request.body = rest.first(request.header.body_bytes);
  request.in = rest.subspan(request.header.body_bytes, in_bytes);
  request.in_tags = rest.last(tag_bytes);
  return request;
}

Result<DecodedReply> DecodeReply(std::span<const std::byte> message, bool sealed) {
  DecodedReply reply;
  std::span<const std::byte> rest;
  RETURN_IF_ERROR(TakeHeader(message, reply.header, rest));
  const uint32_t tag_bytes = sealed && reply.header.out_bytes != 0 ? kTagBytes : 0;
  if (rest.size() != uint64_t{reply.header.body_bytes} + tag_bytes) {
    return BadLength();
  }
  reply.body = rest.first(reply.header.body_bytes);
  reply.out_tag = rest.last(tag_bytes);
  if (reply.header.error < 0 || reply.header.error > 4095) {
    return Bad("reply's error is not an errno");
  }
  if (reply.header.out_bytes > kMaxTransfer) {
    return Bad("reply claims more bulk bytes than fit");
  }
  return reply;
}

Result<DecodedRead> DecodeRead(const DecodedRequest& request) {
  ReadBody body;
  if (request.body.size() < sizeof(body)) {
    return Bad("read request without a range");
  }
  std::memcpy(&body, request.body.data(), sizeof(body));
  if (!IsRange(body.offset, body.length) || body.length != request.header.out.length) {
    return Bad("read request's range");
  }
  const PageSpan pages(body.offset, body.length);
  if (body.words != pages.words() || request.body.size() != sizeof(body) + body.words * sizeof(uint64_t)) {
    return Bad("read request's bitmap has not a bit per page");
  }
  DecodedRead read{.offset = body.offset, .length = body.length, .words = body.words};
  std::memcpy(read.missing.data(), request.body.data() + sizeof(body), body.words * sizeof(uint64_t));
  const uint32_t bits_in_last = (pages.count() - 1) % 64 + 1;
  if (bits_in_last < 64 && (read.missing[body.words - 1] >> bits_in_last) != 0) {
    return Bad("read request's bitmap names pages beyond its range");
  }
  uint64_t any = 0;
  for (uint32_t i = 0; i < body.words; i++) {
    any |= read.missing[i];
  }
  if (any == 0) {
    return Bad("read request for no page");
  }
  return read;
}

Result<DecodedWrite> DecodeWrite(const DecodedRequest& request) {
  WriteBody body;
  if (request.body.size() != sizeof(body)) {
    return Bad("write request without a range");
  }
  std::memcpy(&body, request.body.data(), sizeof(body));
  if (!IsRange(body.offset, body.length) || body.length != request.header.in.length) {
    return Bad("write request's range");
  }
  return DecodedWrite{.offset = body.offset, .length = body.length};
}

Status DecodePresence(const DecodedReply& reply, uint32_t words, ReadBitmap& present) {
  if (words > kMaxReadWords || reply.body.size() != words * sizeof(uint64_t)) {
    return Bad("read reply's presence bitmap");
  }
  std::memcpy(present.data(), reply.body.data(), reply.body.size());
  return Status::Ok();
}

uint32_t EncodeMessage(const RequestHeader& header, std::span<const std::byte> body, std::byte* message) {
  return Encode(header, body, message);
}
uint32_t EncodeMessage(const ReplyHeader& header, std::span<const std::byte> body, std::byte* message) {
  return Encode(header, body, message);
}

}  // namespace termfs::tlib

// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a request, as a reply, and as the bodies in them: what the decoders hand out must keep what
// tlib/rpc/decode.h promises.
#include <bit>

#include "base/check.h"
#include "tlib/rpc/decode.h"

namespace termfs::tlib {
namespace {

void CheckRead(const DecodedRead& read) {
  TERMFS_CHECK(read.length > 0 && read.length <= kMaxTransfer);
  TERMFS_CHECK(read.offset + read.length > read.offset);
  const uint64_t pages = (read.offset + read.length - 1) / 4096 - read.offset / 4096 + 1;
  TERMFS_CHECK(read.words == (pages + 63) / 64);
  uint64_t set = 0;
  for (uint64_t i = 0; i < kMaxReadWords; i++) {
    TERMFS_CHECK(i < read.words || read.missing[i] == 0);
    set += static_cast<uint64_t>(std::popcount(read.missing[i]));
  }
  TERMFS_CHECK(set > 0 && set <= pages);
}

void TryRequest(std::span<const std::byte> message, bool sealed) {
  const auto request = DecodeRequest(message, sealed);
  if (!request.ok()) {
    return;
  }
  TERMFS_CHECK(request->header.in.length <= kMaxTransfer && request->header.out.length <= kMaxTransfer);
  TERMFS_CHECK(request->body.size() + request->in.size() + request->in_tags.size() <= message.size());
  TERMFS_CHECK(request->in_tags.size() ==
               (sealed && !request->is_inline ? TagsOf(request->header.in.length) * size_t{kTagBytes} : 0));
  if (const auto read = DecodeRead(*request); read.ok()) {
    CheckRead(*read);
    TERMFS_CHECK(read->length == request->header.out.length);
  }
  if (const auto write = DecodeWrite(*request); write.ok()) {
    TERMFS_CHECK(write->length > 0 && write->length == request->header.in.length);
    TERMFS_CHECK(write->offset + write->length > write->offset);
  }
}

void TryReply(std::span<const std::byte> message, bool sealed) {
  const auto reply = DecodeReply(message, sealed);
  if (!reply.ok()) {
    return;
  }
  TERMFS_CHECK(reply->out_tag.size() == (sealed && reply->header.out_bytes != 0 ? kTagBytes : 0));
  for (uint32_t words = 1; words <= kMaxReadWords; words++) {
    ReadBitmap present{};
    (void)DecodePresence(*reply, words, present).ok();
  }
}

}  // namespace
}  // namespace termfs::tlib

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> message(reinterpret_cast<const std::byte*>(data), size);
  for (const bool sealed : {false, true}) {
    termfs::tlib::TryRequest(message, sealed);
    termfs::tlib::TryReply(message, sealed);
  }
  return 0;
}

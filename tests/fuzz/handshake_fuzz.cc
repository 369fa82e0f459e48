// SPDX-License-Identifier: Apache-2.0
//
// Any frames for the end of a sealed channel that is greeted, and for one that has shaken hands: none of them proves
// anything, none is taken for a message of the other end, and one of that still is one afterwards.
//
// The input is a row of frames: a byte with the length, so many bytes.
#include <algorithm>

#include "base/check.h"
#include "tlib/rpc/sealed_channel.h"

namespace termfs::tlib {
namespace {

using End = SealedChannel::End;

constexpr Secret kSecret{std::byte{42}};
constexpr uint32_t kVersion = 1;

SealedChannel Make(End end) { return SealedChannel::Create(end, kSecret, kVersion).value(); }

void TryFrames(std::span<const std::byte> input) {
  SealedChannel stranger = Make(End::kServer);
  SealedChannel client = Make(End::kClient);
  SealedChannel server = Make(End::kServer);
  TERMFS_CHECK(server.TakeGreeting(client.Greeting()).ok() && client.TakeGreeting(server.Greeting()).ok());
  TERMFS_CHECK(server.TakeProof(client.Proof().value()).ok() && client.TakeProof(server.Proof().value()).ok());
  bool greeted = false;
  while (!input.empty()) {
    const size_t length = std::min<size_t>(std::to_integer<size_t>(input[0]), input.size() - 1);
    const auto frame = input.subspan(1, length);
    input = input.subspan(1 + length);
    if (!greeted) {
      greeted = stranger.TakeGreeting(frame).ok();
    } else {
      TERMFS_CHECK(!stranger.TakeProof(frame).ok());
    }
    TERMFS_CHECK(!stranger.open() && !stranger.Open(frame).ok());
    TERMFS_CHECK(!server.Open(frame).ok());
  }
  const auto message = client.Seal(kSecret).value();
  TERMFS_CHECK(server.Open(message).ok());
}

}  // namespace
}  // namespace termfs::tlib

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  termfs::tlib::TryFrames({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}

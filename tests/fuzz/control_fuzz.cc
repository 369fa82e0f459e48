// SPDX-License-Identifier: Apache-2.0
//
// Any bytes on the control channel: through a socket, in pieces, as they would come from a peer.
#include <sys/socket.h>

#include <array>

#include "base/check.h"
#include "base/unique_fd.h"
#include "tlib/rpc/control_generated.h"
#include "tlib/rpc/control_message.h"

namespace termfs::tlib {
namespace {

constexpr size_t kMostFrames = 64;

void TryStream(std::span<const std::byte> stream) {
  std::array<int, 2> ends{};
  TERMFS_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const UniqueFd ours(ends[0]);
  UniqueFd peer(ends[1]);
  if (send(peer.get(), stream.data(), stream.size(), MSG_NOSIGNAL) < 0) {
    return;  // more than the socket takes at once
  }
  peer.Reset(-1);
  FrameReader reader;
  for (size_t frames = 0; frames < kMostFrames; frames++) {
    auto frame = reader.Next(ours.get());
    if (!frame.ok() || !frame->has_value()) {
      return;
    }
    wire::ControlMessageT message;
    (void)DecodeControl((*frame)->bytes, message).ok();
  }
}

}  // namespace
}  // namespace termfs::tlib

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  termfs::tlib::TryStream(bytes);
  termfs::tlib::wire::ControlMessageT message;
  (void)termfs::tlib::DecodeControl(bytes, message).ok();
  return 0;
}

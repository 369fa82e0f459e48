// SPDX-License-Identifier: Apache-2.0
//
// Framing of the control channel (tlib/rpc/control.fbs): a 4-byte little-endian length, then a ControlMessage. Bytes
// become a message only through DecodeControl, which has the schema's verifier check them before it reads a field.
// Descriptors travel with the first byte of their message.
//
// Thread-safety: none.
// Ownership:     a received Frame owns its descriptors: those that nobody takes are closed.
// Errors:        EPROTO: not a message of ours, too long, too many descriptors. ENOTCONN: the peer closed or is gone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs::tlib {

inline constexpr uint32_t kMaxControlMessage = 1U << 20;
inline constexpr size_t kMaxControlFds = 8;

namespace wire {
struct ControlMessageT;  // generated
}

struct Frame {
  std::vector<std::byte> bytes;  // for DecodeControl, which verifies them
  std::vector<UniqueFd> fds;
};

std::vector<std::byte> EncodeControl(const wire::ControlMessageT& message);
Status DecodeControl(std::span<const std::byte> bytes, wire::ControlMessageT& message);

// Sends one frame, waiting until `deadline` while the socket is full: ETIMEDOUT.
Status SendFrame(int socket, std::span<const std::byte> bytes, std::span<const UniqueFd> fds,
                 std::chrono::steady_clock::time_point deadline);

// Collects frames from a non-blocking stream socket, across partial receives.
class FrameReader {
 public:
  // The next frame if it is complete, nullopt if more bytes have to come. Never blocks.
  Result<std::optional<Frame>> Next(int socket);
  // The next frame, waiting for it: ETIMEDOUT.
  Result<Frame> Wait(int socket, std::chrono::steady_clock::time_point deadline);
  // A longer frame is refused (EPROTO) when its length has come, before there is memory for it.
  void set_longest(uint32_t bytes) { longest_ = bytes; }
  // Bytes have come that are no whole frame yet, or have not been taken.
  bool holds_bytes() const { return !buffered_.empty(); }

 private:
  // True when something was received; false: the socket has nothing now.
  Result<bool> Receive(int socket);
  Result<std::optional<Frame>> Take();

  uint32_t longest_ = kMaxControlMessage;
  std::vector<std::byte> buffered_;
  std::vector<UniqueFd> fds_;
};

}  // namespace termfs::tlib

// SPDX-License-Identifier: Apache-2.0
//
// Framing of the control channel (tlib/rpc/control.fbs): a 4-byte little-endian length, then a ControlMessage; over TCP
// inside TLS. Bytes become a message only through DecodeControl, which has the schema's verifier check them before it
// reads a field. Descriptors travel with the first byte of their message, over Unix sockets only.
//
// Thread-safety: none.
// Ownership:     a received Frame owns its descriptors: those that nobody takes are closed.
// Errors:        EPROTO: not a message of ours, too long, too many descriptors. ENOTCONN: the peer closed or is gone.
//                EBADMSG: what comes is no record of the TLS session's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/tls.h"
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

// Sends one frame, waiting until `deadline` while the socket is full: ETIMEDOUT. `tls`: the channel's; may be null.
Status SendFrame(int socket, std::span<const std::byte> bytes, std::span<const UniqueFd> fds,
                 std::chrono::steady_clock::time_point deadline, TlsSession* tls = nullptr);

// Collects frames from a non-blocking stream socket, across partial receives.
class FrameReader {
 public:
  // The next frame if it is complete, nullopt if more bytes have to come. Never blocks.
  Result<std::optional<Frame>> Next(int socket);
  // The next frame, waiting for it: ETIMEDOUT.
  Result<Frame> Wait(int socket, std::chrono::steady_clock::time_point deadline);
  // What comes from now on is inside TLS; `early`: what has come already, sealed. `tls` outlives the reader.
  Status Secure(TlsSession& tls, std::span<const std::byte> early);
  // Bytes have come that are no whole frame yet, or have not been taken.
  bool holds_bytes() const { return !buffered_.empty(); }

 private:
  // True when something was received; false: the socket has nothing now.
  Result<bool> Receive(int socket);
  Result<bool> ReceiveSealed(int socket);
  Result<std::optional<Frame>> Take();

  TlsSession* tls_ = nullptr;
  std::vector<std::byte> buffered_;
  std::vector<UniqueFd> fds_;
};

}  // namespace termfs::tlib

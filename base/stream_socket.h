// SPDX-License-Identifier: Apache-2.0
//
// Connected stream sockets that do not block, for callers that wait until a deadline.
//
// Thread-safety: free functions.
// Errors:        ETIMEDOUT: not before the deadline; ECONNRESET: the peer has closed the connection; otherwise what the
//                kernel says.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"

namespace termfs {

class TlsSession;

// Until one of `events` (poll), an error or a hang-up.
Status WaitFor(int socket, short events, std::chrono::steady_clock::time_point deadline);
Status SendAll(int socket, std::span<const std::byte> bytes, std::chrono::steady_clock::time_point deadline);
// As much as there is; 0: nothing now. Never waits.
Result<size_t> ReceiveSome(int socket, std::span<std::byte> to);
// The handshake of either end. Returns what came behind it, still sealed. Also TlsSession's errors.
Result<std::vector<std::byte>> ShakeHands(int socket, TlsSession& session,
                                          std::chrono::steady_clock::time_point deadline);

}  // namespace termfs

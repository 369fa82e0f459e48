// SPDX-License-Identifier: Apache-2.0
//
// TCP sockets for the control channel. They do not block, send small messages at once, and notice within about
// kDeadAfter that the other host does not answer any more, also when nothing is said.
//
// Thread-safety: free functions.
// Errors:        EHOSTUNREACH: there is no such host; ETIMEDOUT; otherwise what the kernel says of the last address
// tried.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/nic.h"
#include "tlib/rpc/server_address.h"

namespace termfs::tlib {

inline constexpr std::chrono::seconds kDeadAfter{11};

// Tries the host's addresses one after the other. Looking up a name may take as long as the resolver takes.
// `segment_limit`: of both directions, in bytes; 0: the kernel's choice.
Result<UniqueFd> ConnectTcp(const HostPort& place, std::chrono::steady_clock::time_point deadline,
                            uint32_t segment_limit = 0);
// A listening socket for each of the host's addresses.
Result<std::vector<UniqueFd>> ListenTcp(const HostPort& place);
// For an accepted socket what the others have from the beginning.
Status SetTcpOptions(int socket);

// Ends a connection for good by a reset, where shutdown and close, also that of a process that ends, say that nothing
// more will come. Whoever waits for the socket wakes up.
void ResetTcp(int socket);
// The other end has said that nothing more will come: by shutdown or close, and not by a reset.
bool HasHungUp(int socket);

// Zeros that fill a segment of this connection, as large as it sends them now.
std::vector<uint8_t> FullSegment(int socket);

// Where a connected socket's two ends are, for queue pairs between the same hosts.
Result<driver::NetworkPath> NetworkPathOf(int socket);

// The host at the other end, as numbers, and its port. Empty host: it is gone.
HostPort PeerOf(int socket);
// Of a listening socket: where it is.
HostPort LocalPlaceOf(int socket);

}  // namespace termfs::tlib

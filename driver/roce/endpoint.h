// SPDX-License-Identifier: Apache-2.0
//
// What the two ends of a reliable connection tell each other before the first packet, whatever kind of RNIC each has.
//
// Thread-safety: values and free functions.
// Errors:        EPROTO: not an endpoint, or one that makes no sense; of what a peer sends nothing else is trusted.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "driver/nic.h"

namespace termfs::driver {

bool IsIpv4(const Gid& gid);
std::string ToString(const Gid& gid);

namespace roce {

// What the packets go through: UDP, as RoCE v2, or InfiniBand's own links, on which a port has a local identifier
// (LID).
enum class LinkLayer : uint8_t { kEthernet, kInfiniBand };

struct EndpointInfo {
  uint32_t queue_pair = 0;
  uint32_t first_sequence = 0;  // of the packets it sends
  uint32_t mtu = 0;             // payload that fits into a packet, as this end sees it: 256, 512, ... 4096
  uint32_t max_reads = 0;       // READs and atomics that this end answers at a time
  Gid gid{};
  uint16_t port = 0;  // UDP port on which it receives: an RNIC knows 4791 only
  uint16_t lid = 0;   // on InfiniBand; 0: on Ethernet
  // It sends from `port`, too, which an RNIC does not: a software RNIC of this kind.
  bool sends_from_port = false;
};

Endpoint Encode(const EndpointInfo& info);
// REQUIRES of the peer: it is on the same link layer. On Ethernet its own address is the one at which it is reached,
// `remote`; RoCE does not go through address translation.
Result<EndpointInfo> Decode(const Endpoint& endpoint, const Gid& remote, LinkLayer link = LinkLayer::kEthernet);
}  // namespace roce
}  // namespace termfs::driver

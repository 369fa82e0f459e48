// SPDX-License-Identifier: Apache-2.0
#include "driver/roce/endpoint.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "driver/roce/packet.h"

namespace termfs::driver {
namespace {

constexpr uint64_t kMagic = 0x3145434f524d5254;  // "TRMROCE1"
constexpr uint32_t kLeastMtu = 256;
constexpr uint32_t kLargestMtu = 4096;
constexpr size_t kIpv4At = 12;         // in a Gid
constexpr uint16_t kLastLid = 0xbfff;  // above are those of multicast groups

// Little-endian, as the machines are.
struct EndpointBytes {
  uint64_t magic;
  uint32_t queue_pair;
  uint32_t first_sequence;
  uint32_t mtu;
  uint32_t max_reads;
  Gid gid;
  uint16_t port;
  uint16_t lid;
  uint16_t sends_from_port;  // 1 or 0
  uint16_t unused;
};
static_assert(sizeof(EndpointBytes) == 48);

bool IsMtu(uint32_t mtu) { return mtu >= kLeastMtu && mtu <= kLargestMtu && (mtu & (mtu - 1)) == 0; }

}  // namespace

bool IsIpv4(const Gid& gid) {
  constexpr std::array<std::byte, kIpv4At> kMapped = {std::byte{0}, std::byte{0}, std::byte{0},    std::byte{0},
                                                      std::byte{0}, std::byte{0}, std::byte{0},    std::byte{0},
                                                      std::byte{0}, std::byte{0}, std::byte{0xff}, std::byte{0xff}};
  return std::equal(kMapped.begin(), kMapped.end(), gid.begin());
}

std::string ToString(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool ipv4 = IsIpv4(gid);
  inet_ntop(ipv4 ? AF_INET : AF_INET6, gid.data() + (ipv4 ? kIpv4At : 0), text.data(), text.size());
  return text.data();
}

namespace roce {

Endpoint Encode(const EndpointInfo& info) {
  const EndpointBytes wire{.magic = kMagic,
                           .queue_pair = info.queue_pair,
                           .first_sequence = info.first_sequence,
                           .mtu = info.mtu,
                           .max_reads = info.max_reads,
                           .gid = info.gid,
                           .port = info.port,
                           .lid = info.lid,
                           .sends_from_port = info.sends_from_port ? uint16_t{1} : uint16_t{0},
                           .unused = 0};
  Endpoint endpoint;
  endpoint.bytes.resize(sizeof(wire));
  std::memcpy(endpoint.bytes.data(), &wire, sizeof(wire));
  return endpoint;
}

Result<EndpointInfo> Decode(const Endpoint& endpoint, const Gid& remote, LinkLayer link) {
  EndpointBytes wire{};
  if (endpoint.bytes.size() != sizeof(wire)) {
    return Status::Error(EPROTO, "the peer's endpoint is not one of RoCE");
  }
  std::memcpy(&wire, endpoint.bytes.data(), sizeof(wire));
  if (wire.magic != kMagic || wire.queue_pair < 2 || wire.queue_pair > kSequenceMask || !IsMtu(wire.mtu) ||
      wire.max_reads == 0 || wire.port == 0 || wire.lid > kLastLid) {
    return Status::Error(EPROTO, "the peer's endpoint makes no sense");
  }
  if ((wire.lid != 0) != (link == LinkLayer::kInfiniBand)) {
    return Status::Error(EPROTO, link == LinkLayer::kEthernet
                                     ? "the peer's RDMA device is on InfiniBand, this end is on Ethernet (RoCE v2)"
                                     : "the peer is on Ethernet (RoCE v2), this end's RDMA device is on InfiniBand");
  }
  if (link == LinkLayer::kEthernet && wire.gid != remote) {
    return Status::Error(EPROTO, "the peer calls itself " + ToString(wire.gid) + " and is seen as " + ToString(remote) +
                                     ": RoCE does not go through address translation");
  }
  return EndpointInfo{.queue_pair = wire.queue_pair,
                      .first_sequence = wire.first_sequence & kSequenceMask,
                      .mtu = wire.mtu,
                      .max_reads = wire.max_reads,
                      .gid = wire.gid,
                      .port = wire.port,
                      .lid = wire.lid,
                      .sends_from_port = wire.sends_from_port != 0};
}

}  // namespace roce
}  // namespace termfs::driver

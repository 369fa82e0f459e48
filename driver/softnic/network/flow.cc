// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/flow.h"

#include <algorithm>
#include <cstring>

namespace termfs::driver::softnic {
namespace {

constexpr size_t kIpv4At = 12;  // in a Gid
constexpr size_t kIpv4Bytes = 20;
constexpr size_t kUdpBytes = 8;

void Put16(std::byte* to, size_t value) {
  to[0] = static_cast<std::byte>(value >> 8);
  to[1] = static_cast<std::byte>(value);
}

}  // namespace

Gid GidOf(const sockaddr_storage& address) {
  Gid gid{};
  if (address.ss_family == AF_INET6) {
    std::memcpy(gid.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, gid.size());
  } else {
    gid[10] = gid[11] = std::byte{0xff};
    std::memcpy(gid.data() + kIpv4At, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, sizeof(in_addr));
  }
  return gid;
}

uint16_t PortOf(const sockaddr_storage& address) {
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

SocketAddress::SocketAddress(const Gid& gid, uint16_t port, uint32_t interface) {
  if (IsIpv4(gid)) {
    auto& address = *reinterpret_cast<sockaddr_in*>(&storage);
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    std::memcpy(&address.sin_addr, gid.data() + kIpv4At, sizeof(address.sin_addr));
    length = sizeof(address);
    return;
  }
  auto& address = *reinterpret_cast<sockaddr_in6*>(&storage);
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  address.sin6_scope_id = interface;
  std::memcpy(&address.sin6_addr, gid.data(), gid.size());
  length = sizeof(address);
}

Flow::Flow(const Gid& from, uint16_t from_port, const Gid& to, uint16_t to_port, uint32_t interface)
    : ipv4_(IsIpv4(from)), from_(from), destination_(to, to_port, interface) {
  if (ipv4_) {
    ip_[0] = std::byte{0x45};
    ip_[6] = std::byte{0x40};  // do not fragment; so the kernel leaves the identification 0
    ip_[9] = std::byte{IPPROTO_UDP};
    std::copy(from.begin() + kIpv4At, from.end(), ip_.begin() + 12);
    std::copy(to.begin() + kIpv4At, to.end(), ip_.begin() + 16);
  } else {
    ip_[0] = std::byte{0x60};
    ip_[6] = std::byte{IPPROTO_UDP};
    std::copy(from.begin(), from.end(), ip_.begin() + 8);
    std::copy(to.begin(), to.end(), ip_.begin() + 24);
  }
  Put16(&udp_[0], from_port);
  Put16(&udp_[2], to_port);
}

roce::InvariantCrc Flow::CrcOf(std::span<const std::byte> transport) const {
  const size_t datagram = kUdpBytes + transport.size() + roce::kCrcBytes;
  auto ip = ip_;
  auto udp = udp_;
  Put16(&udp[4], datagram);
  if (ipv4_) {
    Put16(&ip[2], kIpv4Bytes + datagram);
    return roce::InvariantCrcOf4(std::span(ip).first<kIpv4Bytes>(), udp, transport);
  }
  Put16(&ip[4], datagram);
  return roce::InvariantCrcOf6(ip, udp, transport);
}

}  // namespace termfs::driver::softnic

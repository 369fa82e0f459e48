// SPDX-License-Identifier: Apache-2.0
//
// Flow: the datagrams from one port of one host to one of another, with what the invariant CRC covers of their IP and
// UDP headers.
//
// Thread-safety: const after construction.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "driver/nic.h"
#include "driver/roce/endpoint.h"
#include "driver/roce/packet.h"

namespace termfs::driver::softnic {

// Of what a socket call has filled in.
Gid GidOf(const sockaddr_storage& address);
uint16_t PortOf(const sockaddr_storage& address);

// A socket's address.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  SocketAddress() = default;
  SocketAddress(const Gid& gid, uint16_t port, uint32_t interface);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

class Flow {
 public:
  Flow(const Gid& from, uint16_t from_port, const Gid& to, uint16_t to_port, uint32_t interface = 0);

  bool ipv4() const { return ipv4_; }
  const Gid& from() const { return from_; }
  const SocketAddress& destination() const { return destination_; }
  // Of a datagram that carries `transport` and the CRC.
  roce::InvariantCrc CrcOf(std::span<const std::byte> transport) const;

 private:
  const bool ipv4_;
  const Gid from_;
  const SocketAddress destination_;
  // Headers as far as they are the same in all datagrams.
  std::array<std::byte, 40> ip_{};
  std::array<std::byte, 8> udp_{};
};

}  // namespace termfs::driver::softnic

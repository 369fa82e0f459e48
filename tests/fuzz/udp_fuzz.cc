// SPDX-License-Identifier: Apache-2.0
//
// Any datagrams for a port of RoCE's, sent over the loopback interface: one by one, as runs that the kernel cuts and
// puts together again, and over IPv4 with headers of the sender's own making. What comes out of the port are the
// packets with the right CRC, each once and in order, and nothing else.
//
// The first byte chooses the port: IPv6, IPv4, or IPv4 through a raw socket, where this user may have one. Then a row
// of datagrams: a byte of flags (1: with the right CRC; 2: several of them, as a run; 4: with headers of its own), a
// byte with the length, so many bytes.
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "driver/softnic/network/udp_port.h"

namespace termfs::driver::softnic {
namespace {

using Bytes = std::vector<std::byte>;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{10};
constexpr size_t kRun = 3;
constexpr uint16_t kIdentification = 7;  // the kernel replaces 0
constexpr size_t kOwnHeaderBytes = 4;    // of the input: UDP's length and checksum

Gid Loopback(bool ipv4) {
  Gid gid{};
  gid[15] = std::byte{1};
  if (ipv4) {
    gid[10] = gid[11] = std::byte{0xff};
    gid[12] = std::byte{127};
  }
  return gid;
}

class Site {
 public:
  static std::unique_ptr<Site> Make(bool ipv4, UdpPort::Use use) {
    auto site = std::make_unique<Site>();
    site->local_ = Loopback(ipv4);
    auto port = UdpPort::Open(site->local_, 0, use, site->counters_, nullptr);
    if (!port.ok()) {
      return nullptr;
    }
    site->port_ = std::move(*port);
    site->sender_ = UniqueFd(socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const int never = ipv4 ? int{IP_PMTUDISC_DO} : int{IPV6_PMTUDISC_DO};
    SocketAddress own(site->local_, 0, 0);
    TERMFS_CHECK(setsockopt(site->sender_.get(), ipv4 ? int{IPPROTO_IP} : int{IPPROTO_IPV6},
                            ipv4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER, &never, sizeof(never)) == 0 &&
                 bind(site->sender_.get(), own.get(), own.length) == 0 &&
                 getsockname(site->sender_.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.length) == 0);
    site->sender_port_ = PortOf(own.storage);
    if (ipv4 && use == UdpPort::Use::kShared) {
      site->raw_ = UniqueFd(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW));
    }
    site->flow_ = std::make_unique<Flow>(site->local_, site->sender_port_, site->local_, site->port_->number());
    return site;
  }

  void Try(std::span<const std::byte> input) {
    while (input.size() >= 2) {
      const uint8_t flags = std::to_integer<uint8_t>(input[0]);
      const size_t length = std::min<size_t>(std::to_integer<size_t>(input[1]), input.size() - 2);
      const auto bytes = input.subspan(2, length);
      input = input.subspan(2 + length);
      if ((flags & 4) != 0 && raw_.valid() && length >= kOwnHeaderBytes) {
        SendWithHeaders(bytes, (flags & 1) != 0);
      } else {
        Send(bytes, (flags & 1) != 0, (flags & 2) != 0 && !IsIpv4(local_) ? kRun : 1);
      }
    }
    Receive();
  }

 private:
  void Expect(const Bytes& datagram, const roce::InvariantCrc* crc) {
    if (datagram.empty() && port_->fd() != -1 && !raw_.valid()) {
      return;  // there is nothing to count
    }
    sent_++;
    if (crc != nullptr && std::equal(crc->begin(), crc->end(), datagram.end() - roce::kCrcBytes)) {
      expected_.emplace_back(datagram.begin(), datagram.end() - roce::kCrcBytes);
    }
  }

  void Send(std::span<const std::byte> bytes, bool sealed, size_t times) {
    Bytes datagram(bytes.begin(), bytes.end());
    const bool whole = datagram.size() >= roce::kLeastPacketBytes;
    if (sealed && whole) {
      const roce::InvariantCrc crc = flow_->CrcOf(datagram);
      datagram.insert(datagram.end(), crc.begin(), crc.end());
    }
    Bytes run;
    for (size_t i = 0; i < times; i++) {
      run.insert(run.end(), datagram.begin(), datagram.end());
    }
    iovec data{run.data(), run.size()};
    msghdr header{};
    header.msg_name = const_cast<sockaddr*>(flow_->destination().get());
    header.msg_namelen = flow_->destination().length;
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(uint16_t))> control{};
    if (times > 1 && !datagram.empty()) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      cmsghdr* const segment = CMSG_FIRSTHDR(&header);
      segment->cmsg_level = IPPROTO_UDP;
      segment->cmsg_type = UDP_SEGMENT;
      segment->cmsg_len = CMSG_LEN(sizeof(uint16_t));
      const auto size = static_cast<uint16_t>(datagram.size());
      std::memcpy(CMSG_DATA(segment), &size, sizeof(size));
    }
    if (sendmsg(sender_.get(), &header, 0) != static_cast<ssize_t>(run.size())) {
      return;
    }
    roce::InvariantCrc crc{};
    const bool long_enough = datagram.size() >= roce::kLeastPacketBytes + roce::kCrcBytes;
    if (long_enough) {
      crc = flow_->CrcOf(std::span(datagram).first(datagram.size() - roce::kCrcBytes));
    }
    for (size_t i = 0; i < times; i++) {
      Expect(datagram, long_enough ? &crc : nullptr);
    }
  }

  void SendWithHeaders(std::span<const std::byte> bytes, bool sealed) {
    std::array<std::byte, sizeof(iphdr)> ip_bytes{};
    iphdr ip{};
    ip.version = 4;
    ip.ihl = 5;
    ip.id = htons(kIdentification);
    ip.ttl = 64;
    ip.protocol = IPPROTO_UDP;
    ip.saddr = ip.daddr = htonl(INADDR_LOOPBACK);
    udphdr udp{};
    udp.source = htons(sender_port_);
    udp.dest = htons(port_->number());
    std::memcpy(&udp.len, bytes.data(), sizeof(udp.len));
    std::memcpy(&udp.check, bytes.data() + sizeof(udp.len), sizeof(udp.check));
    Bytes transport(bytes.begin() + kOwnHeaderBytes, bytes.end());
    const bool whole = transport.size() >= roce::kLeastPacketBytes;
    ip.tot_len = htons(
        static_cast<uint16_t>(sizeof(ip) + sizeof(udp) + transport.size() + (sealed && whole ? roce::kCrcBytes : 0)));
    std::array<std::byte, sizeof(udp)> udp_bytes{};
    std::memcpy(ip_bytes.data(), &ip, sizeof(ip));
    std::memcpy(udp_bytes.data(), &udp, sizeof(udp));
    if (sealed && whole) {
      const roce::InvariantCrc crc = roce::InvariantCrcOf4(ip_bytes, udp_bytes, transport);
      transport.insert(transport.end(), crc.begin(), crc.end());
    }
    Bytes packet(ip_bytes.begin(), ip_bytes.end());
    packet.insert(packet.end(), udp_bytes.begin(), udp_bytes.end());
    packet.insert(packet.end(), transport.begin(), transport.end());
    const SocketAddress to(local_, 0, 0);
    if (sendto(raw_.get(), packet.data(), packet.size(), 0, to.get(), to.length) !=
        static_cast<ssize_t>(packet.size())) {
      return;
    }
    roce::InvariantCrc crc{};
    const bool long_enough = transport.size() >= roce::kLeastPacketBytes + roce::kCrcBytes;
    if (long_enough) {
      crc = roce::InvariantCrcOf4(ip_bytes, udp_bytes, std::span(transport).first(transport.size() - roce::kCrcBytes));
    }
    Expect(transport, long_enough ? &crc : nullptr);
  }

  void Receive() {
    std::vector<Bytes> taken;
    const auto deadline = steady_clock::now() + kPatience;
    const auto take = [&](std::span<const std::byte> packet, const PacketSource& from) {
      TERMFS_CHECK(from.address == local_ && from.port == sender_port_);
      taken.emplace_back(packet.begin(), packet.end());
    };
    while (port_->Receive(UdpPort::BuffersOfThisThread(), take) || counters_.packets_received < sent_) {
      TERMFS_CHECK(steady_clock::now() < deadline);
    }
    TERMFS_CHECK(counters_.packets_received == sent_ && taken == expected_);
    refused_ += sent_ - expected_.size();
    TERMFS_CHECK(counters_.malformed + counters_.wrong_crc == refused_);
    counters_.packets_received = 0;
    sent_ = 0;
    expected_.clear();
  }

  Gid local_{};
  NetworkCounters counters_;
  std::unique_ptr<UdpPort> port_;
  UniqueFd sender_;
  UniqueFd raw_;
  uint16_t sender_port_ = 0;
  std::unique_ptr<Flow> flow_;
  uint64_t sent_ = 0;
  uint64_t refused_ = 0;
  std::vector<Bytes> expected_;
};

}  // namespace
}  // namespace termfs::driver::softnic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using termfs::driver::softnic::Site;
  using termfs::driver::softnic::UdpPort;
  static const std::array<std::unique_ptr<Site>, 3> kSites = [] {
    TERMFS_CHECK(termfs::StartLog(termfs::LogLevel::kError).ok());
    return std::array<std::unique_ptr<Site>, 3>{Site::Make(false, UdpPort::Use::kOwn),
                                                Site::Make(true, UdpPort::Use::kOwn),
                                                Site::Make(true, UdpPort::Use::kShared)};
  }();
  if (size > 0) {
    if (Site* const site = kSites[data[0] % kSites.size()].get(); site != nullptr) {
      site->Try({reinterpret_cast<const std::byte*>(data + 1), size - 1});
    }
  }
  return 0;
}

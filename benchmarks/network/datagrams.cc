// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/network/datagrams.h"

#include <netinet/in.h>
#include <netinet/udp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <span>

#include "benchmarks/network/sockets.h"

namespace termfs::benchmarks {
namespace {

constexpr size_t kRequestBytes = 12 + 16 + 4;  // of RoCE: BTH, RETH and CRC
constexpr size_t kPagesOfSend = 15;
// Without jumbo frames a page is four packets, of which the first and the last are longer than the others. Only the
// last of those that go as one may be shorter: the last of a page and the next one's first two, then a third alone.
constexpr uint16_t kPartBytes = kSmall / 4;
constexpr size_t kFirstParts = 3;

// A socket for datagrams, with room for all that are under way.
UniqueFd DatagramSocket(const sockaddr_in6* local) {
  UniqueFd socket(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP));
  constexpr int kBytes = 8 << 20;
  constexpr int kYes = 1;
  CheckIo(setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUFFORCE, &kBytes, sizeof(kBytes)) == 0, "SO_RCVBUFFORCE");
  CheckIo(setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kBytes, sizeof(kBytes)) == 0, "SO_SNDBUFFORCE");
  CheckIo(setsockopt(socket.get(), IPPROTO_UDP, UDP_GRO, &kYes, sizeof(kYes)) == 0, "UDP_GRO");
  if (local != nullptr) {
    CheckIo(bind(socket.get(), reinterpret_cast<const sockaddr*>(local), sizeof(*local)) == 0, "bind");
  }
  return socket;
}

// Some sends, as one system call. Of each the kernel makes datagrams.
class Sends {
 public:
  // Datagrams of `segment` bytes. `parts` stay as they are until Go().
  void Add(std::span<iovec> parts, uint16_t segment) {
    msghdr& message = messages_[count_].msg_hdr;
    message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    message.msg_control = controls_[count_].bytes.data();
    message.msg_controllen = controls_[count_].bytes.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = IPPROTO_UDP;
    header->cmsg_type = UDP_SEGMENT;
    header->cmsg_len = CMSG_LEN(sizeof(segment));
    std::memcpy(CMSG_DATA(header), &segment, sizeof(segment));
    count_++;
  }
  void Go(int socket) {
    for (size_t first = 0; first < count_;) {
      const int sent = sendmmsg(socket, &messages_[first], static_cast<unsigned>(count_ - first), 0);
      if (sent < 0 && errno == EAGAIN) {
        WaitToWrite(socket);
        continue;
      }
      CheckIo(sent > 0, "sendmmsg");
      first += static_cast<size_t>(sent);
    }
    count_ = 0;
  }

 private:
  struct Control {
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(uint16_t))> bytes{};
  };
  size_t count_ = 0;
  std::array<mmsghdr, 2 * kDepth> messages_{};
  std::array<Control, 2 * kDepth> controls_{};
};

void SendPages(int socket, bool jumbo, std::span<std::byte* const> pages) {
  Sends sends;
  std::array<iovec, 2 * kDepth> parts{};
  size_t used = 0;
  for (size_t i = 0; i < pages.size(); i++) {
    if (jumbo) {
      parts[i] = {pages[i], kSmall};
    } else {
      const size_t first = kFirstParts * size_t{kPartBytes};
      parts[used] = {pages[i], first};
      parts[used + 1] = {pages[i] + first, kSmall - first};
      sends.Add({&parts[used], 1}, kPartBytes);
      sends.Add({&parts[used + 1], 1}, kPartBytes);
      used += 2;
    }
  }
  for (size_t first = 0; jumbo && first < pages.size(); first += kPagesOfSend) {
    sends.Add(std::span(parts).subspan(first, std::min(kPagesOfSend, pages.size() - first)), kSmall);
  }
  sends.Go(socket);
}

}  // namespace

void ServeDatagrams(std::byte* frames, int socket) {
  sockaddr_in6 local{};
  socklen_t length = sizeof(local);
  CheckIo(getsockname(socket, reinterpret_cast<sockaddr*>(&local), &length) == 0, "getsockname");
  local.sin6_port = 0;
  const UniqueFd datagrams = DatagramSocket(&local);
  CheckIo(getsockname(datagrams.get(), reinterpret_cast<sockaddr*>(&local), &length) == 0, "getsockname");
  SendAll(socket, &local, sizeof(local));
  sockaddr_in6 peer{};
  CheckIo(ReceiveAll(socket, &peer, sizeof(peer)), "a port");
  CheckIo(connect(datagrams.get(), reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) == 0, "connect");
  int mtu = 0;
  length = sizeof(mtu);
  CheckIo(getsockopt(datagrams.get(), IPPROTO_IPV6, IPV6_MTU, &mtu, &length) == 0, "IPV6_MTU");
  const UniqueFd epoll = Watch(datagrams.get());
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.fd = socket;
  CheckIo(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket, &event) == 0, "epoll");
  std::array<std::byte, kDepth * kRequestBytes> requests{};
  while (epoll_wait(epoll.get(), &event, 1, -1) == 1 && event.data.fd != socket) {
    size_t count = 0;
    std::array<std::byte*, kDepth> pages{};
    for (ssize_t got = 0; count < kDepth && (got = recv(datagrams.get(), requests.data(), requests.size(), 0)) > 0;) {
      for (size_t at = 0; at < static_cast<size_t>(got) && count < kDepth; at += kRequestBytes) {
        uint64_t offset = 0;
        std::memcpy(&offset, &requests[at], sizeof(offset));
        pages[count++] = frames + offset;
      }
    }
    SendPages(datagrams.get(), mtu > static_cast<int>(kSmall), std::span(pages).first(count));
  }
}

Datagrams::Datagrams(const tlib::HostPort& place)
    : socket_(Dial(place, Mode::kDatagrams)), datagrams_(DatagramSocket(nullptr)), buffer_(size_t{64} << 10) {
  sockaddr_in6 server{};
  sockaddr_in6 local{};
  socklen_t length = sizeof(local);
  CheckIo(ReceiveAll(socket_.get(), &server, sizeof(server)), "a port");
  CheckIo(connect(datagrams_.get(), reinterpret_cast<const sockaddr*>(&server), sizeof(server)) == 0, "connect");
  CheckIo(getsockname(datagrams_.get(), reinterpret_cast<sockaddr*>(&local), &length) == 0, "getsockname");
  SendAll(socket_.get(), &local, sizeof(local));
  epoll_ = Watch(datagrams_.get());
}

uint64_t Datagrams::Run(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Ask(kDepth);
  uint64_t asked = kDepth;
  uint64_t bytes = 0;
  while (bytes < asked * kSmall) {
    epoll_event event{};
    CheckIo(epoll_wait(epoll_.get(), &event, 1, 1000) == 1, "a datagram was lost");
    const uint64_t pages = bytes / kSmall;
    for (ssize_t got = 0; (got = recv(datagrams_.get(), buffer_.data(), buffer_.size(), 0)) > 0;) {
      bytes += static_cast<uint64_t>(got);
    }
    if (const uint64_t more = bytes / kSmall - pages; more > 0 && std::chrono::steady_clock::now() < end) {
      Ask(more);
      asked += more;
    }
  }
  return bytes;
}

void Datagrams::Ask(size_t count) {
  std::array<std::byte, kDepth * kRequestBytes> requests{};
  for (size_t i = 0; i < count; i++) {
    const uint64_t offset = random_.Below(kRegionPages) << kPageBits;
    std::memcpy(&requests[i * kRequestBytes], &offset, sizeof(offset));
  }
  iovec part{requests.data(), count * kRequestBytes};
  Sends sends;
  sends.Add({&part, 1}, kRequestBytes);
  sends.Go(datagrams_.get());
}

}  // namespace termfs::benchmarks

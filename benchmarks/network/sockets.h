// SPDX-License-Identifier: Apache-2.0
//
// What the contenders of network_bench share: how much they ask for, and sockets. An error ends the program.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/page.h"
#include "base/stream_socket.h"
#include "base/tls.h"
#include "base/unique_fd.h"
#include "benchmarks/must.h"
#include "driver/nic.h"
#include "tlib/rpc/tcp_socket.h"

namespace termfs::benchmarks {

inline constexpr uint64_t kRegionPages = 16 << 10;  // 64 MiB
inline constexpr size_t kDepth = 32;
inline constexpr size_t kSmall = kPageSize;
inline constexpr size_t kLarge = 1 << 20;

enum class Mode : uint8_t {
  kRdma = 1,
  kRequests = 2,
  kStream = 3,
  kDatagrams = 4,
  kIwarp = 5,
  kCheckedRequests = 6,
  kCheckedStream = 7,
  kIwarpTls = 8,
  kTlsRequests = 9,
  kTlsStream = 10
};

inline void CheckIo(bool ok, const char* what) {
  if (!ok) {
    std::perror(what);
    std::exit(1);
  }
}

inline void SendAll(int socket, const void* data, size_t size) {
  CheckIo(send(socket, data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size), "send");
}
inline bool ReceiveAll(int socket, void* data, size_t size) {
  return recv(socket, data, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

inline constexpr size_t kSealed = 64 << 10;  // at a time, as streams of iWARP do it
inline constexpr std::string_view kProtocols[] = {"bench/1", driver::kDataProtocol};

inline TlsKey BenchKey() { return Must(DeriveTlsKey(std::array<std::byte, 32>{}, "bench")); }
inline std::chrono::steady_clock::time_point Soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(10);
}
// Both ends; what is sent behind the handshake waits for its end, but for what is returned.
inline std::vector<std::byte> Secure(int socket, TlsSession& session) {
  return Must(ShakeHands(socket, session, Soon()));
}

inline void WaitToRead(int epoll) {
  epoll_event event{};
  CheckIo(epoll_wait(epoll, &event, 1, -1) == 1, "epoll_wait");
}
inline void WaitToWrite(int socket) {
  pollfd waiting{socket, POLLOUT, 0};
  CheckIo(poll(&waiting, 1, -1) == 1, "poll");
}
inline UniqueFd Watch(int socket) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = socket;
  CheckIo(epoll.valid() && epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket, &event) == 0, "epoll");
  CheckIo(fcntl(socket, F_SETFL, O_NONBLOCK) == 0, "fcntl");
  return epoll;
}

// Tells the server what it is wanted for.
inline UniqueFd Dial(const tlib::HostPort& place, Mode mode) {
  UniqueFd socket = Must(tlib::ConnectTcp(place, std::chrono::steady_clock::now() + std::chrono::seconds(10)));
  CheckIo(fcntl(socket.get(), F_SETFL, 0) == 0, "fcntl");
  SendAll(socket.get(), &mode, sizeof(mode));
  return socket;
}

}  // namespace termfs::benchmarks

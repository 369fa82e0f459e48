// SPDX-License-Identifier: Apache-2.0
#include "tlib/rpc/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/stream_socket.h"

namespace termfs::tlib {
namespace {

using std::chrono::steady_clock;

constexpr int kIdleSeconds = 5;  // then it is asked whether it is there
constexpr int kAskSeconds = 2;
constexpr int kAsks = 3;
static_assert(kIdleSeconds + kAsks * kAskSeconds == kDeadAfter.count());
constexpr int kBacklog = 64;

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Result<Addresses> Resolve(const HostPort& place, bool to_listen) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &found);
  if (error != 0) {
    return Status::Error(EHOSTUNREACH, "host " + place.host + ": " + gai_strerror(error));
  }
  return Addresses(found, &freeaddrinfo);
}

Status SetOption(int socket, int level, int name, int value) {
  return setsockopt(socket, level, name, &value, sizeof(value)) == 0 ? Status::Ok()
                                                                     : ErrnoStatus("set an option of a TCP socket");
}

Result<UniqueFd> NewSocket(const addrinfo& address, uint32_t segment_limit = 0) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    return ErrnoStatus("create a TCP socket");
  }
  RETURN_IF_ERROR(SetTcpOptions(fd.get()));
  if (segment_limit != 0) {  // the SYN announces it, so the peer's segments are no larger either
    RETURN_IF_ERROR(SetOption(fd.get(), IPPROTO_TCP, TCP_MAXSEG, static_cast<int>(segment_limit)));
  }
  return fd;
}

Status AwaitConnection(int fd, steady_clock::time_point deadline) {
  RETURN_IF_ERROR(WaitFor(fd, POLLOUT, deadline));
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  errno = error;
  return error == 0 ? Status::Ok() : ErrnoStatus("connect");
}

HostPort PlaceOf(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {.host = {}, .port = 0};
  }
  return {.host = host, .port = static_cast<uint16_t>(std::strtoul(port, nullptr, 10))};
}

driver::Gid GidOf(const sockaddr_storage& address) {
  driver::Gid gid{};
  if (address.ss_family == AF_INET6) {
    std::memcpy(gid.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, gid.size());
    return gid;
  }
  gid[10] = gid[11] = std::byte{0xff};
  std::memcpy(gid.data() + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, sizeof(in_addr));
  return gid;
}

}  // namespace

Result<driver::NetworkPath> NetworkPathOf(int socket) {
  sockaddr_storage local{};
  sockaddr_storage remote{};
  socklen_t local_length = sizeof(local);
  socklen_t remote_length = sizeof(remote);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&local), &local_length) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&remote), &remote_length) != 0) {
    return ErrnoStatus("ask for the addresses of a connection");
  }
  driver::NetworkPath path;
  path.local = GidOf(local);
  path.remote = GidOf(remote);
  path.remote_port = ntohs(remote.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(remote).sin6_port
                                                        : reinterpret_cast<const sockaddr_in&>(remote).sin_port);
  if (local.ss_family == AF_INET6) {
    path.interface = reinterpret_cast<const sockaddr_in6&>(local).sin6_scope_id;
  }
  return path;
}

Status SetTcpOptions(int socket) {
  RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1));
  RETURN_IF_ERROR(SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1));
  RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds));
  RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, kAskSeconds));
  RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, kAsks));
  return SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(kDeadAfter.count() * 1000));
}

void ResetTcp(int socket) {
  const sockaddr nowhere{.sa_family = AF_UNSPEC, .sa_data = {}};
  if (connect(socket, &nowhere, sizeof(nowhere)) != 0) {
    shutdown(socket, SHUT_RDWR);  // it wakes those who wait, which is what nobody can do without
  }
}

bool HasHungUp(int socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_CLOSE_WAIT;
}

Result<UniqueFd> ConnectTcp(const HostPort& place, steady_clock::time_point deadline, uint32_t segment_limit) {
  ASSIGN_OR_RETURN(const Addresses addresses, Resolve(place, false));
  Status failed = Status::Error(EHOSTUNREACH, "it has no address");
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(*address, segment_limit));
    failed = Status::Ok();
    if (connect(fd.get(), address->ai_addr, address->ai_addrlen) != 0) {
      failed = errno == EINPROGRESS ? AwaitConnection(fd.get(), deadline) : ErrnoStatus("connect");
    }
    if (failed.ok()) {
      return fd;
    }
  }
  return std::move(failed).WithContext("no server at " + ToString(place));
}

Result<std::vector<UniqueFd>> ListenTcp(const HostPort& place) {
  ASSIGN_OR_RETURN(const Addresses addresses, Resolve(place, true));
  std::vector<UniqueFd> sockets;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(*address));
    RETURN_IF_ERROR(SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1));
    if (address->ai_family == AF_INET6) {
      RETURN_IF_ERROR(SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1));
    }
    if (bind(fd.get(), address->ai_addr, address->ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0) {
      return ErrnoStatus("listen on " + ToString(place));
    }
    sockets.push_back(std::move(fd));
  }
  return sockets;
}

std::vector<uint8_t> FullSegment(int socket) {
  constexpr int kMost =
      16 << 10;  // of Ethernet's largest frames, 9000 bytes, and more; a loopback interface's are 64 KiB
  int bytes = 0;
  socklen_t length = sizeof(bytes);
  const bool known = getsockopt(socket, IPPROTO_TCP, TCP_MAXSEG, &bytes, &length) == 0;
  return std::vector<uint8_t>(static_cast<size_t>(known ? std::clamp(bytes, 0, kMost) : 0));
}

HostPort PeerOf(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return {.host = {}, .port = 0};
  }
  return PlaceOf(address, length);
}

HostPort LocalPlaceOf(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return {.host = {}, .port = 0};
  }
  return PlaceOf(address, length);
}

}  // namespace termfs::tlib

// SPDX-License-Identifier: Apache-2.0
#include "base/stream_socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/tls.h"

namespace termfs {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Status WaitFor(int socket, short events, steady_clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count();
    if (left <= 0) {
      return Status::Error(ETIMEDOUT, "the other end of a connection does not answer");
    }
    pollfd waited{.fd = socket, .events = events, .revents = 0};
    const int ready = poll(&waited, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready > 0) {
      return Status::Ok();
    }
    if (ready < 0 && errno != EINTR) {
      return ErrnoStatus("wait for a connection");
    }
  }
}

Status SendAll(int socket, std::span<const std::byte> bytes, steady_clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline));
    } else if (errno == EPIPE) {
      return Status::Error(ECONNRESET, "the other end has closed the connection");
    } else if (errno != EINTR) {
      return ErrnoStatus("send on a connection");
    }
  }
  return Status::Ok();
}

Result<size_t> ReceiveSome(int socket, std::span<std::byte> to) {
  for (;;) {
    const ssize_t got = recv(socket, to.data(), to.size(), MSG_DONTWAIT);
    if (got > 0) {
      return static_cast<size_t>(got);
    }
    if (got == 0) {
      return Status::Error(ECONNRESET, "the other end has closed the connection");
    }
    if (errno == EAGAIN) {
      return size_t{0};
    }
    if (errno != EINTR) {
      return ErrnoStatus("receive on a connection");
    }
  }
}

Result<std::vector<std::byte>> ShakeHands(int socket, TlsSession& session, steady_clock::time_point deadline) {
  std::array<std::byte, 4096> some;
  std::span<const std::byte> received;
  for (;;) {
    const Status done = session.Handshake(received);
    const Status sent = SendAll(socket, session.TakeOutput(), deadline);
    RETURN_IF_ERROR(done);
    RETURN_IF_ERROR(sent);
    if (session.established()) {
      return std::vector<std::byte>(received.begin(), received.end());
    }
    RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline));
    ASSIGN_OR_RETURN(const size_t got, ReceiveSome(socket, some));
    received = std::span(some).first(got);
  }
}

}  // namespace termfs

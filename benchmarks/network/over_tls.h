// SPDX-License-Identifier: Apache-2.0
//
// What network_bench compares iWARP inside TLS with: requests of pages, and a stream, over the same TLS.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/tls.h"
#include "benchmarks/network/sockets.h"

namespace termfs::benchmarks {

inline bool SendSealed(int socket, TlsSession& tls, std::span<const std::byte> message, std::span<std::byte> buffer) {
  std::span<const std::byte> left = buffer.first(Must(tls.Seal(message, buffer)));
  while (!left.empty()) {
    const ssize_t sent = send(socket, left.data(), left.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) {
      WaitToWrite(socket);
    } else if (sent <= 0) {
      return false;
    } else {
      left = left.subspan(static_cast<size_t>(sent));
    }
  }
  return true;
}

// The same inside TLS: pages are copied together, and sealed together.
inline void ServeTlsRequests(const std::byte* frames, int socket, TlsSession& tls) {
  const std::vector<std::byte> early = Secure(socket, tls);
  std::vector<std::byte> received(kSealed);
  std::vector<std::byte> opened(TlsSession::OpenedBytes(kSealed));
  std::vector<std::byte> pages(kSealed);
  std::vector<std::byte> sealed(TlsSession::SealedBytes(kSealed));
  size_t have = Must(tls.Open(early, opened));
  const UniqueFd epoll = Watch(socket);
  while (true) {
    const size_t count = std::min(have / sizeof(uint64_t), kSealed / kSmall);
    if (count == 0) {
      WaitToRead(epoll.get());
      const ssize_t got = recv(socket, received.data(), received.size() / 2, 0);
      if (got <= 0) {
        return;
      }
      have += Must(tls.Open(std::span(received).first(static_cast<size_t>(got)), std::span(opened).subspan(have)));
      continue;
    }
    for (size_t i = 0; i < count; i++) {
      uint64_t offset = 0;
      std::memcpy(&offset, opened.data() + i * sizeof(offset), sizeof(offset));
      std::memcpy(pages.data() + i * kSmall, frames + offset, kSmall);
    }
    if (!SendSealed(socket, tls, std::span(pages).first(count * kSmall), sealed)) {
      return;
    }
    have -= count * sizeof(uint64_t);
    std::memmove(opened.data(), opened.data() + count * sizeof(uint64_t), have);
  }
}

// The number of bytes wanted is not inside TLS: the other end waits until all have come.
inline void ServeTlsStream(const std::byte* frames, int socket, TlsSession& tls) {
  Secure(socket, tls);
  std::vector<std::byte> sealed(TlsSession::SealedBytes(kSealed));
  uint64_t bytes = 0;
  while (ReceiveAll(socket, &bytes, sizeof(bytes))) {
    for (uint64_t done = 0; done < bytes; done += kSealed) {
      if (!SendSealed(socket, tls, {frames + done % (kRegionPages << kPageBits), kSealed}, sealed)) {
        return;
      }
    }
  }
}

// A connection inside TLS, for the two contenders below.
struct TlsConnection {
  TlsConnection(const tlib::HostPort& place, Mode mode)
      : socket(Dial(place, mode)),
        tls(Must(TlsSession::Connect(*Must(TlsContext::ForClient(BenchKey())), kProtocols[0]))) {
    Secure(socket.get(), *tls);
  }
  // Opened bytes; waits where `epoll` says what for.
  std::span<const std::byte> Receive() {
    const ssize_t got = recv(socket.get(), received.data(), received.size(), 0);
    CheckIo(got > 0, "inside TLS");
    return std::span(opened).first(Must(tls->Open(std::span(received).first(static_cast<size_t>(got)), opened)));
  }

  UniqueFd socket;
  std::unique_ptr<TlsSession> tls;
  std::vector<std::byte> received = std::vector<std::byte>(kSealed);
  std::vector<std::byte> opened = std::vector<std::byte>(TlsSession::OpenedBytes(kSealed));
};

class TlsRequests {
 public:
  explicit TlsRequests(const tlib::HostPort& place)
      : connection_(place, Mode::kTlsRequests), epoll_(Watch(connection_.socket.get())), buffer_(kDepth * kSmall) {}

  uint64_t Run(size_t depth, double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    Ask(depth);
    uint64_t asked = depth;
    uint64_t bytes = 0;
    while (bytes < asked * kSmall) {
      WaitToRead(epoll_.get());
      const uint64_t first = bytes / kSmall;
      for (std::span<const std::byte> came = connection_.Receive(); !came.empty();) {
        const size_t at = bytes % buffer_.size();
        const size_t part = std::min(came.size(), buffer_.size() - at);
        std::memcpy(buffer_.data() + at, came.data(), part);
        bytes += part;
        came = came.subspan(part);
      }
      const uint64_t answered = bytes / kSmall - first;
      if (answered > 0 && std::chrono::steady_clock::now() < end) {
        Ask(answered);
        asked += answered;
      }
    }
    return asked * kSmall;
  }

 private:
  void Ask(size_t count) {
    std::array<uint64_t, kDepth> requests;
    for (size_t i = 0; i < count; i++) {
      requests[i] = random_.Below(kRegionPages) << kPageBits;
    }
    CheckIo(SendSealed(connection_.socket.get(), *connection_.tls, std::as_bytes(std::span(requests).first(count)),
                       sealed_),
            "requests");
  }

  TlsConnection connection_;
  UniqueFd epoll_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> sealed_ = std::vector<std::byte>(TlsSession::SealedBytes(kDepth * sizeof(uint64_t)));
  Random random_{1};
};

class TlsStream {
 public:
  explicit TlsStream(const tlib::HostPort& place) : connection_(place, Mode::kTlsStream) {}

  uint64_t Run(double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    uint64_t bytes = 0;
    while (std::chrono::steady_clock::now() < end) {
      const uint64_t wanted = 256 * kLarge;
      SendAll(connection_.socket.get(), &wanted, sizeof(wanted));
      for (uint64_t got = 0; got < wanted;) {
        got += connection_.Receive().size();
      }
      bytes += wanted;
    }
    return bytes;
  }

 private:
  TlsConnection connection_;
};

}  // namespace termfs::benchmarks

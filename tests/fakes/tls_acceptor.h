// SPDX-License-Identifier: Apache-2.0
//
// What a server does for connections of the data path inside TLS, without the rest of it: accepts them at a port of its
// own, shakes hands, and hands them to a Nic.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/stream_socket.h"
#include "base/tls.h"
#include "base/unique_fd.h"
#include "driver/nic.h"

namespace termfs::driver {

inline TlsKey KeyOfTests() { return DeriveTlsKey(std::array<std::byte, 32>{}, "test").value(); }

class TlsAcceptor {
 public:
  // `listener`: bound and listening. `nic`: outlives it.
  TlsAcceptor(Nic& nic, UniqueFd listener, uint64_t records_of_key = TlsContext::kRecordsOfKey)
      : nic_(nic),
        context_(MakeContext(records_of_key)),
        listener_(std::move(listener)),
        stop_(eventfd(0, EFD_CLOEXEC)),
        thread_([this] { Run(); }) {}
  ~TlsAcceptor() {
    const uint64_t one = 1;
    TERMFS_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }
  TlsAcceptor(const TlsAcceptor&) = delete;
  TlsAcceptor& operator=(const TlsAcceptor&) = delete;

  const std::shared_ptr<const TlsContext>& context() const { return context_; }
  // Connections are handed on as they are.
  void GivePlain(bool plain) { plain_.store(plain); }

 private:
  void Run() {
    for (;;) {
      pollfd waited[2] = {{listener_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
      poll(waited, 2, -1);
      if (waited[1].revents != 0) {
        return;
      }
      UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.valid()) {
        Accept(std::move(socket));
      }
    }
  }

  void Accept(UniqueFd socket) {
    AcceptedConnection accepted{.socket = std::move(socket)};
    if (plain_.load()) {
      nic_.Adopt(std::move(accepted));
      return;
    }
    accepted.tls = TlsSession::Accept(*context_).value();
    auto early =
        ShakeHands(accepted.socket.get(), *accepted.tls, std::chrono::steady_clock::now() + std::chrono::seconds(60));
    if (!early.ok()) {
      return;
    }
    accepted.early = std::move(early).value();
    nic_.Adopt(std::move(accepted));
  }

  static std::shared_ptr<const TlsContext> MakeContext(uint64_t records_of_key) {
    const TlsKey key = KeyOfTests();
    return TlsContext::ForServer({&key, 1}, {&kDataProtocol, 1}, records_of_key).value();
  }

  Nic& nic_;
  std::atomic<bool> plain_{false};
  const std::shared_ptr<const TlsContext> context_;
  const UniqueFd listener_;
  const UniqueFd stop_;
  std::thread thread_;
};

}  // namespace termfs::driver

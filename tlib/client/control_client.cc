// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/control_client.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/stream_socket.h"
#include "base/trusted_path.h"
#include "tlib/rpc/secret.h"
#include "tlib/rpc/tcp_socket.h"

namespace termfs::tlib::client {
namespace {

constexpr std::chrono::seconds kConnectTimeout{10};
constexpr std::chrono::milliseconds kLookAtInterruption{50};

Status InterruptedWait() { return Status::Error(EINTR, "the wait for the server was interrupted"); }

// A server of root or of this user, which is trusted with what it sends, and no link. None at all is for connect.
Status CheckSocket(int directory, const std::string& path) {
  struct stat found {};
  if (fstatat(directory, "socket", &found, AT_SYMLINK_NOFOLLOW) != 0) {
    return Status::Ok();
  }
  if (!S_ISSOCK(found.st_mode) || (found.st_uid != 0 && found.st_uid != geteuid())) {
    return Status::Error(EPERM, path + "/socket, of user " + std::to_string(found.st_uid) +
                                    ", is no socket of root's or of the user of this program; remove it");
  }
  return Status::Ok();
}

}  // namespace

ControlClient::TimePoint ControlClient::Wait::next_look() const {
  return interruption == nullptr ? deadline
                                 : std::min(deadline, std::chrono::steady_clock::now() + kLookAtInterruption);
}

Result<std::unique_ptr<ControlClient>> ControlClient::Connect(const ServerAddress& address, uint32_t segment_limit) {
  return address.remote() ? ConnectTo(address.host, address.secret_file, segment_limit)
                          : ConnectHere(address.directory);
}

Result<std::unique_ptr<ControlClient>> ControlClient::ConnectTo(const HostPort& host, const std::string& secret_file,
                                                                uint32_t segment_limit) {
  ASSIGN_OR_RETURN(auto tls_context, ClientTls(secret_file));
  const auto deadline = std::chrono::steady_clock::now() + kConnectTimeout;
  ASSIGN_OR_RETURN(UniqueFd socket_fd, ConnectTcp(host, deadline, segment_limit));
  std::unique_ptr<ControlClient> client(new ControlClient(std::move(socket_fd), /*tcp=*/true));
  client->tls_context_ = std::move(tls_context);
  if (Status secured = client->Secure(deadline); !secured.ok()) {
    return std::move(secured).WithContext("the server at " + ToString(host));
  }
  return client;
}

Status ControlClient::Secure(TimePoint deadline) {
  ASSIGN_OR_RETURN(tls_, TlsSession::Connect(*tls_context_, kControlProtocol));
  const auto shaken = ShakeHands(socket_.get(), *tls_, deadline);
  if (shaken.status().code() == EACCES) {
    return Status::Error(EACCES, "is this the volume's secret? " + std::string(shaken.status().message()));
  }
  RETURN_IF_ERROR(shaken.status());
  return reader_.Secure(*tls_, shaken.value());
}

Status ControlClient::ProbePath(const Wait& wait) {
  wire::PingT ping;
  ping.padding = FullSegment(socket_.get());
  return Call<wire::DoneT>(std::move(ping), wait).status();
}

Status ControlClient::Send(const wire::ControlMessageT& message, const std::vector<UniqueFd>& fds, TimePoint deadline) {
  return SendFrame(socket_.get(), EncodeControl(message), fds, deadline, tls_.get());
}

Result<Frame> ControlClient::Receive(const Wait& wait) {
  Result<Frame> received = reader_.Wait(socket_.get(), wait.next_look());
  while (received.status().code() == ETIMEDOUT && std::chrono::steady_clock::now() < wait.deadline) {
    if (wait.interrupted()) {
      return InterruptedWait();
    }
    received = reader_.Wait(socket_.get(), wait.next_look());
  }
  return received;
}

Result<std::unique_ptr<ControlClient>> ControlClient::ConnectHere(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::string path, TrustedDirectory(directory));
  // A Unix socket's path holds 107 bytes only: go through an open directory.
  const UniqueFd dir(open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir.valid()) {
    return ErrnoStatus("open the volume's directory " + directory);
  }
  RETURN_IF_ERROR(CheckSocket(dir.get(), path));
  UniqueFd socket_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket_fd.valid()) {
    return ErrnoStatus("create a socket");
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/socket", dir.get());
  if (connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return errno == ENOENT || errno == ECONNREFUSED
               ? Status::Error(errno, "no server runs for " + directory + "; start one with termfs serve")
               : ErrnoStatus("connect to the server of " + directory);
  }
  if (fcntl(socket_fd.get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoStatus("make a socket non-blocking");
  }
  return std::unique_ptr<ControlClient>(new ControlClient(std::move(socket_fd), /*tcp=*/false));
}

ControlClient::~ControlClient() {
  if (tcp_) {
    ResetTcp(socket_.get());
  }
}

void ControlClient::Shutdown() {
  if (tcp_) {
    ResetTcp(socket_.get());
  } else {
    shutdown(socket_.get(), SHUT_RDWR);
  }
}

Result<ControlClient::Answer> ControlClient::Exchange(const wire::ControlMessageT& message,
                                                      const std::vector<UniqueFd>& fds, const Wait& wait) {
  {
    MutexLock lock(mutex_);
    while (busy_) {
      turn_changed_.WaitUntil(mutex_, wait.next_look());
      if (busy_ && wait.interrupted()) {
        return InterruptedWait();
      }
      if (busy_ && std::chrono::steady_clock::now() >= wait.deadline) {
        return Status::Error(ETIMEDOUT, "the control channel is busy");
      }
    }
    busy_ = true;
  }
  auto answer = ExchangeInTurn(message, fds, wait);
  MutexLock lock(mutex_);
  busy_ = false;
  turn_changed_.NotifyOne();
  return answer;
}

Result<ControlClient::Answer> ControlClient::ExchangeInTurn(const wire::ControlMessageT& message,
                                                            const std::vector<UniqueFd>& fds, const Wait& wait) {
  if (broken_) {
    return Status::Error(ENOTCONN, "the control channel broke");
  }
  if (Status sent = Send(message, fds, wait.deadline); !sent.ok()) {
    broken_ = true;
    return sent;
  }
  unanswered_++;
  while (true) {
    auto frame = Receive(wait);
    if (!frame.ok()) {
      broken_ = broken_ || (frame.status().code() != ETIMEDOUT && frame.status().code() != EINTR);
      return std::move(frame).status();
    }
    if (--unanswered_ > 0) {
      continue;  // to somebody who has given up
    }
    Answer answer{.message = {}, .fds = std::move(frame->fds)};
    RETURN_IF_ERROR(DecodeControl(frame->bytes, answer.message));
    if (const auto* error = answer.message.body.AsError(); error != nullptr) {
      return Status::Error(error->code > 0 && error->code < 4096 ? error->code : EPROTO, error->text);
    }
    return answer;
  }
}

}  // namespace termfs::tlib::client

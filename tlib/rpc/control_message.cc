// SPDX-License-Identifier: Apache-2.0
#include "tlib/rpc/control_message.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/stream_socket.h"
#include "tlib/rpc/control_generated.h"

namespace termfs::tlib {
namespace {

using std::chrono::steady_clock;

constexpr size_t kPrefix = sizeof(uint32_t);
constexpr size_t kReceiveBytes = 16 << 10;

Status Disconnected() { return Status::Error(ENOTCONN, "the control channel was closed"); }

// sendmsg of `bytes`, with `fds` beside the first of them. Returns what was sent; 0: the socket is full.
Result<size_t> SendSome(int socket, std::span<const std::byte> bytes, std::span<const UniqueFd> fds) {
  iovec vector{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxControlFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (size_t i = 0; i < fds.size(); i++) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  while (true) {
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      return static_cast<size_t>(sent);
    }
    if (errno == EINTR) {
      continue;
    }
    if (errno == EAGAIN) {
      return size_t{0};
    }
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN) {
      return Disconnected();
    }
    return ErrnoStatus("send on the control channel");
  }
}

void TakeFds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

// The kernel says that descriptors are missing, but not why.
Status MissingFds(int socket) {
  const UniqueFd another(fcntl(socket, F_DUPFD_CLOEXEC, 0));
  return another.valid() ? Status::Error(EPROTO, "too many descriptors on the control channel")
                         : ErrnoStatus("receive descriptors on the control channel");
}

}  // namespace

std::vector<std::byte> EncodeControl(const wire::ControlMessageT& message) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::ControlMessage::Pack(builder, &message));
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

Status DecodeControl(std::span<const std::byte> bytes, wire::ControlMessageT& message) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  flatbuffers::Verifier verifier(data, bytes.size(), /*max_depth=*/16, /*max_tables=*/64);
  if (!verifier.VerifyBuffer<wire::ControlMessage>(nullptr)) {
    return Status::Error(EPROTO, "malformed control message");
  }
  flatbuffers::GetRoot<wire::ControlMessage>(data)->UnPackTo(&message);
  if (message.body.value == nullptr) {
    return Status::Error(EPROTO, "control message without a body");
  }
  return Status::Ok();
}

Status SendFrame(int socket, std::span<const std::byte> bytes, std::span<const UniqueFd> fds,
                 steady_clock::time_point deadline, TlsSession* tls) {
  if (bytes.size() > kMaxControlMessage || fds.size() > kMaxControlFds) {
    return Status::Error(EMSGSIZE, "control message too long");
  }
  const auto length = static_cast<uint32_t>(bytes.size());
  std::vector<std::byte> framed(kPrefix + bytes.size());
  std::memcpy(framed.data(), &length, kPrefix);
  std::copy(bytes.begin(), bytes.end(), framed.begin() + kPrefix);
  if (tls != nullptr) {
    std::vector<std::byte> sealed(TlsSession::SealedBytes(framed.size()));
    ASSIGN_OR_RETURN(const size_t length_of_sealed, tls->Seal(framed, sealed));
    sealed.resize(length_of_sealed);
    framed = std::move(sealed);
  }
  std::span<const std::byte> left = framed;
  while (!left.empty()) {
    ASSIGN_OR_RETURN(const size_t sent, SendSome(socket, left, fds));
    if (sent == 0) {
      RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline));
      continue;
    }
    fds = {};  // they went with the first byte
    left = left.subspan(sent);
  }
  return Status::Ok();
}

Status FrameReader::Secure(TlsSession& tls, std::span<const std::byte> early) {
  tls_ = &tls;
  std::array<std::byte, TlsSession::OpenedBytes(kReceiveBytes)> message;
  while (!early.empty()) {
    const auto some = early.first(std::min(early.size(), kReceiveBytes));
    const Result<size_t> opened = tls_->Open(some, message);
    if (!opened.ok()) {
      return opened.status().code() == ECONNRESET ? Disconnected() : opened.status();
    }
    buffered_.insert(buffered_.end(), message.begin(), message.begin() + static_cast<ptrdiff_t>(opened.value()));
    early = early.subspan(some.size());
  }
  return Status::Ok();
}

Result<bool> FrameReader::ReceiveSealed(int socket) {
  std::array<std::byte, kReceiveBytes> sealed;
  const Result<size_t> got = ReceiveSome(socket, sealed);
  if (!got.ok()) {
    return got.status().code() == ECONNRESET ? Disconnected() : got.status();
  }
  RETURN_IF_ERROR(Secure(*tls_, std::span(sealed).first(got.value())));
  return got.value() != 0;
}

Result<bool> FrameReader::Receive(int socket) {
  if (tls_ != nullptr) {
    return ReceiveSealed(socket);
  }
  const size_t before = buffered_.size();
  buffered_.resize(before + kReceiveBytes);
  iovec vector{.iov_base = buffered_.data() + before, .iov_len = kReceiveBytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxControlFds * sizeof(int))];
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = -1;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  const int error = errno;
  buffered_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0) {
    if (error == EAGAIN) {
      return false;
    }
    return error == ECONNRESET ? Disconnected() : Status::Errno(error, "receive on the control channel");
  }
  TakeFds(message, fds_);
  if ((message.msg_flags & MSG_CTRUNC) != 0 || fds_.size() > kMaxControlFds) {
    return MissingFds(socket);
  }
  if (got == 0) {
    return Disconnected();
  }
  return true;
}

Result<std::optional<Frame>> FrameReader::Take() {
  if (buffered_.size() < kPrefix) {
    return std::optional<Frame>();
  }
  uint32_t length = 0;
  std::memcpy(&length, buffered_.data(), kPrefix);
  if (length > kMaxControlMessage) {
    return Status::Error(EPROTO, "control message too long");
  }
  if (buffered_.size() < kPrefix + length) {
    return std::optional<Frame>();
  }
  // Requests and replies alternate, so whatever descriptors came belong to this message.
  Frame frame;
  frame.bytes.assign(buffered_.begin() + kPrefix, buffered_.begin() + kPrefix + length);
  frame.fds = std::move(fds_);
  fds_.clear();
  buffered_.erase(buffered_.begin(), buffered_.begin() + kPrefix + length);
  return std::optional<Frame>(std::move(frame));
}

Result<std::optional<Frame>> FrameReader::Next(int socket) {
  while (true) {
    ASSIGN_OR_RETURN(std::optional<Frame> frame, Take());
    if (frame.has_value()) {
      return frame;
    }
    ASSIGN_OR_RETURN(const bool received, Receive(socket));
    if (!received) {
      return std::optional<Frame>();
    }
  }
}

Result<Frame> FrameReader::Wait(int socket, steady_clock::time_point deadline) {
  while (true) {
    ASSIGN_OR_RETURN(std::optional<Frame> frame, Next(socket));
    if (frame.has_value()) {
      return std::move(*frame);
    }
    RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline));
  }
}

}  // namespace termfs::tlib

// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/port.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstring>

#include "base/log.h"

namespace termfs::driver::softnic {
namespace {

// Descriptors are shared with the peer, who could take O_NONBLOCK away: not blocking is asked for with every call.
ssize_t Send(int socket, const SocketMessage& message, std::span<const UniqueFd> fds) {
  iovec data{const_cast<SocketMessage*>(&message), sizeof(message)};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxMessageFds * sizeof(int))] = {};
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* cmsg = CMSG_FIRSTHDR(&header);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (size_t i = 0; i < fds.size(); i++) {
      const int fd = fds[i].get();
      memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &fd, sizeof(int));
    }
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

}  // namespace

int ReceiveMessage(int socket, SocketMessage* message, std::span<UniqueFd> fds) {
  iovec data{message, sizeof(*message)};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxMessageFds * sizeof(int))] = {};
  if (!fds.empty()) {  // without room for them the kernel drops descriptors that a peer sends
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  }
  size_t taken = 0;
  for (cmsghdr* cmsg = CMSG_FIRSTHDR(&header); cmsg != nullptr; cmsg = CMSG_NXTHDR(&header, cmsg)) {
    if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(int));
      UniqueFd owned(fd);
      if (taken < fds.size()) {
        fds[taken++] = std::move(owned);
      }
    }
  }
  return got == sizeof(*message) && (header.msg_flags & MSG_TRUNC) == 0 ? 1 : -1;
}

Result<std::shared_ptr<Port>> Port::Create(std::shared_ptr<Registry> registry, uint32_t domain) {
  std::shared_ptr<Port> port(new Port(std::move(registry), domain));
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return ErrnoStatus("create the sockets of a queue pair");
  }
  port->answer_ = UniqueFd(ends[0]);
  port->peer_end_ = UniqueFd(ends[1]);
  return port;
}

Status Port::Attach(UniqueFd request_socket) {
  int type = 0;
  socklen_t size = sizeof(type);
  int domain = 0;
  socklen_t domain_size = sizeof(domain);
  if (getsockopt(request_socket.get(), SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET ||
      getsockopt(request_socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &domain_size) != 0 || domain != AF_UNIX) {
    return Status::Error(EPROTO, "the peer's endpoint has no socket of a software RNIC");
  }
  request_ = std::move(request_socket);
  return Status::Ok();
}

bool Port::Serve(uint32_t events) {
  constexpr int kFairShare = 16;  // requests of one peer before the others have their turn
  for (int i = 0; i < kFairShare && !broken(); i++) {
    SocketMessage request;
    const int got = ReceiveMessage(answer_.get(), &request, {});
    if (got == 0) {
      break;
    }
    if (got < 0 || !HandleRequest(request)) {
      Break();
    }
  }
  if ((events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) != 0) {
    Break();
  }
  return !broken();
}

bool Port::HandleRequest(const SocketMessage& request) {
  const RKey rkey{request.rkey};
  switch (static_cast<MessageType>(request.type)) {
    case MessageType::kResolve:
      return AnswerResolve(rkey);
    case MessageType::kFault: {
      const std::shared_ptr<const Export> region = registry_->FindExport(rkey, domain_);
      if (region && region->faults && request.page < region->max_pages) {
        region->faults->OnFault(PageIndex{request.page}, rkey, shared_from_this());
      } else {
        AnswerFault(rkey, PageIndex{request.page}, false);
      }
      return true;
    }
    default:
      return false;
  }
}

bool Port::AnswerResolve(RKey rkey) {
  SocketMessage answer;
  answer.type = static_cast<uint32_t>(MessageType::kResolved);
  answer.rkey = rkey.value;
  const std::shared_ptr<const Export> region = registry_->FindExport(rkey, domain_);
  if (!region || (region->frames && !AllowsOneSidedRead(region->kind))) {
    return Answer(answer);  // not ok; no descriptor leaves
  }
  answer.has_pages = region->frames ? 1 : 0;
  answer.region_kind = static_cast<uint32_t>(region->kind);
  answer.access = static_cast<uint32_t>(region->access);
  answer.validity_slot = region->validity_slot;
  answer.validity_generation = region->validity_generation;
  answer.offset = region->offset;
  answer.size = region->size;
  answer.max_pages = region->max_pages;
  const bool writable = Has(region->access, Access::kRemoteWrite) || Has(region->access, Access::kRemoteAtomic);
  std::array<UniqueFd, kMaxMessageFds> fds;
  size_t count = 0;
  for (const SharedObject* object : {region->object.get(), region->frames.get()}) {
    if (object == nullptr) {
      continue;
    }
    Result<UniqueFd> fd = writable ? object->ReadWriteFd() : object->ReadOnlyFd();
    if (!fd.ok()) {
      LOG_WARNING("hand memory to a peer: {}", fd.status().ToString());
      return false;
    }
    fds[count++] = std::move(fd).value();
  }
  answer.ok = 1;
  return Answer(answer, std::span(fds).first(count));
}

bool Port::Answer(const SocketMessage& message, std::span<const UniqueFd> fds) {
  // A peer that asks but does not read the answers is no peer.
  return Send(answer_.get(), message, fds) == sizeof(message);
}

void Port::Break() {
  shutdown(answer_.get(), SHUT_RDWR);
  if (request_.valid()) {
    shutdown(request_.get(), SHUT_RDWR);
  }
  broken_.store(true, std::memory_order_release);
}

void Port::Wake() {
  SocketMessage message;
  message.type = static_cast<uint32_t>(MessageType::kWake);
  // Full: the peer has wake-ups to read already. Lost: it has been told by the hang-up.
  [[maybe_unused]] const ssize_t sent = Send(answer_.get(), message, {});
}

bool Port::SendRequest(const SocketMessage& message) { return Send(request_.get(), message, {}) == sizeof(message); }

void Port::AnswerFault(RKey rkey, PageIndex page, bool ok) {
  SocketMessage message;
  message.type = static_cast<uint32_t>(MessageType::kFaultDone);
  message.rkey = rkey.value;
  message.page = page.value;
  message.ok = ok ? 1 : 0;
  if (!Answer(message)) {
    Break();
  }
}

}  // namespace termfs::driver::softnic

// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/streams.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "base/stream_socket.h"
#include "driver/iwarp/setup.h"
#include "driver/softnic/network/flow.h"
#include "driver/softnic/network/stream_end.h"

namespace termfs::driver::softnic {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int kBacklog = 1024;
constexpr int kIdleSeconds = 5;  // then the kernel asks whether the peer's is still there
constexpr int kAskSeconds = 1;
constexpr int kAsks = 5;
constexpr milliseconds kDeadAfter{10'000};  // without an acknowledgement of what was sent

Status SetOption(int socket, int level, int name, int value) {
  return setsockopt(socket, level, name, &value, sizeof(value)) == 0 ? Status::Ok()
                                                                     : ErrnoStatus("set an option of a TCP socket");
}

Status SetOptions(int socket, int buffer_bytes) {
  if (buffer_bytes != 0) {
    RETURN_IF_ERROR(SetOption(socket, SOL_SOCKET, SO_SNDBUF, buffer_bytes));
    RETURN_IF_ERROR(SetOption(socket, SOL_SOCKET, SO_RCVBUF, buffer_bytes));
  }
  RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1));
  RETURN_IF_ERROR(SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1));
  RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds));
  RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, kAskSeconds));
  RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, kAsks));
  return SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(kDeadAfter.count()));
}

Result<UniqueFd> NewSocket(const Gid& gid) {
  UniqueFd made(socket(IsIpv4(gid) ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.valid()) {
    return ErrnoStatus("create a TCP socket");
  }
  return made;
}

// The bytes as they are where there is no TLS. False: they are none of its session.
bool Open(TlsSession* tls, std::span<const std::byte> received, std::vector<std::byte>& to) {
  const size_t before = to.size();
  if (tls == nullptr) {
    to.insert(to.end(), received.begin(), received.end());
    return true;
  }
  to.resize(before + TlsSession::OpenedBytes(received.size()));
  const Result<size_t> opened = tls->Open(received, std::span(to).subspan(before));
  to.resize(before + (opened.ok() ? opened.value() : 0));
  return opened.ok();
}

// Empty: that cannot be done.
std::vector<std::byte> Sealed(TlsSession* tls, std::vector<std::byte> bytes) {
  if (tls == nullptr) {
    return bytes;
  }
  std::vector<std::byte> sealed(TlsSession::SealedBytes(bytes.size()));
  const Result<size_t> length = tls->Seal(bytes, sealed);
  sealed.resize(length.ok() ? length.value() : 0);
  return sealed;
}

iwarp::MpaSetUp RequestWith(const StreamToken& token, bool with_crc) {
  iwarp::MpaSetUp request;
  request.with_crc = with_crc;
  request.reads_in = iwarp::kMaxReads;
  request.reads_out = iwarp::kMaxReads;
  request.private_data.assign(token.begin(), token.end());
  return request;
}

}  // namespace

Status Streams::Start() {
  MutexLock lock(mutex_);
  return StartLocked();
}

Status Streams::StartLocked() {
  while (loops_.size() < threads_) {
    std::shared_ptr<RnicThread> thread = rnic_;
    if (!loops_.empty()) {
      ASSIGN_OR_RETURN(thread, RnicThread::Create(nullptr));
    }
    ASSIGN_OR_RETURN(auto loop, StreamLoop::Create(std::move(thread), keep_time_));
    loops_.push_back(std::move(loop));
  }
  return Status::Ok();
}

Streams::~Streams() {
  {
    MutexLock lock(mutex_);
    if (loops_.empty()) {
      return;
    }
    for (const auto& [local, listener] : listeners_) {
      rnic_->Unwatch(listener.socket.get());
    }
  }
  rnic_->Post([this] {
    closing_ = true;
    for (const auto& [socket, greeting] : greetings_) {
      rnic_->Unwatch(socket);
    }
  });
  rnic_->Barrier();  // it has run, as has everything that greetings posted before
  rnic_->Barrier();  // and what it posted
}

Result<uint16_t> Streams::Listen(const Gid& local, uint32_t interface) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(StartLocked());
  if (const auto found = listeners_.find(local); found != listeners_.end()) {
    return found->second.port;
  }
  ASSIGN_OR_RETURN(UniqueFd socket, NewSocket(local));
  SocketAddress address(local, 0, interface);
  if (bind(socket.get(), address.get(), address.length) != 0 || listen(socket.get(), kBacklog) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    return ErrnoStatus("listen at " + ToString(local) + " for connections of the data path");
  }
  const uint16_t port = PortOf(address.storage);
  rnic_->Watch(socket.get(), [this, fd = socket.get()] { OnConnection(fd); });
  listeners_.emplace(local, Listener{.socket = std::move(socket), .port = port});
  return port;
}

Result<StreamLoop*> Streams::TakeLoop() {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(StartLocked());
  return std::min_element(loops_.begin(), loops_.end(),
                          [](const auto& a, const auto& b) { return a->size() < b->size(); })
      ->get();
}

Result<StreamToken> Streams::Expect(const std::shared_ptr<StreamEnd>& end) {
  StreamToken token;
  RETURN_IF_ERROR(SecureRandom(token.data(), token.size()));
  MutexLock lock(mutex_);
  expected_[token] = end;
  return token;
}

void Streams::Remove(uint32_t number) {
  std::shared_ptr<StreamEnd> end;
  MutexLock lock(mutex_);
  for (size_t i = 0; i < loops_.size() && end == nullptr; i++) {
    end = loops_[i]->Remove(number);
  }
  if (end != nullptr) {
    std::erase_if(expected_, [&](const auto& one) { return one.second == end; });
  }
}

void Streams::RetryWaiting() {
  MutexLock lock(mutex_);
  for (const auto& loop : loops_) {
    loop->RetryWaiting();
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The end that dials.

Status Streams::Dial(const NetworkPath& path, uint16_t port, const StreamToken& token, StreamEnd& end) const {
  const auto deadline = steady_clock::now() + kGreeting;
  ASSIGN_OR_RETURN(UniqueFd socket, NewSocket(path.remote));
  RETURN_IF_ERROR(SetOptions(socket.get(), socket_bytes_));
  if (path.segment_limit != 0) {
    RETURN_IF_ERROR(SetOption(socket.get(), IPPROTO_TCP, TCP_MAXSEG, static_cast<int>(path.segment_limit)));
  }
  const SocketAddress address(path.remote, port, path.interface);
  const std::string what = "connect to port " + std::to_string(port) + " of " + ToString(path.remote);
  if (connect(socket.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) {
      return ErrnoStatus(what);
    }
    RETURN_IF_ERROR(WaitFor(socket.get(), POLLOUT, deadline));
    int error = 0;
    socklen_t length = sizeof(error);
    if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
      return Status::Error(error != 0 ? error : errno, what);
    }
  }
  std::unique_ptr<TlsSession> tls;
  if (path.tls != nullptr) {
    ASSIGN_OR_RETURN(tls, TlsSession::Connect(*path.tls, kDataProtocol));
    ASSIGN_OR_RETURN(const auto early, ShakeHands(socket.get(), *tls, deadline));
    if (!early.empty()) {
      return Status::Error(EPROTO, "the peer answers before it is asked");
    }
  }
  const iwarp::MpaSetUp request = RequestWith(token, /*with_crc=*/tls == nullptr);
  RETURN_IF_ERROR(SendAll(socket.get(), Sealed(tls.get(), Encode(iwarp::SetUpFrame::kRequest, request)), deadline));
  std::array<std::byte, iwarp::kMostSetUpBytes> some;
  std::vector<std::byte> bytes;
  for (;;) {
    RETURN_IF_ERROR(WaitFor(socket.get(), POLLIN, deadline));
    ASSIGN_OR_RETURN(const size_t got, ReceiveSome(socket.get(), some));
    if (!Open(tls.get(), std::span(some).first(got), bytes)) {
      return Status::Error(EPROTO, "the peer's answer to the set-up of a connection is not one of its TLS session");
    }
    ASSIGN_OR_RETURN(const auto reply, iwarp::DecodeSetUp(iwarp::SetUpFrame::kReply, bytes));
    if (reply) {
      RETURN_IF_ERROR(iwarp::Check(request, reply->set_up));
      if (reply->set_up.with_crc != request.with_crc) {
        return Status::Error(EPROTO, "the peer wants a CRC inside of TLS, or none outside");
      }
      return end.Start(std::move(socket), std::move(tls), std::span(bytes).subspan(reply->bytes),
                       iwarp::ReadsOut(request, reply->set_up));
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------
// The end that is dialled, on the RNIC thread.

void Streams::OnConnection(int listener) {
  for (int accepted = 0; accepted < kBacklog; accepted++) {
    UniqueFd socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      return;
    }
    BeginGreeting({.socket = std::move(socket)});
  }
}

void Streams::BeginGreeting(AcceptedConnection connection) {
  const int fd = connection.socket.get();
  if (closing_ || !SetOptions(fd, socket_bytes_).ok()) {
    Count(counters_.no_connection);
    return;
  }
  if (greetings_.size() >= kMostGreetings) {
    // A peer of ours says at once what it wants: the oldest is the likeliest to be none.
    const auto oldest = std::min_element(greetings_.begin(), greetings_.end(), [](const auto& a, const auto& b) {
      return a.second.deadline < b.second.deadline;
    });
    Count(counters_.no_connection);
    rnic_->Unwatch(oldest->first);
    shutdown(oldest->second.socket.get(), SHUT_RDWR);
    // Closed when it is watched no more: it may be watched only by a task that is still to run.
    rnic_->Post([socket = std::make_shared<UniqueFd>(std::move(oldest->second.socket))] {});
    greetings_.erase(oldest);
  }
  Greeting& greeting = greetings_[fd];
  greeting = {.socket = std::move(connection.socket),
              .tls = std::move(connection.tls),
              .bytes = {},
              .deadline = steady_clock::now() + kGreeting};
  greetings_count_.store(greetings_.size(), std::memory_order_seq_cst);
  rnic_->Watch(fd, [this, fd] { OnGreeting(fd); });
  keep_time_();
  // What came behind the handshake no descriptor announces.
  if (!connection.early.empty() &&
      !(Open(greeting.tls.get(), connection.early, greeting.bytes) && TakeGreeting(greeting))) {
    EndGreeting(fd);
  }
}

// Where no stream is expected there is no timer either that would end it.
void Streams::Adopt(AcceptedConnection connection) {
  {
    MutexLock lock(mutex_);
    if (expected_.empty()) {
      Count(counters_.no_connection);
      return;
    }
  }
  auto shared = std::make_shared<AcceptedConnection>(std::move(connection));  // a std::function can be copied
  rnic_->Post([this, shared] { BeginGreeting(std::move(*shared)); });
}

void Streams::OnGreeting(int socket) {
  const auto found = greetings_.find(socket);
  if (!closing_ && found != greetings_.end() && !ReadGreeting(found->second)) {
    EndGreeting(socket);
  }
}

bool Streams::ReadGreeting(Greeting& greeting) {
  std::array<std::byte, iwarp::kMostSetUpBytes> some;
  const Result<size_t> got = ReceiveSome(greeting.socket.get(), some);
  if (!got.ok()) {
    return false;
  }
  if (!Open(greeting.tls.get(), std::span(some).first(got.value()), greeting.bytes)) {
    Count(counters_.malformed);
    return false;
  }
  return TakeGreeting(greeting);
}

bool Streams::TakeGreeting(Greeting& greeting) {
  const auto request = iwarp::DecodeSetUp(iwarp::SetUpFrame::kRequest, greeting.bytes);
  StreamToken token;
  if (!request.ok() || (request.value() && request.value()->set_up.private_data.size() != token.size())) {
    Count(counters_.malformed);
    return false;
  }
  if (!request.value()) {
    return greeting.bytes.size() < iwarp::kMostSetUpBytes;
  }
  const iwarp::MpaSetUp& set_up = request.value()->set_up;
  std::copy(set_up.private_data.begin(), set_up.private_data.end(), token.begin());
  const bool secure = greeting.tls != nullptr;
  const Result<iwarp::MpaSetUp> reply = iwarp::Accept(set_up, iwarp::kMaxReads, /*wants_crc=*/!secure);
  if (!reply.ok() || reply->with_crc == secure) {
    Count(counters_.malformed);
    return false;
  }
  std::shared_ptr<StreamEnd> end;
  {
    MutexLock lock(mutex_);
    if (const auto expected = expected_.find(token); expected != expected_.end()) {
      end = expected->second->secure() == secure ? expected->second : nullptr;
      expected_.erase(expected);
    }
  }
  const auto frame = Sealed(greeting.tls.get(), Encode(iwarp::SetUpFrame::kReply, reply.value()));
  if (end == nullptr || frame.empty() ||
      send(greeting.socket.get(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL) !=
          static_cast<ssize_t>(frame.size())) {
    Count(counters_.no_connection);
    return false;
  }
  rnic_->Unwatch(greeting.socket.get());
  // The loop forgets the descriptor before the stream can be watched: both happen on this thread, in this order.
  rnic_->Post([this, end, fd = greeting.socket.get(), max_reads = iwarp::ReadsOut(reply.value(), set_up),
               early = std::vector<std::byte>(greeting.bytes.begin() + static_cast<ptrdiff_t>(request.value()->bytes),
                                              greeting.bytes.end())] {
    const auto found = greetings_.find(fd);
    if (found == greetings_.end()) {
      return;  // it was the oldest, and there were too many
    }
    UniqueFd socket = std::move(found->second.socket);
    std::unique_ptr<TlsSession> tls = std::move(found->second.tls);
    greetings_.erase(found);
    greetings_count_.store(greetings_.size(), std::memory_order_seq_cst);
    if (const Status started = end->Start(std::move(socket), std::move(tls), early, max_reads); !started.ok()) {
      LOG_DEBUG("a connection of the data path: {}", started.ToString());
    }
  });
  return true;
}

void Streams::EndGreeting(int socket) {
  rnic_->Unwatch(socket);
  rnic_->Post([this, socket] {
    greetings_.erase(socket);
    greetings_count_.store(greetings_.size(), std::memory_order_seq_cst);
  });
}

// ---------------------------------------------------------------------------------------------------------------
// Time.

bool Streams::OnTick(steady_clock::time_point now) {
  for (const auto& [socket, greeting] : greetings_) {
    if (greeting.deadline <= now) {
      Count(counters_.timeouts);
      EndGreeting(socket);
    }
  }
  bool waiting = !greetings_.empty();
  std::vector<StreamLoop*> loops;  // which stay
  {
    MutexLock lock(mutex_);
    std::transform(loops_.begin(), loops_.end(), std::back_inserter(loops),
                   [](const auto& loop) { return loop.get(); });
  }
  for (StreamLoop* const loop : loops) {
    waiting = loop->OnTick(now) || waiting;
  }
  return waiting;
}

bool Streams::needs_ticks() {
  MutexLock lock(mutex_);
  return greetings_count_.load(std::memory_order_seq_cst) != 0 ||
         std::any_of(loops_.begin(), loops_.end(), [](const auto& loop) { return loop->needs_ticks(); });
}

}  // namespace termfs::driver::softnic

// SPDX-License-Identifier: Apache-2.0
//
// The life of clients and sessions; requests are handled in control_requests.cc.
#include "tlib/server/control_server.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <future>
#include <utility>

#include "base/log.h"
#include "base/stream_socket.h"
#include "tlib/rpc/messages.h"
#include "tlib/rpc/tcp_socket.h"
#include "tlib/server/descriptors.h"

namespace termfs::tlib::server {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr size_t kMaxPeersOfProcess = 256;
constexpr size_t kMaxStrangers = 512;  // so many mounts come at once when a server is there again
constexpr size_t kMoreForAdministrators = 16;
// Of a mount with a few lanes in use, each of which has two queue pairs of three descriptors.
constexpr uint32_t kDescriptorsOfSession = 64;
constexpr int kSendBufferBytes = 2 << 20;  // an answer of any size finds room when those before it were read
constexpr int kFramesAtOnce = 16;          // then others have their turn
constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::seconds kStopTimeout{60};
constexpr std::chrono::seconds kBetweenTrims{15};
// A client over a network that was not heard of for so long is lost. It knows by then: see kServerSilence.
constexpr std::chrono::seconds kClientSilence{2 * kServerSilence};

Status EnlargeSendBuffer(int socket) {
  if (setsockopt(socket, SOL_SOCKET, SO_SNDBUFFORCE, &kSendBufferBytes, sizeof(kSendBufferBytes)) != 0 &&
      setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof(kSendBufferBytes)) != 0) {
    return ErrnoStatus("set the size of its send buffer");
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::Start(const ControlOptions& options, SessionTable& sessions,
                                                            Service& service) {
  std::unique_ptr<ControlServer> server(new ControlServer(options, sessions, service));
  server->spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSIGN_OR_RETURN(server->pool_, BlockingPool::Start(kThreads));
  ASSIGN_OR_RETURN(server->loop_, EventLoop::Create());
  RETURN_IF_ERROR(server->Listen());
  ControlServer* const raw = server.get();
  for (const Listener& listener : raw->listeners_) {
    const int fd = listener.socket.get();
    RETURN_IF_ERROR(raw->loop_->Add(fd, EPOLLIN, [raw, fd, tcp = listener.tcp](uint32_t) { raw->OnAccept(fd, tcp); }));
  }
  raw->loop_->Every(std::chrono::seconds(1), [raw] { raw->OnTick(); });
  raw->thread_ = std::thread([raw] { raw->loop_->Run(); });
  return server;
}

ControlServer::~ControlServer() { Stop(); }

Status ControlServer::Listen() {
  RETURN_IF_ERROR(ListenHere());
  if (options_.listen.has_value()) {
    ASSIGN_OR_RETURN(std::vector<UniqueFd> sockets, ListenTcp(*options_.listen));
    for (UniqueFd& socket : sockets) {
      LOG_INFO("listening on {}", ToString(LocalPlaceOf(socket.get())));
      listeners_.push_back({std::move(socket), true});
    }
  }
  return Status::Ok();
}

Status ControlServer::ListenHere() {
  directory_ = UniqueFd(open(options_.directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory_.valid()) {
    return ErrnoStatus("open the volume's directory " + options_.directory);
  }
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) {
    return ErrnoStatus("create the control socket");
  }
  // The mode of a socket's file is that of the socket when it is bound.
  if (fchmod(listener.get(), 0600) != 0) {
    return ErrnoStatus("restrict the control socket");
  }
  if (unlinkat(directory_.get(), "socket", 0) != 0 && errno != ENOENT) {
    return ErrnoStatus("remove the socket of a server that is gone");
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/socket", directory_.get());
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus("bind the control socket in " + options_.directory);
  }
  if (options_.allowed_uid != geteuid() &&
      fchownat(directory_.get(), "socket", options_.allowed_uid, static_cast<gid_t>(-1), AT_SYMLINK_NOFOLLOW) != 0) {
    return ErrnoStatus("give the control socket to the volume's owner");
  }
  if (listen(listener.get(), 64) != 0) {
    return ErrnoStatus("listen on the control socket");
  }
  listeners_.push_back({std::move(listener), false});
  return Status::Ok();
}

void ControlServer::OnAccept(int listener, bool tcp) {
  while (Accept(listener, tcp)) {
  }
}

// False: there is nobody (to be taken in) now.
bool ControlServer::Accept(int listener, bool tcp) {
  auto peer = std::make_shared<Peer>();
  peer->socket = UniqueFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer->socket.valid()) {
    const Status failed = NameDescriptors(ErrnoStatus("accept a client"));
    if (failed.code() == EAGAIN || failed.code() == EINTR || failed.code() == ECONNABORTED) {
      return false;
    }
    if (const auto left_out = shortages_.Next()) {
      LOG_WARNING("{} ({} more times before)", failed.ToString(), *left_out);
    }
    // The next one is told why it is refused; the others go on waiting, and are looked at with the next tick.
    if (spare_.valid() && (failed.code() == EMFILE || failed.code() == ENFILE)) {
      spare_ = UniqueFd();
      peer->socket = UniqueFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      peer->unwelcome = failed;
    }
    SetAccepting(false);
    if (!peer->socket.valid()) {
      return false;
    }
  }
  Status admitted = Identify(peer, tcp);
  if (admitted.ok()) {
    admitted = Admit(peer);
  }
  if (!admitted.ok()) {
    LogRefusal(*peer, admitted);
  }
  return accepting_;
}

// Strangers on a network may come as often as they like; they do not fill the disk with it.
void ControlServer::LogRefusal(const Peer& peer, const Status& why) {
  constexpr seconds kPeriod{1};
  const auto now = steady_clock::now();
  const bool stranger = peer.stranger();
  if (stranger && now - refusal_logged_ < kPeriod) {
    refusals_++;
    return;
  }
  LOG_WARNING("a client ({}) is refused: {}{}", peer.from, why.ToString(),
              stranger && refusals_ > 0 ? fmt::format(" (and {} more strangers before)", refusals_) : "");
  if (stranger) {
    refusal_logged_ = now;
    refusals_ = 0;
  }
}

void ControlServer::SetAccepting(bool accepting) {
  accepting_ = accepting;
  for (const Listener& listener : listeners_) {
    accepting_ = loop_->Modify(listener.socket.get(), accepting ? uint32_t{EPOLLIN} : 0U).ok() && accepting_;
  }
}

Status ControlServer::Identify(const PeerPtr& peer, bool tcp) {
  peer->since = steady_clock::now();
  if (tcp) {
    const HostPort place = PeerOf(peer->socket.get());
    peer->host = place.host;
    peer->from = ToString(place);
    peer->uid = options_.allowed_uid;
    ASSIGN_OR_RETURN(peer->path, NetworkPathOf(peer->socket.get()));
    return SetTcpOptions(peer->socket.get());
  }
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(peer->socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoStatus("ask who it is");
  }
  peer->uid = credentials.uid;
  peer->pid = static_cast<uint32_t>(credentials.pid);
  peer->from = "pid " + std::to_string(credentials.pid);
  peer->end.process =
      std::make_shared<UniqueFd>(static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0)));  // -1: it is gone
  return Status::Ok();
}

void ControlServer::MakeRoomFor(const PeerPtr& peer) {
  size_t of_same = 1;  // process, on this host
  size_t strangers = 0;
  PeerPtr oldest;
  for (const auto& [other_fd, other] : peers_) {
    of_same += peer->host.empty() && other->host.empty() && other->pid == peer->pid ? 1 : 0;
    if (!other->session.has_value()) {
      strangers++;
      const auto rank = [](const PeerPtr& one) { return std::pair(!one->stranger(), one->since); };
      oldest = oldest == nullptr || rank(other) < rank(oldest) ? other : oldest;
    }
  }
  if (of_same > kMaxPeersOfProcess && peer->unwelcome.ok()) {
    peer->unwelcome = Status::Error(
        EUSERS, "a process has at most " + std::to_string(kMaxPeersOfProcess) + " connections to a server");
  }
  if (strangers >= kMaxStrangers) {
    Drop(oldest, Status::Error(EUSERS, "too many connections without a Hello"));
  }
}

Status ControlServer::CheckRoomFor(const wire::HelloT& hello) const {
  size_t sessions = 0;
  for (const auto& [fd, peer] : peers_) {
    sessions += peer->session.has_value() ? 1 : 0;
  }
  if (sessions >= options_.max_sessions + (hello.client == 0 ? kMoreForAdministrators : 0)) {
    return Status::Error(EUSERS, "the server has " + std::to_string(sessions) + " clients; its max-sessions is " +
                                     std::to_string(options_.max_sessions) + " (termfs.toml)");
  }
  return CheckDescriptors(kDescriptorsOfSession);
}

Status ControlServer::Admit(const PeerPtr& peer) {
  MakeRoomFor(peer);
  const int fd = peer->socket.get();
  if (!peer->remote()) {
    RETURN_IF_ERROR(EnlargeSendBuffer(fd));
    peer->is_control = true;
  }
  RETURN_IF_ERROR(loop_->Add(fd, EPOLLIN | EPOLLRDHUP, [this, peer](uint32_t events) { OnEvents(peer, events); }));
  peers_.emplace(fd, peer);
  return Status::Ok();
}

void ControlServer::OnEvents(const PeerPtr& peer, uint32_t events) {
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    Drop(peer, Status::Error(ENOTCONN, "the client hung up without a goodbye"));
    return;
  }
  if (!peer->busy) {
    TakeFrames(peer);
  }
}

bool ControlServer::IsControl(const PeerPtr& peer) {
  if (peer->is_control) {
    return true;
  }
  if (peer->tls == nullptr) {
    char first = 0;
    if (options_.plain_data && recv(peer->socket.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && first == 'M') {
      GiveAway(peer, {});
      return false;
    }
    auto tls = TlsSession::Accept(*options_.tls);
    if (!tls.ok()) {
      Refuse(peer, tls.status());
      return false;
    }
    peer->tls = std::move(tls).value();
  }
  std::vector<std::byte> early;
  if (!ShakeHands(peer, early)) {
    return false;
  }
  if (peer->tls->protocol() == driver::kDataProtocol) {
    GiveAway(peer, std::move(early));
    return false;
  }
  peer->is_control = true;
  [[maybe_unused]] const Status enlarged =
      EnlargeSendBuffer(peer->socket.get());  // else a long answer may find no room
  if (const Status secured = peer->reader.Secure(*peer->tls, early); !secured.ok()) {
    Refuse(peer, secured);
    return false;
  }
  return true;
}

// What is sent here is shorter than any socket's buffer.
bool ControlServer::ShakeHands(const PeerPtr& peer, std::vector<std::byte>& early) {
  const int fd = peer->socket.get();
  std::array<std::byte, 4096> some;
  for (;;) {
    const Result<size_t> got = ReceiveSome(fd, some);
    if (!got.ok()) {
      Drop(peer, got.status());
      return false;
    }
    if (got.value() == 0) {
      return false;
    }
    std::span<const std::byte> received = std::span(some).first(got.value());
    Status status = peer->tls->Handshake(received);
    const Status sent = SendAll(fd, peer->tls->TakeOutput(), steady_clock::now());
    if (status = status.ok() ? sent : status; !status.ok()) {
      Refuse(peer, status);
      return false;
    }
    if (peer->tls->established()) {
      early.assign(received.begin(), received.end());
      return true;
    }
  }
}

void ControlServer::GiveAway(const PeerPtr& peer, std::vector<std::byte> early) {
  peer->dropped = true;
  loop_->Remove(peer->socket.get());
  peers_.erase(peer->socket.get());
  options_.adopt({.socket = std::move(peer->socket), .tls = std::move(peer->tls), .early = std::move(early)});
}

void ControlServer::TakeFrames(const PeerPtr& peer) {
  if (!IsControl(peer)) {
    return;
  }
  for (int frames = 0; !peer->busy && !peer->dropped; frames++) {
    if (frames == kFramesAtOnce) {
      loop_->Post([this, peer] { TakeFrames(peer); });
      return;
    }
    const bool begun = peer->reader.holds_bytes();
    auto frame = peer->reader.Next(peer->socket.get());
    if (!frame.ok()) {
      if (frame.status().code() == EPROTO) {
        Refuse(peer, frame.status());
      } else {
        Drop(peer, frame.status());
      }
      return;
    }
    if (!frame->has_value()) {
      if (peer->session.has_value() && !begun && peer->reader.holds_bytes()) {
        peer->since = steady_clock::now();
      }
      return;
    }
    peer->since = peer->heard = steady_clock::now();
    Handle(peer, std::move(**frame));
  }
}

void ControlServer::SetBusy(const PeerPtr& peer, bool busy) {
  peer->busy = busy;
  if (peer->dropped) {
    MaybeFinish(peer);
    return;
  }
  // Level-triggered: what the client sends too early must not wake us until we want it.
  const uint32_t events = busy ? EPOLLRDHUP : EPOLLIN | EPOLLRDHUP;
  if (Status modified = loop_->Modify(peer->socket.get(), events); !modified.ok()) {
    Drop(peer, modified);
    return;
  }
  if (!busy) {
    TakeFrames(peer);
  }
}

void ControlServer::Drop(const PeerPtr& peer, const Status& why) {
  if (std::exchange(peer->dropped, true)) {
    return;
  }
  if (peer->end.how == SessionEnd::How::kLost && peer->remote() && HasHungUp(peer->socket.get())) {
    peer->end.how = SessionEnd::How::kDied;
  }
  loop_->Remove(peer->socket.get());
  peers_.erase(peer->socket.get());
  // Closed with the last reference: a reply may be on its way from another thread.
  const bool may_not_know = peer->end.how == SessionEnd::How::kExpelled && peer->pings;
  shutdown(peer->socket.get(), may_not_know ? SHUT_WR : SHUT_RDWR);
  if (may_not_know) {
    AwaitHangUp(peer);
  }
  if (!peer->session.has_value()) {
    return;
  }
  const std::string session =
      fmt::format("session {} of {} ({})", peer->session->id.value, peer->session->program, peer->from);
  if (peer->end.how == SessionEnd::How::kGoodbye) {
    LOG_DEBUG("{} has ended", session);
  } else if (why.code() == ESHUTDOWN) {
    LOG_INFO("{} ends: {}", session, why.ToString());
  } else {
    LOG_WARNING("{} is lost: {}", session, why.ToString());
  }
  sessions_.Close(peer->session->id, why, [this, peer] {
    loop_->Post([this, peer] {
      peer->session_gone = true;
      MaybeFinish(peer);
    });
  });
}

// What an expelled client on another host had locked is not another's before it knows: it hangs up then, or if nothing
// reaches it finds by itself that its pings are not answered.
void ControlServer::AwaitHangUp(const PeerPtr& peer) {
  peer->unaware = true;
  unaware_.push_back(peer);
  const Status added = loop_->Add(peer->socket.get(), EPOLLIN | EPOLLRDHUP, [this, peer](uint32_t) {
    std::array<std::byte, 4096> unread;
    ssize_t got = 0;
    do {
      got = recv(peer->socket.get(), unread.data(), unread.size(), MSG_DONTWAIT);
    } while (got > 0);
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      NoteAware(PeerPtr(peer));
    }
  });
  if (!added.ok()) {
    LOG_DEBUG("an expelled client is waited for in vain: {}", added.ToString());
  }
}

void ControlServer::NoteAware(const PeerPtr& peer) {
  if (std::exchange(peer->unaware, false)) {
    loop_->Remove(peer->socket.get());
    std::erase(unaware_, peer);
    MaybeFinish(peer);
  }
}

void ControlServer::MaybeFinish(const PeerPtr& peer) {
  if (!peer->session_gone || peer->busy || peer->unaware) {
    return;
  }
  ended_ += peer->session->client != 0 ? 1 : 0;
  pool_->Submit([this, id = peer->session->id, end = peer->end] {
    sessions_.Remove(id);
    service_.SessionClosed(id, end);
    MutexLock lock(mutex_);
    live_--;
    changed_.NotifyAll();
  });
}

// What sessions that have ended had allocated goes back to the system, once none has ended for a tick, and seldom: who
// allocates meanwhile waits.
void ControlServer::TrimMemory() {
  const auto now = std::chrono::steady_clock::now();
  if (ended_ != 0 && ended_ == ended_by_last_tick_ && now >= next_trim_) {
    pool_->Submit([] { malloc_trim(0); });
    ended_ = 0;
    next_trim_ = now + kBetweenTrims;
  }
  ended_by_last_tick_ = ended_;
}

void ControlServer::OnTick() {
  TrimMemory();
  if (!spare_.valid()) {
    spare_ = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  if (!accepting_) {
    SetAccepting(true);
  }
  const auto now = steady_clock::now();
  for (const PeerPtr& peer : std::vector<PeerPtr>(unaware_)) {
    if (now >= peer->heard + kServerSilence) {
      NoteAware(peer);
    }
  }
  std::vector<PeerPtr> silent;
  for (const auto& [fd, peer] : peers_) {
    const bool owes = !peer->session.has_value() || peer->reader.holds_bytes();
    const bool owes_too_long = owes && now - peer->since > kPatience;
    const bool gone = peer->session.has_value() && peer->pings && now - peer->heard > kClientSilence;
    if (!peer->busy && (owes_too_long || gone)) {
      silent.push_back(peer);
    }
  }
  for (const PeerPtr& peer : silent) {
    const bool alive = peer->reader.holds_bytes();
    Drop(peer, Status::Error(ETIMEDOUT, !peer->session.has_value() ? "no Hello"
                                        : alive                    ? "half a message"
                                                                   : "the client is not heard of any more"));
  }
}

void ControlServer::Expel(SessionId session, const std::string& why) {
  ForPeerOf(session, [this, why](const PeerPtr& peer) {
    peer->end.how = SessionEnd::How::kExpelled;
    Drop(peer, Status::Error(ECONNABORTED, "expelled: " + why));
  });
}

void ControlServer::Lose(SessionId session, const std::string& why) {
  ForPeerOf(session, [this, why](const PeerPtr& peer) { Drop(peer, Status::Error(ENOTCONN, why)); });
}

void ControlServer::AskToLeave(SessionId session, const std::string& why) {
  ForPeerOf(session, [why](const PeerPtr& peer) { peer->unwanted = Status::Error(ENOTCONN, why); });
}

void ControlServer::ForPeerOf(SessionId session, std::function<void(const PeerPtr&)> then) {
  loop_->Post([this, session, then = std::move(then)] {
    for (const auto& [fd, peer] : peers_) {
      if (peer->session.has_value() && peer->session->id == session) {
        then(PeerPtr(peer));  // which may be the end of the table's
        return;
      }
    }
  });
}

void ControlServer::Stop() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopped_, true) || !thread_.joinable()) {
      return;
    }
  }
  std::promise<void> dropped;
  loop_->Post([this, &dropped] {
    for (const Listener& listener : listeners_) {
      loop_->Remove(listener.socket.get());
    }
    listeners_.clear();
    unlinkat(directory_.get(), "socket", 0);
    std::vector<PeerPtr> all;
    for (const auto& [fd, peer] : peers_) {
      all.push_back(peer);
    }
    for (const PeerPtr& peer : all) {
      Drop(peer, Status::Error(ESHUTDOWN, "the server stops"));
    }
    for (const PeerPtr& peer : std::vector<PeerPtr>(unaware_)) {
      NoteAware(peer);  // a server that is started again knows no locks before it has asked
    }
    dropped.set_value();
  });
  dropped.get_future().wait();
  const auto deadline = steady_clock::now() + kStopTimeout;
  {
    MutexLock lock(mutex_);
    while (live_ != 0 && changed_.WaitUntil(mutex_, deadline)) {
    }
    if (live_ != 0) {
      LOG_ERROR("{} sessions did not end within {} s", live_, kStopTimeout.count());
    }
  }
  pool_->Stop();
  loop_->Stop();
  thread_.join();
}

}  // namespace termfs::tlib::server

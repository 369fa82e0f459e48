// SPDX-License-Identifier: Apache-2.0
//
// ControlServer: the control socket of a volume, and a session's life from Hello to SessionClosed. One thread waits for
// all clients; what the service does with a session or an administrator's request runs on threads that may block.
//
//   accepted --Hello--> SessionOpened (service) --> Welcome --> requests, one at a time --> hang-up or Expel
//     --> connections closed, requests ended --> SessionClosed (service) --> removed
//
// Over TCP everything is TLS, but for streams of the data path where ControlOptions::plain_data lets them, and
// what is spoken inside (ALPN) a control channel or such a stream. Handshakes are the loop's, and take it 0.2 ms each.
//
// What clients can make it spend is bounded: ControlOptions::max_sessions, and some more of who does not come back, so
// that an administrator gets in; kMaxPeersOfProcess of one process; kMaxStrangers that have not said Hello (the oldest
// makes room); kPatience for a Hello or the rest of a message that has begun. A session needs kDescriptorsOfSession
// file descriptors to be there. A client that is refused for one of these is told so, in answer to its Hello.
//
// Thread-safety: any thread.
// Ownership:     owns the listening socket, its threads and the clients' sockets; refers to the rest.
// Errors:        of a client: an Error message where it can be told, and its session is closed where it broke the
//                protocol. Never the server's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/event_loop.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/seldom.h"
#include "base/unique_fd.h"
#include "tlib/rpc/control_generated.h"
#include "tlib/rpc/control_message.h"
#include "tlib/rpc/server_address.h"
#include "tlib/server/blocking_pool.h"
#include "tlib/server/server.h"
#include "tlib/server/session_table.h"

namespace termfs::tlib::server {

// Over TCP a client proves to know the volume's key before anything else, and then counts as the volume's owner.
struct ControlOptions {
  std::string directory;  // `socket` in it; one that is left over is replaced
  uint32_t allowed_uid = 0;
  uint32_t max_sessions = 4096;
  uint64_t epoch = 1;
  std::string transport;
  std::string network_transport;  // of clients over TCP
  std::string volume;
  std::optional<HostPort> listen;         // on TCP, too
  std::shared_ptr<const TlsContext> tls;  // with `listen`
  bool plain_data = false;  // clients that ask for it have the data path outside of TLS, and messages unsealed
  std::function<wire::RegionInfoT(bool network)> region_info;  // for such a peer; any thread
  std::function<bool(driver::Wire)> speaks;                    // as Nic::Speaks
  bool masks_keys = false;                                     // as Nic::MasksKeys
  std::function<void(driver::AcceptedConnection)> adopt;       // as Nic::Adopt
};

class ControlServer {
 public:
  static Result<std::unique_ptr<ControlServer>> Start(const ControlOptions& options, SessionTable& sessions,
                                                      Service& service);
  // As Stop.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Hangs up on the session's client; SessionClosed follows.
  void Expel(SessionId session, const std::string& why);
  void Lose(SessionId session, const std::string& why);
  // The session's client, on another host, hears at its next ping that it is to give the session up; it may come back.
  // Not before it does the session end: a client knows first, see kServerSilence.
  void AskToLeave(SessionId session, const std::string& why);
  // No new clients; every session closes, SessionClosed has returned for all of them. Idempotent.
  void Stop() EXCLUDES(mutex_);

 private:
  // A client; the loop's thread only, except `socket` (sending) and what is const.
  struct Peer {
    UniqueFd socket;
    std::string from;  // for people: its process, or its host and port
    std::string host;  // over TCP only, as the next
    std::unique_ptr<TlsSession> tls;
    std::optional<driver::NetworkPath> path;
    bool remote() const { return path.has_value(); }
    bool stranger() const { return remote() && (tls == nullptr || !tls->established()); }
    uint32_t uid = 0;
    uint32_t pid = 0;
    std::chrono::steady_clock::time_point since;  // accepted, or the first bytes of a message came
    std::chrono::steady_clock::time_point heard;  // the last message came
    FrameReader reader;
    std::optional<SessionInfo> session;
    bool seals = false;       // the messages of its queue pairs are sealed
    Status unwelcome;         // what its Hello is answered, for want of room
    Status unwanted;          // what its next ping is answered
    bool is_control = false;  // and no stream of the data path
    bool pings = false;       // it says regularly that it is there
    bool busy = false;        // a request is being carried out elsewhere
    bool dropped = false;     // the socket is shut down
    bool session_gone = false;
    bool unaware = false;  // dropped, and it may not know of that yet
    SessionEnd end;        // what SessionClosed will be told; `process` is const
  };
  using PeerPtr = std::shared_ptr<Peer>;

  ControlServer(const ControlOptions& options, SessionTable& sessions, Service& service)
      : options_(options), sessions_(sessions), service_(service) {}
  Status Listen();
  Status ListenHere();

  // On the loop's thread.
  void OnAccept(int listener, bool tcp);
  bool Accept(int listener, bool tcp);
  Status Identify(const PeerPtr& peer, bool tcp);
  Status Admit(const PeerPtr& peer);
  void MakeRoomFor(const PeerPtr& peer);
  Status CheckRoomFor(const wire::HelloT& hello) const;
  void SetAccepting(bool accepting);
  void LogRefusal(const Peer& peer, const Status& why);
  void OnEvents(const PeerPtr& peer, uint32_t events);
  void TakeFrames(const PeerPtr& peer);
  void Handle(const PeerPtr& peer, Frame frame);
  static Status Send(Peer& peer, const wire::ControlMessageT& message, const std::vector<UniqueFd>& fds,
                     std::chrono::steady_clock::time_point deadline);
  void HandleHello(const PeerPtr& peer, const wire::HelloT& hello);
  wire::RegionInfoT RegionFor(const Peer& peer) const;
  static Result<std::unique_ptr<MessageSeal>> SealOf(const Peer& peer, const wire::OpenQueuePairT& request);
  void EndFormerSession(const PeerPtr& peer, uint64_t client);
  void HandleOpenQueuePair(const PeerPtr& peer, const wire::OpenQueuePairT& request, std::vector<UniqueFd> fds);
  void RefuseQueuePair(const PeerPtr& peer, const Status& why);
  void HandleExportHeat(const PeerPtr& peer, const wire::ExportHeatT& request);
  void HandleAdmin(const PeerPtr& peer, wire::AdminT request);
  void SetBusy(const PeerPtr& peer, bool busy);
  template <typename Body>
  void Reply(const PeerPtr& peer, Body body, const std::vector<UniqueFd>& fds = {});
  void ReplyError(const PeerPtr& peer, const Status& error);
  void Refuse(const PeerPtr& peer, const Status& error);
  Status ChooseWire(const PeerPtr& peer, const wire::HelloT& hello) const;
  void HandlePing(const PeerPtr& peer, const wire::PingT& ping);
  void HandleGoodbye(const PeerPtr& peer);
  // Whether it is a control channel; a stream of the data path is given away.
  bool IsControl(const PeerPtr& peer);
  // True: the handshake is done, now.
  bool ShakeHands(const PeerPtr& peer, std::vector<std::byte>& early);
  void GiveAway(const PeerPtr& peer, std::vector<std::byte> early);
  // Calls it on the loop's thread, if the client is still there.
  void ForPeerOf(SessionId session, std::function<void(const PeerPtr&)> then);
  void Drop(const PeerPtr& peer, const Status& why);
  void AwaitHangUp(const PeerPtr& peer);
  void NoteAware(const PeerPtr& peer);
  void MaybeFinish(const PeerPtr& peer);
  void OnTick();
  void TrimMemory();

  static constexpr uint32_t kThreads = 4;

  const ControlOptions options_;
  SessionTable& sessions_;
  Service& service_;
  UniqueFd directory_;
  struct Listener {
    UniqueFd socket;
    bool tcp = false;
  };
  std::vector<Listener> listeners_;
  std::unique_ptr<EventLoop> loop_;
  std::unordered_map<int, PeerPtr> peers_;  // by socket
  std::vector<PeerPtr> unaware_;
  uint64_t ended_ = 0;  // sessions, but administrators', since memory was given back
  uint64_t ended_by_last_tick_ = 0;
  std::chrono::steady_clock::time_point next_trim_{};
  bool accepting_ = true;
  UniqueFd spare_;                             // given up so that a client can be told that there are no descriptors
  Seldom shortages_{std::chrono::minutes(1)};  // of descriptors: lines of the log
  std::chrono::steady_clock::time_point refusal_logged_{};  // the last one of a stranger over TCP
  uint64_t refusals_ = 0;                                   // not logged since
  std::thread thread_;
  std::unique_ptr<BlockingPool> pool_;
  Mutex mutex_;
  CondVar changed_;
  uint32_t live_ GUARDED_BY(mutex_) = 0;  // sessions whose SessionClosed has not returned
  bool stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace termfs::tlib::server

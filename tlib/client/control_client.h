// SPDX-License-Identifier: Apache-2.0
//
// ControlClient: the client's end of the control channel, over a Unix socket or, inside TLS, over TCP. Requests go out
// one at a time and are answered in order.
//
// Thread-safety: any thread; callers take turns.
// Errors:        ENOENT, ECONNREFUSED, EHOSTUNREACH: no server there; EACCES: it does not admit us, or the secret is
// not
//                the volume's; ENOTCONN: it is gone; EBADMSG: somebody in between has changed its answer;
//                ETIMEDOUT, EINTR: no turn or no answer in time, or before the caller was interrupted (an answer that
//                comes later is dropped); EPROTO: it answered something else than asked; otherwise what it answered.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/interruption.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/tls.h"
#include "base/unique_fd.h"
#include "tlib/rpc/control_generated.h"
#include "tlib/rpc/control_message.h"
#include "tlib/rpc/server_address.h"

namespace termfs::tlib::client {

class ControlClient {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // How long a call waits.
  struct Wait {
    Wait(TimePoint until, const Interruption* by = nullptr) : deadline(until), interruption(by) {}
    bool interrupted() const { return interruption != nullptr && interruption->requested(); }
    // When to look again whether it is interrupted.
    TimePoint next_look() const;

    TimePoint deadline;
    const Interruption* interruption;  // of the thread that calls; may be null
  };
  struct Answer {
    wire::ControlMessageT message;
    std::vector<UniqueFd> fds;
  };

  // Connects to the socket in the volume's directory, or to the host, where both ends prove to know the secret.
  // `segment_limit`: over TCP, of segments in both directions; 0: the kernel's choice.
  static Result<std::unique_ptr<ControlClient>> Connect(const ServerAddress& address, uint32_t segment_limit = 0);
  // Over TCP the server sees a reset, as of Shutdown: only a process that has ended just hangs up.
  ~ControlClient();
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  // Sends `body` (a table of the union wire::Body) and waits for the answer, whose body is of type `Reply`.
  template <typename Reply, typename Request>
  Result<Reply> Call(Request body, const Wait& wait, const std::vector<UniqueFd>& fds = {},
                     std::vector<UniqueFd>* answer_fds = nullptr) {
    wire::ControlMessageT message;
    message.body.Set(std::move(body));
    ASSIGN_OR_RETURN(Answer answer, Exchange(message, fds, wait));
    auto* reply = static_cast<Reply*>(
        answer.message.body.type == wire::BodyUnionTraits<Reply>::enum_value ? answer.message.body.value : nullptr);
    if (reply == nullptr) {
      return Status::Error(EPROTO, "the server's answer does not fit the question");
    }
    if (answer_fds != nullptr) {
      *answer_fds = std::move(answer.fds);
    }
    return std::move(*reply);
  }

  // After Hello, over TCP: sends a full segment and has the server send one.
  Status ProbePath(const Wait& wait);

  // Over TCP, of all connections to this server; else null.
  const std::shared_ptr<const TlsContext>& tls_context() const { return tls_context_; }
  // For poll(): hangs up when the server is gone. Nothing else may be done to it.
  int fd() const { return socket_.get(); }
  // Hangs up: whoever waits for an answer gets ENOTCONN.
  void Shutdown();

 private:
  ControlClient(UniqueFd socket, bool tcp) : socket_(std::move(socket)), tcp_(tcp) {}
  static Result<std::unique_ptr<ControlClient>> ConnectHere(const std::string& directory);
  static Result<std::unique_ptr<ControlClient>> ConnectTo(const HostPort& host, const std::string& secret_file,
                                                          uint32_t segment_limit);
  // The handshake over TCP.
  Status Secure(TimePoint deadline);
  // Of the caller whose turn it is.
  Status Send(const wire::ControlMessageT& message, const std::vector<UniqueFd>& fds, TimePoint deadline);
  Result<Frame> Receive(const Wait& wait);
  Result<Answer> Exchange(const wire::ControlMessageT& message, const std::vector<UniqueFd>& fds, const Wait& wait)
      EXCLUDES(mutex_);
  Result<Answer> ExchangeInTurn(const wire::ControlMessageT& message, const std::vector<UniqueFd>& fds,
                                const Wait& wait);

  const UniqueFd socket_;
  const bool tcp_;
  Mutex mutex_;
  CondVar turn_changed_;
  bool busy_ GUARDED_BY(mutex_) = false;

  // Of the caller whose turn it is.
  FrameReader reader_;                             // which refers to tls_
  std::shared_ptr<const TlsContext> tls_context_;  // over TCP, as the next
  std::unique_ptr<TlsSession> tls_;
  uint32_t unanswered_ = 0;  // answers to calls that timed out, still to come
  bool broken_ = false;      // a request was sent in part only
};

}  // namespace termfs::tlib::client

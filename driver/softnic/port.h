// SPDX-License-Identifier: Apache-2.0
//
// Port: the sockets of one queue pair and what the RNIC thread does for it: hand out descriptors of what the peer asks
// for, pass on its page faults, and notice that it is gone.
//
// Thread-safety: Serve on the RNIC thread only; Attach before the RNIC thread watches the port; the rest from any
//                thread.
// Errors:        a peer that breaks the protocol loses its connection (Break), nothing else happens.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/softnic/layout.h"
#include "driver/softnic/registry.h"
#include "driver/softnic/shared_object.h"

namespace termfs::driver::softnic {

class Port : public std::enable_shared_from_this<Port> {
 public:
  // The port, and the descriptor of the peer's end of its socket pair.
  static Result<std::shared_ptr<Port>> Create(std::shared_ptr<Registry> registry, uint32_t domain);

  // The peer's end of our own socket pair; once.
  UniqueFd TakePeerSocket() { return std::move(peer_end_); }
  // The socket on which requests go out and answers come in.
  Status Attach(UniqueFd request_socket);

  // Whose owner Break wakes, should he sleep on the inbox's word. Before the RNIC thread watches the port.
  void SetInbox(std::shared_ptr<SharedObject> inbox) { inbox_ = std::move(inbox); }

  int answer_fd() const { return answer_.get(); }
  int request_fd() const { return request_.get(); }

  // What epoll reported on answer_fd(). False: the connection is lost, stop watching.
  bool Serve(uint32_t events);

  // Hangs up, here and at the peer. Whoever sleeps on request_fd() or the inbox's word wakes up.
  void Break();
  bool broken() const { return broken_.load(std::memory_order_seq_cst); }

  // Wakes the peer.
  void Wake();
  // To the peer's RNIC thread. Never blocks; false: the connection is lost.
  bool SendRequest(const SocketMessage& message);
  // To the peer's queue pair: the fault on a page is over.
  void AnswerFault(RKey rkey, PageIndex page, bool ok);

 private:
  Port(std::shared_ptr<Registry> registry, uint32_t domain) : registry_(std::move(registry)), domain_(domain) {}
  bool HandleRequest(const SocketMessage& request);
  bool AnswerResolve(RKey rkey);
  bool Answer(const SocketMessage& message, std::span<const UniqueFd> fds = {});

  const std::shared_ptr<Registry> registry_;
  const uint32_t domain_;
  UniqueFd answer_;
  UniqueFd peer_end_;
  UniqueFd request_;
  std::shared_ptr<SharedObject> inbox_;
  // Stored after the hang-up, loaded by the queue pair's thread. With the inbox's `armed`, both sequentially consistent:
  // either the owner sees it before he sleeps, or Break wakes him.
  std::atomic<bool> broken_{false};
};

// Reads one message, and up to kMaxMessageFds descriptors into `fds`, without blocking. 1: there is one; 0: there is
// none now; -1: the connection is lost or the peer sent what is no message.
int ReceiveMessage(int socket, SocketMessage* message, std::span<UniqueFd> fds);

}  // namespace termfs::driver::softnic

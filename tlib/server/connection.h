// SPDX-License-Identifier: Apache-2.0
//
// Connection: the server's end of a client's queue pair, on one worker. It hands received messages to its handler,
// sends messages, and carries out one-sided operations for tasks. It has no message buffers of its own: it takes its
// receives from the worker's shared queue, and sends from the worker's buffers.
//
//   kOpen ---- Close, a failed completion ----> kClosing ---- no user, nothing in flight ----> kGone
//
// In kClosing everything in flight completes with an error; tasks that use the connection get ENOTCONN and end. At
// kGone the queue pair is destroyed and `on_gone` called.
//
// Thread-safety: its worker's thread. Functions marked "In a task" may park.
// Ownership:     shared by its NetworkPort and its session; tasks use it as User.
// Errors:        EIO: the peer's memory does not allow the operation; ENOTCONN: the connection is lost or being closed.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/result.h"
#include "driver/nic.h"
#include "tlib/rpc/message_seal.h"
#include "tlib/rpc/messages.h"
#include "tlib/server/message_buffers.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  static constexpr std::chrono::seconds kPatience{10};
  static constexpr uint32_t kMaxSend = 96;
  static constexpr uint32_t kMaxWaiting = kChannelCredits;  // messages of the client that wait for a receive
  static constexpr uint32_t kMaxSending = kChannelCredits;  // messages that it sends at a time
  // What a completion queue must hold for each connection.
  static constexpr uint32_t kMaxCompletions = kMaxSend + 1;

  class Handler {
   public:
    virtual ~Handler() = default;
    // A message; the bytes are valid until it returns. Outside of any task. An error closes the connection.
    virtual Status OnMessage(Connection& connection, std::span<const std::byte> message) = 0;
    // The client has rung: a WRITE with immediate, of no bytes. As OnMessage.
    virtual Status OnRing() = 0;
    // The connection is closing: no message comes any more. Outside of any task.
    virtual void OnClosing(Connection& connection) = 0;
  };

  // What it has of its worker.
  struct Shared {
    driver::ProtectionDomain& domain;
    driver::CompletionQueue& queue;
    driver::SharedReceiveQueue& receives;  // each of MaxSend bytes
    MessageBuffers& buffers;
  };

  // `handler` is kept until the connection is gone. `path`: to a client on another host. `seal`: null: messages are not
  // sealed.
  static Result<std::shared_ptr<Connection>> Create(const Shared& shared,
                                                    const std::optional<driver::NetworkPath>& path,
                                                    std::unique_ptr<MessageSeal> seal,
                                                    std::shared_ptr<Handler> handler);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Connects to the client's endpoint; returns the own one.
  Result<driver::Endpoint> Connect(driver::Endpoint remote);
  uint32_t number() const { return number_; }
  bool open() const { return state_ == State::kOpen; }
  // Of what was received; null: messages are not sealed.
  const MessageSeal* seal() const { return seal_.get(); }

  // In a task. Posts all of `requests` (one-sided; `id` and `signaled` are set here) and waits until they are done. A
  // client on another host that keeps one waiting for longer than kPatience is gone: tasks hold what others want.
  Status Execute(std::span<driver::SendWorkRequest> requests);
  // In a task. Waits for a free buffer, copies the message into it and sends it; does not wait for its delivery.
  // `encode` writes the message to the buffer and returns its length.
  Status Send(const std::function<uint32_t(std::byte*)>& encode);
  // As Send, from anywhere on the worker's thread: EAGAIN instead of waiting.
  Status TrySend(const std::function<uint32_t(std::byte*)>& encode);

  // To the closing state; idempotent.
  void Close(const Status& why);
  // A user keeps a closing connection from going, and so from being destroyed. RAII, on the worker's thread.
  // REQUIRES: the connection is not gone.
  class User {
   public:
    explicit User(Connection& connection) : connection_(connection) { connection_.users_++; }
    ~User() {
      connection_.users_--;
      connection_.MaybeGo();
    }
    User(const User&) = delete;
    User& operator=(const User&) = delete;
    Connection& operator*() const { return connection_; }
    Connection* operator->() const { return &connection_; }

   private:
    Connection& connection_;
  };
  uint32_t users() const { return users_; }

  // Called once each, when the connection is gone: its session's, and its port's.
  void set_on_gone(std::function<void()> on_gone) { on_gone_ = std::move(on_gone); }
  // Called once, on the worker's thread, when what was sent did not arrive, or what arrived was not sent by the client.
  // The client may not know: its end is whole, and a caller that awaits a reply would wait in vain.
  void set_on_unreachable(std::function<void()> on_unreachable) { on_unreachable_ = std::move(on_unreachable); }
  void set_on_port_gone(std::function<void()> on_gone) { on_port_gone_ = std::move(on_gone); }

  // For NetworkPort: a completion of this queue pair, of a send or an operation.
  void OnCompletion(const driver::WorkCompletion& completion);
  // The same of a receive; `message` is what has arrived, and is opened where it is.
  void OnReceive(const driver::WorkCompletion& completion, std::span<std::byte> message);

 private:
  enum class State : uint8_t { kOpen, kClosing, kGone };
  // What a task waits for; lies on its stack.
  struct Batch {
    Task* task;
    uint32_t pending = 0;
    driver::WcStatus status = driver::WcStatus::kSuccess;
  };

  Connection(MessageBuffers& buffers, bool network, std::unique_ptr<MessageSeal> seal, std::shared_ptr<Handler> handler)
      : handler_(std::move(handler)), buffers_(buffers), network_(network), seal_(std::move(seal)) {}
  // Hands over a message.
  Status Take(std::span<std::byte> message);
  // Parks until the batch is done.
  void Await(const Batch& batch);
  // After a completion that failed.
  void Fail(driver::WcStatus status);
  void TellUnreachable(bool is);
  void FreeSendSlots(uint32_t count);
  // Parks until `count` send slots are free, and takes them.
  Status TakeSendSlots(uint32_t count);
  void MaybeGo();

  std::shared_ptr<Handler> handler_;
  MessageBuffers& buffers_;
  const bool network_;
  const std::unique_ptr<MessageSeal> seal_;
  State state_ = State::kOpen;
  bool going_ = false;
  uint32_t number_ = 0;
  uint32_t users_ = 0;
  std::unique_ptr<driver::QueuePair> pair_;
  uint32_t sending_ = 0;            // messages, each with a buffer
  uint32_t free_slots_ = kMaxSend;  // of the send queue
  uint32_t in_flight_ = 0;          // sends posted, not completed
  std::deque<Task*> waiting_;       // for a buffer or for slots
  std::function<void()> on_gone_;
  std::function<void()> on_port_gone_;
  std::function<void()> on_unreachable_;
};

}  // namespace termfs::tlib::server

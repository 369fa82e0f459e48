// SPDX-License-Identifier: Apache-2.0
//
// RpcPort: a channel's queue pair and the calls on it. Up to kChannelCredits calls are in flight, each with a slot: its
// request's bytes, its reply's bytes, and the bulk buffer it named. A call that was given up (ETIMEDOUT, EINTR) keeps
// its slot, and with it the bulk buffer that the server may still reach into, until the reply comes after all, or the
// queue pair is gone.
//
// Thread-safety: the channel's thread.
// Ownership:     owns the queue pair, its completion queues and the message buffers; shares bulk buffers.
// Errors:        ENOTCONN: the session is lost or the queue pair broke, and stays so; ETIMEDOUT: no credit or no reply
//                by the deadline; EINTR: the wait for either was interrupted; EMSGSIZE; otherwise what the server
//                answered.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "driver/nic.h"
#include "tlib/client/completion_waiter.h"
#include "tlib/client/registered_buffer.h"
#include "tlib/client/session_core.h"
#include "tlib/rpc/decode.h"
#include "tlib/rpc/messages.h"

namespace termfs::tlib::client {

class RpcPort {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // Work requests with this id are the one-sided reader's; PollSends tells how many of them have completed.
  static constexpr uint64_t kReadId = 1;
  static constexpr uint32_t kMaxReads = 64;  // of them in flight

  struct Request {
    uint16_t opcode = 0;
    std::span<const std::byte> head;  // the body is head and tail, one after the other
    std::span<const std::byte> tail;
    RemoteBuffer in;
    RemoteBuffer out;
    RequestMark mark{};
    std::span<const std::byte> inline_in{};  // in place of `in`; no more than kMaxInline, copied
  };
  struct Ticket {
    uint32_t slot = 0;
    uint64_t call = 0;
    uint64_t sealed = 0;  // the number of its message
  };

  // `interruption` may be null, and outlives the port. `cpu`: that the calls wait on; -1: anywhere.
  static Result<std::unique_ptr<RpcPort>> Open(std::shared_ptr<SessionCore> core, Interruption* interruption,
                                               int cpu = -1, std::chrono::milliseconds patience = {});
  ~RpcPort();
  RpcPort(const RpcPort&) = delete;
  RpcPort& operator=(const RpcPort&) = delete;

  // Sends a request. `buffer` is what it names, kept as long as the server may reach into it; null: nothing. After an
  // error it was not sent.
  Result<Ticket> Begin(const Request& request, std::shared_ptr<RegisteredBuffer> buffer, Deadline& deadline);
  // Its reply; the body stays valid until the next Begin. After an error the ticket is void.
  Result<DecodedReply> Await(const Ticket& ticket, Deadline& deadline, bool soon = true);
  // Waits until there is the reply to a call that nobody has awaited yet.
  Status AwaitAny(Deadline& deadline);
  bool IsAnswered(const Ticket& ticket) const {
    return slots_[ticket.slot].call == ticket.call && slots_[ticket.slot].state == State::kAnswered;
  }
  bool has_answers() const { return answered_ > 0; }  // that nobody has awaited yet
  // Bulk bytes have arrived for `pieces` of `buffer`, in the order of their places: takes them over, where messages are
  // sealed. Ends the session where they are not what the reply says.
  Status TakeBulk(const Ticket& ticket, const DecodedReply& reply, const RegisteredBuffer& buffer,
                  std::span<const std::span<std::byte>> pieces);
  // The caller has lost interest, its buffer is retired with the call.
  void Abandon(const Ticket& ticket);
  // The same, but WhenAnswered does not mean this one. True when its reply is still to come.
  bool Forget(const Ticket& ticket);
  // Calls `late` with the reply of the call that was abandoned last, when it comes; with ENOTCONN from the destructor,
  // or at once when no call waits for one.
  void WhenAnswered(LateReply late);
  // Until no call that was abandoned waits for its reply.
  Status AwaitAbandoned(Deadline& deadline);
  // A Begin would find a slot at once.
  bool has_credit() const { return !free_.empty(); }
  size_t credits() const { return free_.size(); }
  // Takes in the replies that have come.
  void PollReplies();

  // What replies lie in. It may outlive the port.
  std::shared_ptr<const std::byte[]> messages() const { return messages_; }
  driver::QueuePair& pair() { return *pair_; }
  driver::CompletionQueue& send_queue() { return *send_queue_; }
  driver::CompletionQueue& recv_queue() { return *recv_queue_; }  // of replies
  CompletionWaiter& waiter() { return waiter_; }

  // Takes in completions of the send queue; returns how many were of kReadId, or broken() tells.
  uint32_t PollSends();
  bool broken() const { return broken_; }
  Status why_broken() const { return why_; }
  // Nothing can be sent on it any more, and the session counts as lost. Returns why, as ENOTCONN.
  // Looks once more for replies.
  bool OwesReply();
  Status Break(const Status& why);

 private:
  enum class State : uint8_t { kFree, kWaiting, kAnswered, kAbandoned };
  struct Slot {
    State state = State::kFree;
    uint64_t call = 0;
    uint32_t receive = 0;      // kAnswered: which one holds the reply
    uint32_t reply_bytes = 0;  // of the message
    std::shared_ptr<RegisteredBuffer> buffer;
    LateReply late;  // may be empty
  };

  RpcPort(std::shared_ptr<SessionCore> core, Interruption* interruption)
      : core_(std::move(core)), waiter_(*core_, interruption) {}
  Status Init(int cpu, std::chrono::milliseconds patience, const Interruption* interruption);
  // Adds the tags of the request's bulk bytes to the message, and seals it.
  Result<uint32_t> Seal(std::byte* message, uint32_t length, const Request& request, const RegisteredBuffer* buffer);
  Status PostReceive(uint32_t index);
  Status PostConsumed();
  void HandleReply(const driver::WorkCompletion& completion);
  void Fail(const driver::WorkCompletion& completion);
  void Free(uint32_t slot);
  Status WaitForCredit(Deadline& deadline);

  std::byte* request_bytes(uint32_t slot) { return messages_.get() + size_t{slot} * max_send_; }
  std::byte* receive_bytes(uint32_t index) { return messages_.get() + (kChannelCredits + size_t{index}) * max_send_; }

  const std::shared_ptr<SessionCore> core_;
  CompletionWaiter waiter_;
  std::shared_ptr<std::byte[]> messages_;  // a request per slot; then the receives
  std::unique_ptr<driver::MemoryRegion> messages_region_;
  std::unique_ptr<driver::CompletionQueue> send_queue_;
  std::unique_ptr<driver::CompletionQueue> recv_queue_;
  std::unique_ptr<driver::QueuePair> pair_;
  std::unique_ptr<MessageSeal> seal_;  // null: messages are not sealed
  const uint32_t max_send_ = MaxSend(core_->sealed());
  std::array<Slot, kChannelCredits> slots_;
  std::vector<uint32_t> free_;
  // Receives whose replies were consumed; posted again after the next request, while its reply is on the way. A slot
  // that waits for a reply has a posted one, as there are as many as slots.
  std::vector<uint32_t> consumed_;
  uint32_t answered_ = 0;  // slots in that state
  uint64_t next_call_ = 1;
  Ticket last_abandoned_;
  uint32_t unsignaled_ = 0;
  std::array<driver::WorkCompletion, 8> completions_;  // of PollSends, which is too hot to initialise them every time
  bool broken_ = false;
  Status why_;
};

}  // namespace termfs::tlib::client

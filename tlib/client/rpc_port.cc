// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/rpc_port.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/log.h"

namespace termfs::tlib::client {
namespace {

// A port that ends waits so long for the replies that it is owed: without them the session would end with it.
constexpr std::chrono::milliseconds kLastReplies{1000};
constexpr std::chrono::microseconds kLookAtLastReplies{200};

constexpr uint64_t kSendId = 2;
constexpr uint32_t kSignalEvery = 16;  // SENDs: a queue pair learns from a signaled one that those before it are done
constexpr uint32_t kMaxSend = RpcPort::kMaxReads + 2 * kChannelCredits;

Status ErrorOf(const DecodedReply& reply) {
  return Status::Error(reply.header.error,
                       std::string(reinterpret_cast<const char*>(reply.body.data()), reply.body.size()));
}

}  // namespace

Result<std::unique_ptr<RpcPort>> RpcPort::Open(std::shared_ptr<SessionCore> core, Interruption* interruption, int cpu,
                                               std::chrono::milliseconds patience) {
  std::unique_ptr<RpcPort> port(new RpcPort(std::move(core), interruption));
  RETURN_IF_ERROR(port->Init(cpu, patience, interruption));
  return port;
}

bool RpcPort::OwesReply() {
  const auto owed = [](const Slot& slot) { return slot.state == State::kWaiting || slot.state == State::kAbandoned; };
  if (std::none_of(slots_.begin(), slots_.end(), owed)) {
    return false;
  }
  PollReplies();  // who did not come back to ask may have been answered
  return std::any_of(slots_.begin(), slots_.end(), owed);
}

RpcPort::~RpcPort() {
  const auto deadline = std::chrono::steady_clock::now() + kLastReplies;
  bool owed = OwesReply();
  while (owed && core_->over_network() && !broken_ && !core_->patterns().lost() &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kLookAtLastReplies);
    owed = OwesReply();
  }
  if (owed && core_->over_network()) {
    // The server does not know whether the reply was taken, and it may have granted a lease.
    core_->MarkLost(Status::Error(ENOTCONN, "a call was given up, and its queue pair ended before the reply came"));
  }
  // Before the memory regions of messages and bulk buffers go.
  pair_.reset();
  send_queue_.reset();
  recv_queue_.reset();
  for (Slot& slot : slots_) {
    if (slot.late) {
      slot.late(Status::Error(ENOTCONN, "the channel ended before the reply came"));
    }
  }
}

Status RpcPort::Init(int cpu, std::chrono::milliseconds patience, const Interruption* interruption) {
  const size_t bytes = 2 * size_t{kChannelCredits} * max_send_;
  messages_ = std::make_unique_for_overwrite<std::byte[]>(bytes);  // not make_shared: as malloc aligns it
  ASSIGN_OR_RETURN(messages_region_,
                   core_->domain().RegisterMemory(messages_.get(), bytes, driver::Access::kLocalWrite));
  ASSIGN_OR_RETURN(send_queue_, core_->nic().CreateCompletionQueue(kMaxSend));
  ASSIGN_OR_RETURN(recv_queue_, core_->nic().CreateCompletionQueue(kChannelCredits));
  ASSIGN_OR_RETURN(auto opened, core_->OpenQueuePair(wire::Purpose::Data,
                                                     {.send_cq = send_queue_.get(),
                                                      .recv_cq = recv_queue_.get(),
                                                      .max_send = kMaxSend,
                                                      .max_recv = kChannelCredits,
                                                      .max_message = max_send_},
                                                     cpu, patience, interruption));
  pair_ = std::move(opened.pair);
  seal_ = std::move(opened.seal);
  for (uint32_t i = 0; i < kChannelCredits; i++) {
    free_.push_back(kChannelCredits - 1 - i);
    RETURN_IF_ERROR(PostReceive(i));
  }
  return Status::Ok();
}

Status RpcPort::PostReceive(uint32_t index) {
  const driver::RecvWorkRequest receive{
      .id = index, .local = {.addr = receive_bytes(index), .length = max_send_, .lkey = messages_region_->lkey()}};
  return pair_->PostRecv({&receive, 1});
}

Status RpcPort::PostConsumed() {
  for (const uint32_t index : consumed_) {
    RETURN_IF_ERROR(PostReceive(index));
  }
  consumed_.clear();
  return Status::Ok();
}

// The session is lost with it: a new one, with new queue pairs, is how a lane heals.
Status RpcPort::Break(const Status& why) {
  if (!broken_) {
    broken_ = true;
    why_ = why.code() == ENOTCONN ? why : Status::Error(ENOTCONN, "the connection broke: " + why.ToString());
    pair_->Close();
    core_->MarkLost(why_);
  }
  return why_;
}

void RpcPort::Fail(const driver::WorkCompletion& completion) {
  [[maybe_unused]] const Status kept =
      Break(Status::Error(ENOTCONN, "the connection broke: " + std::string(driver::ToString(completion.status))));
}

uint32_t RpcPort::PollSends() {
  const size_t count = send_queue_->Poll(completions_);
  uint32_t reads = 0;
  for (size_t i = 0; i < count; i++) {
    if (completions_[i].status != driver::WcStatus::kSuccess) [[unlikely]] {
      Fail(completions_[i]);
    } else {
      reads += completions_[i].id == kReadId;
    }
  }
  return reads;
}

void RpcPort::Free(uint32_t slot) {
  if (slots_[slot].state == State::kAnswered) {
    answered_--;
    consumed_.push_back(slots_[slot].receive);
  }
  slots_[slot].state = State::kFree;
  slots_[slot].buffer.reset();
  free_.push_back(slot);
}

void RpcPort::PollReplies() {
  std::array<driver::WorkCompletion, 4> completions;  // initialised every time, so few
  size_t count = 0;
  do {
    count = recv_queue_->Poll(completions);
    for (size_t i = 0; i < count; i++) {
      if (completions[i].status != driver::WcStatus::kSuccess) {
        PollSends();  // a SEND that failed first tells more than the receives flushed after it
        Fail(completions[i]);
        return;
      }
      HandleReply(completions[i]);
    }
  } while (count == completions.size());
}

void RpcPort::HandleReply(const driver::WorkCompletion& completion) {
  if (completion.has_imm) {  // a WRITE: its length says nothing of the receive
    [[maybe_unused]] const Status kept = Break(Status::Error(EPROTO, "the server sent a WRITE with immediate"));
    return;
  }
  const auto index = static_cast<uint32_t>(completion.id);
  std::span<std::byte> message(receive_bytes(index), completion.byte_len);
  if (seal_ != nullptr) {
    auto opened = seal_->Open(message);
    if (!opened.ok()) {
      [[maybe_unused]] const Status kept = Break(opened.status());
      return;
    }
    message = *opened;
  }
  const auto reply = DecodeReply(message, seal_ != nullptr);
  if (!reply.ok()) {
    [[maybe_unused]] const Status kept = Break(reply.status());
    return;
  }
  const auto slot = static_cast<uint32_t>(reply->header.call % kChannelCredits);
  Slot& owner = slots_[slot];
  if (owner.call != reply->header.call || owner.state == State::kFree || owner.state == State::kAnswered) {
    [[maybe_unused]] const Status kept = Break(Status::Error(EPROTO, "the server answered what nobody asked"));
    return;
  }
  if (owner.state == State::kAbandoned) {
    const LateReply late = std::exchange(owner.late, nullptr);
    consumed_.push_back(index);
    Free(slot);
    if (late) {
      late(reply->header.error != 0 ? Result<std::span<const std::byte>>(ErrorOf(*reply)) : reply->body);
    }
  } else {
    owner.receive = index;
    owner.reply_bytes = static_cast<uint32_t>(message.size());
    owner.state = State::kAnswered;
    answered_++;
  }
}

Status RpcPort::WaitForCredit(Deadline& deadline) {
  RETURN_IF_ERROR(waiter_.Wait(
      *recv_queue_,
      [this] {
        PollReplies();
        return broken_ || !free_.empty();
      },
      deadline, /*soon=*/false));
  return broken_ ? why_ : Status::Ok();
}

Result<RpcPort::Ticket> RpcPort::Begin(const Request& request, std::shared_ptr<RegisteredBuffer> buffer,
                                       Deadline& deadline) {
  last_abandoned_ = {};
  if (core_->patterns().lost()) {
    return core_->why_lost();
  }
  if (broken_) {
    return why_;
  }
  const size_t body = request.head.size() + request.tail.size();
  if (body + request.inline_in.size() > kMaxMessage - sizeof(RequestHeader)) {
    return Status::Error(EMSGSIZE, "request too long");
  }
  if (free_.empty()) {
    RETURN_IF_ERROR(WaitForCredit(deadline));
  }
  const bool brings = !request.inline_in.empty();
  const uint32_t slot = free_.back();
  const uint64_t call = next_call_++ * kChannelCredits + slot;
  const RequestHeader header{
      .call = call,
      .epoch = core_->epoch(),
      .opcode = static_cast<uint16_t>(request.opcode | (brings ? kInline : 0)),
      .slot = request.mark.slot,
      .body_bytes = static_cast<uint32_t>(body),
      .mark = request.mark.Packed(),
      .in = brings ? RemoteBuffer{.length = static_cast<uint32_t>(request.inline_in.size())} : request.in,
      .out = request.out};
  std::byte* const message = request_bytes(slot);
  std::memcpy(message, &header, sizeof(header));
  std::copy(request.head.begin(), request.head.end(), message + sizeof(header));
  std::copy(request.tail.begin(), request.tail.end(), message + sizeof(header) + request.head.size());
  std::copy(request.inline_in.begin(), request.inline_in.end(), message + sizeof(header) + body);
  auto length = static_cast<uint32_t>(sizeof(header) + body + request.inline_in.size());
  const uint64_t sealed = seal_ != nullptr ? seal_->next_sealed() : 0;
  if (seal_ != nullptr) {
    auto whole = Seal(message, length, request, buffer.get());
    if (!whole.ok()) {
      return Break(whole.status());
    }
    length = *whole;
  }
  driver::SendWorkRequest send{
      .id = kSendId, .opcode = driver::Opcode::kSend, .signaled = ++unsignaled_ >= kSignalEvery};
  send.local = {.addr = message, .length = length, .lkey = messages_region_->lkey()};
  if (send.signaled) {
    unsignaled_ = 0;
  }
  if (const Status posted = pair_->PostSend({&send, 1}); !posted.ok()) {
    return Break(posted);
  }
  free_.pop_back();
  Slot& taken = slots_[slot];
  taken.state = State::kWaiting;
  taken.call = call;
  taken.buffer = std::move(buffer);
  // Now that the server has something to do.
  PollSends();
  if (const Status posted = PostConsumed(); !posted.ok()) {
    [[maybe_unused]] const Status kept = Break(posted);  // Await says so: the request was sent
  }
  return Ticket{.slot = slot, .call = call, .sealed = sealed};
}

Result<uint32_t> RpcPort::Seal(std::byte* message, uint32_t length, const Request& request,
                               const RegisteredBuffer* buffer) {
  if (request.in.length != 0) {
    const uint32_t tag_bytes = TagsOf(request.in.length) * kTagBytes;
    const auto bytes = buffer->bytes().subspan(request.in.offset, request.in.length);
    RETURN_IF_ERROR(seal_->TagIn(seal_->next_sealed(), bytes, {message + length, tag_bytes}));
    length += tag_bytes;
  }
  return seal_->Seal(message, length);
}

Status RpcPort::TakeBulk(const Ticket& ticket, const DecodedReply& reply, const RegisteredBuffer& buffer,
                         std::span<const std::span<std::byte>> pieces) {
  if (seal_ == nullptr) {
    return Status::Ok();
  }
  const auto taken = [&]() -> Status {
    ASSIGN_OR_RETURN(TagOfBytes tag, seal_->BeginOut(ticket.sealed));
    for (const std::span<std::byte> piece : pieces) {
      RETURN_IF_ERROR(tag.Add(buffer.TakeOver(piece.data(), piece.size())));
    }
    ASSIGN_OR_RETURN(const Aead::Tag ours, tag.End());
    Aead::Tag theirs{};
    std::copy(reply.out_tag.begin(), reply.out_tag.end(), theirs.begin());
    return !reply.out_tag.empty() && IsSameTag(ours, theirs)
               ? Status::Ok()
               : Status::Error(EBADMSG, "bulk bytes that were changed on the way");
  }();
  return taken.ok() ? taken : Break(taken);
}

Result<DecodedReply> RpcPort::Await(const Ticket& ticket, Deadline& deadline, bool soon) {
  Slot& slot = slots_[ticket.slot];
  Status waited = waiter_.Wait(
      *recv_queue_,
      [&] {
        PollReplies();
        return slot.state == State::kAnswered || broken_;
      },
      deadline, soon);
  if (slot.state != State::kAnswered) {
    Abandon(ticket);
    return waited.ok() ? why_ : waited;
  }
  const std::span<const std::byte> message(receive_bytes(slot.receive), slot.reply_bytes);
  Free(ticket.slot);
  ASSIGN_OR_RETURN(const DecodedReply reply, DecodeReply(message, seal_ != nullptr));
  if (reply.header.error != 0) {
    return ErrorOf(reply);
  }
  return reply;
}

Status RpcPort::AwaitAny(Deadline& deadline) {
  RETURN_IF_ERROR(waiter_.Wait(
      *recv_queue_,
      [this] {
        PollReplies();
        return answered_ > 0 || broken_;
      },
      deadline, /*soon=*/false));
  return answered_ > 0 ? Status::Ok() : why_;
}

Status RpcPort::AwaitAbandoned(Deadline& deadline) {
  const auto none = [this] {
    return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.state == State::kAbandoned; });
  };
  RETURN_IF_ERROR(waiter_.Wait(
      *recv_queue_,
      [&] {
        PollReplies();
        return broken_ || none();
      },
      deadline, /*soon=*/false));
  return none() ? Status::Ok() : why_;
}

void RpcPort::Abandon(const Ticket& ticket) {
  if (Forget(ticket)) {
    last_abandoned_ = ticket;
  }
}

bool RpcPort::Forget(const Ticket& ticket) {
  Slot& slot = slots_[ticket.slot];
  if (slot.call == ticket.call && slot.state == State::kAnswered) {
    Free(ticket.slot);
    return false;
  }
  const bool waiting = slot.call == ticket.call && slot.state == State::kWaiting;
  if (waiting) {
    slot.state = State::kAbandoned;
  }
  return waiting;
}

void RpcPort::WhenAnswered(LateReply late) {
  Slot& slot = slots_[last_abandoned_.slot];
  if (slot.state == State::kAbandoned && slot.call == last_abandoned_.call && !slot.late) {
    slot.late = std::move(late);
  } else {
    late(Status::Error(ENOTCONN, "no call waits for a reply"));
  }
}

}  // namespace termfs::tlib::client

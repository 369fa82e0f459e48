// SPDX-License-Identifier: Apache-2.0
//
// SEND, RECV and WRITE with immediate, through the inbox ring (layout.h).
//
// No lost wake-ups, in both directions the same way: the sleeper raises its flag, then looks for work; the waker
// provides work, then looks at the flag. All four accesses are sequentially consistent, so at least one side sees the
// other. Message: slot.sequence against armed. Credit: posted against sender_waiting.
//
// What a hostile peer may do to our inbox: anything, at any time. We read each word of a slot once, check the copy, and
// index with our own counters. A message that makes no sense ends this connection.
#include <algorithm>

#include "driver/softnic/queue_pair.h"

namespace termfs::driver::softnic {

namespace {

// Has the processor take the first lines of a slot's payload away from the peer's cache while there is time, instead of
// when the next message is copied there: the sequence is seen no earlier than they are ours. Not the header's line,
// which the peer polls. (The compiler's builtin makes an ordinary prefetch of it where it may not assume prefetchw;
// every x86-64 takes it, if only as a no-op.)
void OwnPayload(SlotHeader& slot) {
#if defined(__x86_64__)
  const auto* const header = reinterpret_cast<const std::byte*>(&slot);
  asm volatile("prefetchw %0" : : "m"(header[64]));
  asm volatile("prefetchw %0" : : "m"(header[128]));
#endif
}

}  // namespace

bool SoftQueuePair::HaveCredit() {
  if (credit_ == sent_) {
    credit_ = peer_control().posted.load(std::memory_order_acquire);
  }
  return credit_ != sent_;
}

SoftQueuePair::Outcome SoftQueuePair::Send(const SendWorkRequest& request, Progressing& progress) {
  const bool write = request.opcode == Opcode::kRdmaWriteWithImm;
  if (!local_keys_.Cover(request.local, /*write=*/false)) {
    return Done(progress, WcStatus::kLocProtErr);
  }
  if (!write && request.local.length > options_.max_message) {
    return Done(progress, WcStatus::kLocLenErr);
  }
  if (!HaveCredit()) {
    if (progress.wait != Wait::kReceive) {
      return Block(progress, Wait::kReceive, options_.rnr_timeout);
    }
    return Expired(progress) ? Done(progress, WcStatus::kRnrRetryExcErr) : Outcome::kBlocked;
  }
  if (credit_ - sent_ > peer_slots_) {
    return Done(progress, WcStatus::kRemOpErr);  // more receives than its inbox has slots: not a peer that works
  }
  if (write) {
    if (request.local.length != 0) {
      const Outcome written = Write(request, progress);
      if (written == Outcome::kBlocked || progress.status != WcStatus::kSuccess) {
        return written;
      }
    }
    PutMessage(SlotKind::kWriteWithImm, {}, request.local.length, request.imm);
    return Done(progress, WcStatus::kSuccess);
  }
  if (request.local.length > kSmallPayload && !FindLarge()) {
    return Done(progress, WcStatus::kRemOpErr);
  }
  const uint32_t receive_length = PeerSlot(sent_).receive_length.load(std::memory_order_relaxed);
  if (request.local.length > std::min(receive_length, peer_max_message_)) {
    PutMessage(SlotKind::kTooLong, {}, request.local.length, 0);
    return Done(progress, WcStatus::kRemInvReqErr);
  }
  PutMessage(SlotKind::kSend, {static_cast<const std::byte*>(request.local.addr), request.local.length},
             request.local.length, 0);
  return Done(progress, WcStatus::kSuccess);
}

bool SoftQueuePair::FindLarge() {
  if (!large_.empty()) {
    const uint64_t taken = peer_control().taken.load(std::memory_order_acquire);  // pairs with TakeMessage's release
    const auto is_taken = [taken](const Large& large) { return large.message < taken; };
    const auto in_use = std::find_if_not(large_.begin(), large_.end(), is_taken);
    std::for_each(large_.begin(), in_use, [&](const Large& large) { free_large_.push_back(large.index); });
    large_.erase(large_.begin(), in_use);
  }
  if (free_large_.empty() && touched_large_ < peer_slots_) {
    free_large_.push_back(touched_large_++);
  }
  return !free_large_.empty();
}

void SoftQueuePair::PutMessage(SlotKind kind, std::span<const std::byte> payload, uint32_t length, uint32_t imm) {
  SlotHeader& slot = PeerSlot(sent_);
  if (payload.size() > kSmallPayload) {
    const uint32_t index = free_large_.back();
    free_large_.pop_back();
    large_.push_back({.message = sent_, .index = index});
    RacyCopy(PeerLarge(index), payload.data(), payload.size());
    slot.large.store(index, std::memory_order_relaxed);
  } else if (!payload.empty()) {
    RacyCopy(reinterpret_cast<std::byte*>(&slot) + sizeof(SlotHeader), payload.data(), payload.size());
  }
  slot.length.store(length, std::memory_order_relaxed);
  slot.imm.store(imm, std::memory_order_relaxed);
  slot.kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  sent_++;
  slot.sequence.store(sent_, std::memory_order_seq_cst);
  if (!wakes_later_) {
    wakes_later_ = send_queue_->WakeLater(this);
    if (!wakes_later_) {
      WakePeer();
    }
  }
  OwnPayload(PeerSlot(sent_));
}

void SoftQueuePair::WakePeer() {
  wakes_later_ = false;
  InboxControl& control = peer_control();
  if (control.armed.load(std::memory_order_seq_cst) != 0 && control.armed.exchange(0) != 0) {
    port_->Wake();
  }
}

// What the inbox holds; whether there is a receive for it is seen when it is taken out.
void SoftQueuePair::OfferSharedReceives() {
  posted_ = options_.max_recv;
  for (uint64_t number = 0; number < slots_; number++) {
    OwnSlot(number).receive_length.store(shared_->max_message(), std::memory_order_relaxed);
  }
  own_control().posted.store(posted_, std::memory_order_release);
}

Status SoftQueuePair::PostRecv(std::span<const RecvWorkRequest> requests) {
  if (shared_ != nullptr) {
    return Status::Error(EINVAL, "post a receive to a queue pair that takes shared ones");
  }
  if (requests.size() > options_.max_recv - receives_in_flight_) {
    return Status::Error(ENOMEM, "post more receives than the queue pair holds");
  }
  receives_in_flight_ += static_cast<uint32_t>(requests.size());
  if (state_ == State::kError) {
    for (const RecvWorkRequest& request : requests) {
      CompleteReceive(request, WcStatus::kWrFlushErr, 0, false, 0);
    }
    return Status::Ok();
  }
  for (const RecvWorkRequest& request : requests) {
    receives_[posted_ & (slots_ - 1)] = request;
    std::atomic<uint32_t>& receive_length = OwnSlot(posted_).receive_length;
    if (receive_length.load(std::memory_order_relaxed) != request.local.length) {
      receive_length.store(request.local.length, std::memory_order_relaxed);
    }
    posted_++;
  }
  ShowPosted();
  return Status::Ok();
}

void SoftQueuePair::ShowPosted() {
  InboxControl& control = own_control();
  control.posted.store(posted_, std::memory_order_seq_cst);
  if (control.sender_waiting.load(std::memory_order_seq_cst) != 0 && control.sender_waiting.exchange(0) != 0) {
    port_->Wake();
  }
}

bool SoftQueuePair::MessageWaits(std::memory_order order) const {
  return received_ != posted_ && OwnSlot(received_).sequence.load(order) == received_ + 1;
}

void SoftQueuePair::TakeMessages(size_t limit) {
  size_t taken = 0;
  for (; taken < limit && MessageWaits(std::memory_order_acquire) && HasReceive(); taken++) {
    if (!TakeMessage()) {
      EnterError(WcStatus::kWrFlushErr);
      return;
    }
  }
  if (shared_ != nullptr && taken != 0) {
    posted_ += taken;
    ShowPosted();
  }
}

// False: the receive completed with an error.
bool SoftQueuePair::TakeMessage() {
  SlotHeader& slot = OwnSlot(received_);
  const uint32_t length = slot.length.load(std::memory_order_relaxed);
  const uint32_t imm = slot.imm.load(std::memory_order_relaxed);
  const auto kind = static_cast<SlotKind>(slot.kind.load(std::memory_order_relaxed));
  const RecvWorkRequest request = shared_ != nullptr ? shared_->Take() : receives_[received_ & (slots_ - 1)];
  received_++;
  if (kind == SlotKind::kWriteWithImm) {
    CompleteReceive(request, WcStatus::kSuccess, length, true, imm);
    return true;
  }
  WcStatus status = WcStatus::kSuccess;
  if (kind != SlotKind::kSend && kind != SlotKind::kTooLong) {
    status = WcStatus::kFatalErr;
  } else if (kind == SlotKind::kTooLong || length > request.local.length || length > options_.max_message) {
    status = WcStatus::kLocLenErr;
  } else if (!local_keys_.Cover(request.local, /*write=*/true)) {
    status = WcStatus::kLocProtErr;
  }
  if (status == WcStatus::kSuccess && length != 0) {
    status = TakePayload(slot, length, request);
  }
  CompleteReceive(request, status, status == WcStatus::kSuccess ? length : 0, false, 0);
  return status == WcStatus::kSuccess;
}

// Its slot is not the peer's to write to again before a receive is posted in its place.
WcStatus SoftQueuePair::TakePayload(const SlotHeader& slot, uint32_t length, const RecvWorkRequest& request) {
  if (length <= kSmallPayload) {
    RacyCopy(request.local.addr, reinterpret_cast<const std::byte*>(&slot) + sizeof(SlotHeader), length);
    return WcStatus::kSuccess;
  }
  const uint32_t index = slot.large.load(std::memory_order_relaxed);
  if (index >= slots_) {
    return WcStatus::kFatalErr;
  }
  RacyCopy(request.local.addr, OwnLarge(index), length);
  own_control().taken.store(received_, std::memory_order_release);  // pairs with FindLarge's acquire
  return WcStatus::kSuccess;
}

}  // namespace termfs::driver::softnic

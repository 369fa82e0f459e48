// SPDX-License-Identifier: Apache-2.0
#include "driver/roce/responder.h"

#include <algorithm>
#include <cstring>

namespace termfs::driver::roce {
namespace {

constexpr uint32_t kPacketsAtOnce = 64;   // that one Continue sends
constexpr uint32_t kUnacknowledged = 16;  // packets; then the peer hears of them without asking
constexpr uint8_t kNotReadyTimer = 12;    // 0.64 ms
constexpr uint8_t kNoCredits = 31;        // "invalid": end-to-end flow control is not used
constexpr size_t kMostReads = 2 * size_t{kMaxReads};
constexpr int32_t kMostOutstanding = 1 << 16;  // packets of SENDs and WRITEs that a peer may repeat

}  // namespace

Responder::Responder(const ConnectionOptions& options, RemoteMemory& memory, PacketSink& sink,
                     CompletionSink& completions, ConnectionCounters& counters)
    : options_(options),
      memory_(memory),
      sink_(sink),
      completions_(completions),
      counters_(counters),
      expected_(options.peer_first_sequence & kSequenceMask) {
  attempts_.fill(kSequenceMask + 1);  // none
}

void Responder::Post(const RecvWorkRequest& request) {
  receives_.push_back(request);
  if (failed_) {
    FailReceive(WcStatus::kWrFlushErr);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Requests.

void Responder::OnPacket(const Packet& packet) {
  if (failed_ || IsResponse(packet.op)) {
    counters_.dropped++;
    return;
  }
  const int32_t ahead = SequenceDistance(packet.sequence, expected_);
  if (ahead > 0) {
    counters_.dropped++;
    if (!told_missing_) {  // once: it goes on hearing the rest of what was sent
      told_missing_ = true;
      Nak(AckKind::kNak, static_cast<uint8_t>(NakCode::kSequenceError));
    }
    return;
  }
  if (ahead < 0) {
    OnDuplicate(packet);
    return;
  }
  told_missing_ = false;
  OnNext(packet);
}

// The answer was lost, or is on its way.
void Responder::OnDuplicate(const Packet& packet) {
  switch (packet.op) {
    case Op::kReadRequest:
      if (WasAsked(packet) && IsAllowed(packet) && IsNewAttempt(packet)) {
        QueueRead(packet);
      } else {
        counters_.dropped++;  // the network doubled or delayed it, or it is forged
      }
      return;
    case Op::kCompareSwap:
    case Op::kFetchAdd:
      for (const DoneAtomic& done : atomics_) {
        if (done.valid && done.sequence == packet.sequence) {
          answers_.push_back({.kind = Answer::Kind::kAtomic,
                              .sequence = done.sequence,
                              .ack = {.kind = AckKind::kAck, .value = kNoCredits, .message = message_},
                              .original = done.original});
          return;
        }
      }
      counters_.dropped++;
      return;
    default:
      if (SequenceDistance(expected_, packet.sequence) > kMostOutstanding) {
        counters_.dropped++;
      } else if (packet.wants_ack) {
        Acknowledge();
      }
  }
}

// From the beginning, or the rest from some packet of its response on.
bool Responder::WasAsked(const Packet& packet) const {
  return std::any_of(reads_.begin(), reads_.end(), [&](const AskedRead& read) {
    const int32_t packets = SequenceDistance(packet.sequence, read.sequence);
    const uint64_t done = static_cast<uint64_t>(std::max(packets, 0)) * options_.mtu;
    return read.valid && packets >= 0 && (done < read.length || done == 0) && packet.rkey == read.rkey.value &&
           packet.address == read.offset + done && packet.length == read.length - done;
  });
}

bool Responder::IsAllowed(const Packet& packet) const {
  return packet.length == 0 || memory_.Allows({packet.rkey}, packet.address, packet.length, Access::kRemoteRead);
}

void Responder::OnNext(const Packet& packet) {
  switch (packet.op) {
    case Op::kSendFirst:
    case Op::kSendOnly:
    case Op::kSendOnlyImm:
      return OnSend(packet, true, packet.op != Op::kSendFirst);
    case Op::kSendMiddle:
    case Op::kSendLast:
    case Op::kSendLastImm:
      return OnSend(packet, false, packet.op != Op::kSendMiddle);
    case Op::kWriteFirst:
    case Op::kWriteOnly:
    case Op::kWriteOnlyImm:
      return OnWrite(packet, true, packet.op != Op::kWriteFirst);
    case Op::kWriteMiddle:
    case Op::kWriteLast:
    case Op::kWriteLastImm:
      return OnWrite(packet, false, packet.op != Op::kWriteMiddle);
    case Op::kReadRequest:
      return OnRead(packet);
    default:
      return OnAtomic(packet);
  }
}

// Only the last packet of a message may be shorter than the others.
bool Responder::RightLength(const Packet& packet, bool last) const {
  return last ? packet.payload.size() <= options_.mtu : packet.payload.size() == options_.mtu;
}

bool Responder::HasReceive() {
  if (receives_.empty() && options_.receives != nullptr) {
    if (const std::optional<RecvWorkRequest> taken = options_.receives->Take()) {
      receives_.push_back(*taken);
    }
  }
  if (receives_.empty()) {
    Nak(AckKind::kReceiverNotReady, kNotReadyTimer);
    told_missing_ = true;  // what follows comes again, too
  }
  return !receives_.empty();
}

void Responder::OnSend(const Packet& packet, bool first, bool last) {
  if (incoming_ != (first ? Incoming::kNone : Incoming::kSend) || !RightLength(packet, last)) {
    Refuse(NakCode::kInvalidRequest);
    return;
  }
  if (first && !HasReceive()) {
    return;
  }
  const RecvWorkRequest& receive = receives_.front();
  received_ = first ? 0 : received_;
  if (packet.payload.size() > receive.local.length - received_) {
    FailReceive(WcStatus::kLocLenErr);
    Refuse(NakCode::kInvalidRequest);
    return;
  }
  if (!packet.payload.empty()) {
    std::memcpy(static_cast<std::byte*>(receive.local.addr) + received_, packet.payload.data(), packet.payload.size());
  }
  received_ += static_cast<uint32_t>(packet.payload.size());
  incoming_ = last ? Incoming::kNone : Incoming::kSend;
  if (last) {
    const bool imm = packet.op == Op::kSendLastImm || packet.op == Op::kSendOnlyImm;
    FinishReceive(received_, imm, packet.imm);
  }
  Done(packet, last);
}

void Responder::OnWrite(const Packet& packet, bool first, bool last) {
  if (incoming_ != (first ? Incoming::kNone : Incoming::kWrite) || !RightLength(packet, last)) {
    Refuse(NakCode::kInvalidRequest);
    return;
  }
  if (first) {
    write_rkey_ = {packet.rkey};
    write_offset_ = packet.address;
    write_length_ = packet.length;
    received_ = 0;
    if (write_length_ != 0 && !memory_.Allows(write_rkey_, write_offset_, write_length_, Access::kRemoteWrite)) {
      Refuse(NakCode::kRemoteAccess);
      return;
    }
  }
  const auto length = static_cast<uint32_t>(packet.payload.size());
  if (length > write_length_ - received_ || (last && length != write_length_ - received_)) {
    Refuse(NakCode::kInvalidRequest);
    return;
  }
  const bool imm = packet.op == Op::kWriteLastImm || packet.op == Op::kWriteOnlyImm;
  if (imm && !HasReceive()) {
    return;
  }
  if (length != 0 && !memory_.Write(write_rkey_, write_offset_ + received_, packet.payload)) {
    Refuse(NakCode::kRemoteAccess);
    return;
  }
  received_ += length;
  incoming_ = last ? Incoming::kNone : Incoming::kWrite;
  if (imm) {
    FinishReceive(received_, true, packet.imm);
  }
  Done(packet, last);
}

void Responder::OnRead(const Packet& packet) {
  if (incoming_ != Incoming::kNone || PacketsOf(packet.length) > kMaxPacketsOfMessage) {
    Refuse(NakCode::kInvalidRequest);
    return;
  }
  if (!IsAllowed(packet)) {
    Refuse(NakCode::kRemoteAccess);
    return;
  }
  reads_[next_read_++ % reads_.size()] = {.sequence = packet.sequence,
                                          .rkey = {packet.rkey},
                                          .offset = packet.address,
                                          .length = packet.length,
                                          .valid = true};
  message_ = (message_ + 1) & kSequenceMask;
  Advance(PacketsOf(packet.length));
  unacknowledged_ = 0;  // its response acknowledges what was before
  QueueRead(packet);
}

// Attempts count from 1 to 127 and then from 1 again; peers that do not count say 0. An attempt that was queued for
// this request is not new, however many requests came after it: two answers of one attempt could make a mixed page. The
// 32 before the newest are not new either: the network has delayed such a request, and it comes for the first time. No
// more than 32, as an attempt after many that were all lost looks as if it were older than the newest that came.
bool Responder::IsNewAttempt(const Packet& packet) const {
  constexpr int kOld = 32;
  const uint8_t attempt = packet.attempt;
  return attempt == 0 || newest_attempt_ == 0 ||
         (attempts_[attempt] != packet.sequence && (newest_attempt_ + kLastAttempt - attempt) % kLastAttempt >= kOld);
}

void Responder::QueueRead(const Packet& packet) {
  // What it asks for again, and all behind that, is not awaited from an earlier time any more.
  const auto stale = std::find_if(answers_.begin(), answers_.end(), [&](const Answer& answer) {
    return SequenceDistance(answer.sequence, packet.sequence) >= 0;
  });
  if (stale == answers_.begin()) {
    page_bytes_ = 0;
  }
  answers_.erase(stale, answers_.end());
  if (answers_.size() >= kMostReads) {
    Refuse(NakCode::kInvalidRequest);
    return;
  }
  newest_attempt_ = packet.attempt;
  attempts_[packet.attempt] = packet.sequence;
  answers_.push_back({.kind = Answer::Kind::kRead,
                      .sequence = packet.sequence,
                      .rkey = {packet.rkey},
                      .offset = packet.address,
                      .length = packet.length,
                      .attempt = packet.attempt});
}

void Responder::OnAtomic(const Packet& packet) {
  constexpr uint32_t kBytes = sizeof(uint64_t);
  if (incoming_ != Incoming::kNone || packet.address % kBytes != 0) {
    Refuse(NakCode::kInvalidRequest);
    return;
  }
  if (answers_.size() >= kMostReads) {
    Refuse(NakCode::kInvalidRequest);
    return;
  }
  uint64_t before = 0;
  const RKey rkey{packet.rkey};
  const bool done = memory_.Allows(rkey, packet.address, kBytes, Access::kRemoteAtomic) &&
                    (packet.op == Op::kCompareSwap
                         ? memory_.CompareSwap(rkey, packet.address, packet.compare, packet.swap_or_add, &before)
                         : memory_.FetchAdd(rkey, packet.address, packet.swap_or_add, &before));
  if (!done) {
    Refuse(NakCode::kRemoteAccess);
    return;
  }
  atomics_[next_atomic_++ % atomics_.size()] = {.sequence = packet.sequence, .original = before, .valid = true};
  message_ = (message_ + 1) & kSequenceMask;
  Advance(1);
  unacknowledged_ = 0;
  answers_.push_back({.kind = Answer::Kind::kAtomic,
                      .sequence = packet.sequence,
                      .ack = {.kind = AckKind::kAck, .value = kNoCredits, .message = message_},
                      .original = before});
}

// A packet of a SEND or WRITE was carried out.
void Responder::Done(const Packet& packet, bool message_ends) {
  Advance(1);
  message_ = (message_ + (message_ends ? 1 : 0)) & kSequenceMask;
  unacknowledged_++;
  if (packet.wants_ack || unacknowledged_ >= kUnacknowledged) {
    Acknowledge();
  }
}

void Responder::FinishReceive(uint32_t bytes, bool has_imm, uint32_t imm) {
  WorkCompletion completion;
  completion.id = receives_.front().id;
  completion.opcode = Opcode::kRecv;
  completion.has_imm = has_imm;
  completion.imm = imm;
  completion.byte_len = bytes;
  completion.qp_num = options_.queue_pair;
  receives_.pop_front();
  completions_.OnReceive(completion);
}

void Responder::FailReceive(WcStatus status) {
  WorkCompletion completion;
  completion.id = receives_.front().id;
  completion.status = status;
  completion.opcode = Opcode::kRecv;
  completion.qp_num = options_.queue_pair;
  receives_.pop_front();
  completions_.OnReceive(completion);
}

void Responder::Fail() {
  failed_ = true;
  while (!receives_.empty()) {
    FailReceive(WcStatus::kWrFlushErr);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Answers.

// Of all that was carried out; one acknowledge that has not left yet says it as well.
void Responder::Acknowledge() {
  const uint32_t sequence = (expected_ - 1) & kSequenceMask;
  const Ack ack{.kind = AckKind::kAck, .value = kNoCredits, .message = message_};
  unacknowledged_ = 0;
  if (!answers_.empty() && answers_.back().kind == Answer::Kind::kAck && answers_.back().ack.kind == AckKind::kAck) {
    answers_.back().sequence = sequence;
    answers_.back().ack = ack;
    return;
  }
  answers_.push_back({.kind = Answer::Kind::kAck, .sequence = sequence, .ack = ack});
}

void Responder::Nak(AckKind kind, uint8_t value) {
  unacknowledged_ = 0;
  if (!answers_.empty() && answers_.back().kind == Answer::Kind::kAck) {
    answers_.pop_back();  // it says what that would have
  }
  answers_.push_back(
      {.kind = Answer::Kind::kAck, .sequence = expected_, .ack = {.kind = kind, .value = value, .message = message_}});
}

// The answer is the last one that leaves.
void Responder::Refuse(NakCode code) {
  counters_.refusals++;
  Nak(AckKind::kNak, static_cast<uint8_t>(code));
  Fail();
}

bool Responder::Continue() {
  for (uint32_t sent = 0; !answers_.empty() && sent < kPacketsAtOnce; sent++) {
    Answer& answer = answers_.front();
    if (answer.kind != Answer::Kind::kRead) {
      SendAnswer(answer);
      answers_.pop_front();
      continue;
    }
    if (!answer.begun && answers_.size() > 1 && answers_[1].kind == Answer::Kind::kRead) {
      memory_.Prefetch(answers_[1].rkey, answers_[1].offset, answers_[1].length);
    }
    if (!SendPartOfRead(answer)) {
      const uint32_t sequence = answer.sequence;
      answers_.clear();
      Refuse(NakCode::kRemoteAccess);
      answers_.back().sequence = sequence;
      continue;
    }
    if (answer.length == 0) {
      answers_.pop_front();
      page_bytes_ = 0;
    }
  }
  return !answers_.empty();
}

void Responder::SendAnswer(const Answer& answer) {
  Packet packet;
  packet.op = answer.kind == Answer::Kind::kAtomic ? Op::kAtomicAcknowledge : Op::kAcknowledge;
  packet.queue_pair = options_.peer;
  packet.sequence = answer.sequence;
  packet.ack = answer.ack;
  packet.original = answer.original;
  EncodeHeaders(packet, sink_.Begin(HeaderBytes(packet.op)));
}

bool Responder::SendPartOfRead(Answer& answer) {
  const auto length = std::min(answer.length, options_.mtu);
  const bool last = length == answer.length;
  Packet packet;
  packet.op = answer.begun ? (last ? Op::kReadResponseLast : Op::kReadResponseMiddle)
                           : (last ? Op::kReadResponseOnly : Op::kReadResponseFirst);
  packet.queue_pair = options_.peer;
  packet.sequence = answer.sequence;
  packet.attempt = answer.attempt;
  packet.ack = {.kind = AckKind::kAck, .value = kNoCredits, .message = message_};
  const size_t header = HeaderBytes(packet.op);
  std::byte* const to = sink_.Begin(PacketBytes(header, length));
  packet.payload = {to + header, length};
  if (!CopyOut(answer, {to + header, length})) {
    sink_.Discard();
    return false;
  }
  EncodeHeaders(packet, to);
  answer.begun = true;
  answer.offset += length;
  answer.length -= length;
  answer.sequence = (answer.sequence + 1) & kSequenceMask;
  return true;
}

// By pages, each read at once as far as the READ wants it and kept until all of it is sent.
bool Responder::CopyOut(const Answer& answer, std::span<std::byte> to) {
  uint64_t offset = answer.offset;
  uint64_t left = answer.length;
  const uint64_t wanted = std::min<uint64_t>(left, kPageSize - offset % kPageSize);  // of the first page
  if (page_bytes_ == 0 && !to.empty() && to.size() == wanted) {
    return memory_.Read(answer.rkey, offset, to);
  }
  while (!to.empty()) {
    if (page_bytes_ == 0 || offset < page_offset_ || offset >= page_offset_ + page_bytes_) {
      page_offset_ = offset;
      page_bytes_ = static_cast<uint32_t>(std::min<uint64_t>(left, kPageSize - offset % kPageSize));
      if (!memory_.Read(answer.rkey, page_offset_, {page_.data(), page_bytes_})) {
        return false;
      }
    }
    const uint64_t at = offset - page_offset_;
    const size_t part = std::min<uint64_t>(to.size(), page_bytes_ - at);
    std::copy_n(page_.data() + at, part, to.data());
    to = to.subspan(part);
    offset += part;
    left -= part;
  }
  return true;
}

}  // namespace termfs::driver::roce

// SPDX-License-Identifier: Apache-2.0
#include "driver/iwarp/responder.h"

#include <algorithm>
#include <cstring>

namespace termfs::driver::iwarp {

Responder::Responder(uint32_t queue_pair, uint32_t max_reads, bool with_crc, RemoteMemory& memory,
                     CompletionSink& completions, ReceiveSource* receives)
    : queue_pair_(queue_pair),
      max_reads_(max_reads),
      with_crc_(with_crc),
      memory_(memory),
      completions_(completions),
      source_(receives) {}

void Responder::Post(const RecvWorkRequest& request) {
  receives_.push_back(request);
  if (failed_) {
    FinishReceive(WcStatus::kWrFlushErr, 0);
  }
}

bool Responder::IsReadyFor(const Unit& unit) {
  const bool send = unit.op == Op::kSend || unit.op == Op::kSendSolicited;
  return !send || receiving_ || HasReceive();
}

std::optional<Error> Responder::OnUnit(const Unit& unit) {
  switch (unit.op) {
    case Op::kSend:
    case Op::kSendSolicited:
      return OnSend(unit);
    case Op::kWrite:
      return OnWrite(unit);
    default:
      return OnReadRequest(unit);
  }
}

std::optional<Error> Responder::OnSend(const Unit& unit) {
  if (unit.message != send_message_) {
    return kInvalidMessageNumber;
  }
  if (unit.message_offset != (receiving_ ? received_ : 0)) {
    return kInvalidMessageOffset;
  }
  if (!receiving_) {
    if (!HasReceive()) {
      return kNoReceive;
    }
    receiving_ = true;
    received_ = 0;
  }
  const ScatterGather& local = receives_.front().local;
  if (unit.payload.size() > local.length - received_) {
    receiving_ = false;
    FinishReceive(WcStatus::kLocLenErr, 0);
    return kMessageTooLong;
  }
  if (!unit.payload.empty()) {
    std::memcpy(static_cast<std::byte*>(local.addr) + received_, unit.payload.data(), unit.payload.size());
    received_ += static_cast<uint32_t>(unit.payload.size());
  }
  if (unit.last) {
    receiving_ = false;
    send_message_++;
    FinishReceive(WcStatus::kSuccess, received_);
  }
  return std::nullopt;
}

// An empty one names no memory: by such a one the dialling end says that it is ready.
std::optional<Error> Responder::OnWrite(const Unit& unit) {
  if (unit.payload.empty()) {
    return std::nullopt;
  }
  if (!memory_.Allows(unit.key, unit.offset, unit.payload.size(), Access::kRemoteWrite) ||
      !memory_.Write(unit.key, unit.offset, unit.payload)) {
    return kTaggedOfInvalidKey;
  }
  return std::nullopt;
}

std::optional<Error> Responder::OnReadRequest(const Unit& unit) {
  if (unit.message != read_message_) {
    return kInvalidMessageNumber;
  }
  const std::optional<ReadRequest> request = DecodeReadRequest(unit.payload);
  if (!request || !unit.last || unit.message_offset != 0) {
    return kUnspecified;
  }
  if (answers_.size() >= max_reads_) {
    return kNoReceive;
  }
  read_message_++;
  Answer answer{.request = *request};
  if (request->length != 0 &&
      !memory_.Allows(request->source, request->source_offset, request->length, Access::kRemoteRead)) {
    answer.refusal = kReadOfInvalidKey;
  }
  answers_.push_back(answer);
  return std::nullopt;
}

std::variant<Written, Error> Responder::WriteUnit(std::span<std::byte> to) {
  Answer& answer = answers_.front();
  if (answer.refusal) {
    return *answer.refusal;
  }
  const ReadRequest& request = answer.request;
  const uint64_t offset = request.source_offset + answer.sent;
  const auto most = static_cast<uint32_t>(kMostPagesOfResponse * kPageSize - offset % kPageSize);
  const uint32_t length = std::min(request.length - answer.sent, most);
  if (to.size() < FrameBytes(Op::kReadResponse, length)) {
    return Written{};
  }
  if (answer.sent == 0 && answers_.size() > 1) {
    const ReadRequest& following = answers_[1].request;
    memory_.Prefetch(following.source, following.source_offset, following.length);
  }
  const auto payload = to.subspan(PayloadAt(Op::kReadResponse), length);
  if (!CopyOut(request, answer.sent, payload)) {
    return kReadOfInvalidKey;
  }
  Unit unit{.op = Op::kReadResponse, .last = answer.sent + length == request.length};
  unit.key = request.sink;
  unit.offset = request.sink_offset + answer.sent;
  unit.payload = payload;
  Seal(unit, with_crc_, to.data());
  answer.sent += length;
  if (unit.last) {
    answers_.pop_front();
  }
  return Written{.bytes = FrameBytes(unit.op, length), .message_ends = unit.last};
}

bool Responder::CopyOut(const ReadRequest& request, uint32_t from, std::span<std::byte> to) {
  uint64_t offset = request.source_offset + from;
  while (!to.empty()) {
    const size_t part = std::min<size_t>(to.size(), kPageSize - offset % kPageSize);
    if (!memory_.Read(request.source, offset, to.first(part))) {
      return false;
    }
    to = to.subspan(part);
    offset += part;
  }
  return true;
}

bool Responder::HasReceive() {
  if (receives_.empty() && source_ != nullptr) {
    if (const std::optional<RecvWorkRequest> taken = source_->Take()) {
      receives_.push_back(*taken);
    }
  }
  return !receives_.empty();
}

void Responder::FinishReceive(WcStatus status, uint32_t bytes) {
  WorkCompletion completion;
  completion.id = receives_.front().id;
  completion.status = status;
  completion.opcode = Opcode::kRecv;
  completion.byte_len = bytes;
  completion.qp_num = queue_pair_;
  receives_.pop_front();
  completions_.OnReceive(completion);
}

void Responder::Fail() {
  failed_ = true;
  receiving_ = false;
  answers_.clear();
  while (!receives_.empty()) {
    FinishReceive(WcStatus::kWrFlushErr, 0);
  }
}

}  // namespace termfs::driver::iwarp

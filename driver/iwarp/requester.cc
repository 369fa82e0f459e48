// SPDX-License-Identifier: Apache-2.0
#include "driver/iwarp/requester.h"

#include <algorithm>
#include <cstring>

namespace termfs::driver::iwarp {
namespace {

const std::byte* BytesOf(const ScatterGather& local) { return static_cast<const std::byte*>(local.addr); }

// As much of `wanted` as fits into a frame that fits into `room`; nothing where not even an empty one does.
std::optional<uint32_t> PayloadFor(Op op, uint32_t wanted, size_t room) {
  const size_t around = FrameBytes(op, 0) + 3;
  if (room < around) {
    return std::nullopt;
  }
  const size_t payload = std::min({size_t{wanted}, kMostPayload, room - around});
  if (payload == 0 && wanted != 0) {
    return std::nullopt;
  }
  return static_cast<uint32_t>(payload);
}

}  // namespace

Requester::Requester(uint32_t queue_pair, uint32_t max_reads, bool with_crc, CompletionSink& completions)
    : queue_pair_(queue_pair), max_reads_(max_reads), with_crc_(with_crc), completions_(completions) {}

void Requester::Post(const SendWorkRequest& request) {
  if (failed_) {
    Complete(request, WcStatus::kWrFlushErr);
    return;
  }
  items_.push_back({.request = request});
}

bool Requester::has_unit() const {
  if (next_ == items_.size()) {
    return false;
  }
  const Item& item = items_[next_];
  const bool read = item.request.opcode == Opcode::kRdmaRead;
  return !(read && reads_.size() >= max_reads_) &&
         !(item.request.send_fence && item.sent == 0 && write_left_ == 0 && !reads_.empty());
}

Written Requester::WriteUnit(std::span<std::byte> to) {
  Item& item = items_[next_];
  switch (item.request.opcode) {
    case Opcode::kRdmaRead:
      return WriteReadRequest(item, to);
    case Opcode::kRdmaWrite:
      return WriteWrite(item, to);
    default:
      return WriteSend(item, to);
  }
}

Written Requester::WriteSend(Item& item, std::span<std::byte> to) {
  const ScatterGather& local = item.request.local;
  const std::optional<uint32_t> payload = PayloadFor(Op::kSend, local.length - item.sent, to.size());
  if (!payload) {
    return {};
  }
  Unit unit{.op = Op::kSend, .last = item.sent + *payload == local.length};
  unit.message = send_message_;
  unit.message_offset = item.sent;
  unit.payload = to.subspan(PayloadAt(unit.op), *payload);
  if (*payload != 0) {
    std::memcpy(to.data() + PayloadAt(unit.op), BytesOf(local) + item.sent, *payload);
  }
  Seal(unit, with_crc_, to.data());
  item.sent += *payload;
  if (unit.last) {
    send_message_++;
    Advance(item, true);
  }
  return {.bytes = FrameBytes(unit.op, *payload), .message_ends = unit.last};
}

Written Requester::WriteWrite(Item& item, std::span<std::byte> to) {
  const ScatterGather& local = item.request.local;
  const uint32_t left = write_left_ != 0 ? write_left_ : std::min(local.length - item.sent, kMostMessage);
  const std::optional<uint32_t> payload = PayloadFor(Op::kWrite, left, to.size());
  if (!payload) {
    return {};
  }
  Unit unit{.op = Op::kWrite, .last = *payload == left};
  unit.key = item.request.rkey;
  unit.offset = item.request.remote_offset + item.sent;
  unit.payload = to.subspan(PayloadAt(unit.op), *payload);
  if (*payload != 0) {
    std::memcpy(to.data() + PayloadAt(unit.op), BytesOf(local) + item.sent, *payload);
  }
  Seal(unit, with_crc_, to.data());
  write_left_ = left - *payload;
  item.sent += *payload;
  if (item.sent == local.length) {
    Advance(item, true);
  }
  return {.bytes = FrameBytes(unit.op, *payload), .message_ends = unit.last};
}

Written Requester::WriteReadRequest(Item& item, std::span<std::byte> to) {
  const size_t frame = FrameBytes(Op::kReadRequest, kReadRequestBytes);
  if (to.size() < frame) {
    return {};
  }
  // Up to a page boundary, so that no page is read in two parts.
  const uint64_t offset = item.request.remote_offset + item.sent;
  const uint32_t most = kMostMessage - static_cast<uint32_t>(offset % kPageSize);
  const uint32_t length = std::min(item.request.local.length - item.sent, most);
  Unit unit{.op = Op::kReadRequest, .last = true};
  unit.message = read_message_;
  unit.payload = to.subspan(PayloadAt(unit.op), kReadRequestBytes);
  Encode(ReadRequest{.sink = {read_message_},
                     .sink_offset = 0,
                     .length = length,
                     .source = item.request.rkey,
                     .source_offset = offset},
         to.data() + PayloadAt(unit.op));
  Seal(unit, with_crc_, to.data());
  reads_.push_back({.item = &item,
                    .number = read_message_++,
                    .to = static_cast<std::byte*>(item.request.local.addr) + item.sent,
                    .length = length});
  item.unanswered++;
  item.sent += length;
  if (item.sent == item.request.local.length) {
    Advance(item, false);
  }
  return {.bytes = frame, .message_ends = true};
}

// All of the item has been sent.
void Requester::Advance(Item& item, bool completes) {
  item.all_sent = true;
  next_++;
  if (completes) {
    CompleteFront();
  }
}

std::optional<Error> Requester::OnReadResponse(const Unit& unit) {
  if (reads_.empty() || unit.key.value != reads_.front().number) {
    return kTaggedOfInvalidKey;
  }
  Read& read = reads_.front();
  const size_t left = read.length - read.arrived;
  if (unit.offset != read.arrived || unit.payload.size() > left || unit.last != (unit.payload.size() == left)) {
    return kTaggedOutOfBounds;
  }
  if (!unit.payload.empty()) {
    std::memcpy(read.to + read.arrived, unit.payload.data(), unit.payload.size());
  }
  read.arrived += static_cast<uint32_t>(unit.payload.size());
  if (unit.last) {
    read.item->unanswered--;
    reads_.pop_front();
    CompleteFront();
  }
  return std::nullopt;
}

void Requester::CompleteFront() {
  while (!items_.empty() && items_.front().done()) {
    Complete(items_.front().request, WcStatus::kSuccess);
    items_.pop_front();
    next_--;
  }
}

void Requester::Complete(const SendWorkRequest& request, WcStatus status) {
  if (status == WcStatus::kSuccess && !request.signaled) {
    completions_.OnUnsignaledSend();
    return;
  }
  WorkCompletion completion;
  completion.id = request.id;
  completion.status = status;
  completion.opcode = request.opcode;
  completion.byte_len = request.local.length;
  completion.qp_num = queue_pair_;
  completions_.OnSend(completion);
}

void Requester::Fail(WcStatus first) {
  failed_ = true;
  reads_.clear();
  WcStatus status = first;
  while (!items_.empty()) {
    Complete(items_.front().request, status);
    items_.pop_front();
    status = WcStatus::kWrFlushErr;
  }
  next_ = 0;
}

}  // namespace termfs::driver::iwarp

// SPDX-License-Identifier: Apache-2.0
#include "driver/roce/requester.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace termfs::driver::roce {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr double kFirstWindow = 16;  // packets
constexpr double kLeastWindow = 2;
constexpr double kMostWindow = 1024;
constexpr uint64_t kAckEvery = 16;  // packets of a long message
constexpr nanoseconds kFirstPatience = milliseconds(50);
constexpr nanoseconds kLeastPatience = milliseconds(5);
constexpr nanoseconds kMostPatience = milliseconds(1000);

// The specification's timers of a receiver that is not ready, by code, in units of 10 us.
constexpr std::array<uint32_t, 32> kNotReadyTimers = {
    65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,   192,
    256,   384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

WcStatus StatusOf(const Ack& ack) {
  switch (static_cast<NakCode>(ack.value)) {
    case NakCode::kInvalidRequest:
    case NakCode::kInvalidReadRequest:
      return WcStatus::kRemInvReqErr;
    case NakCode::kRemoteAccess:
      return WcStatus::kRemAccessErr;
    default:
      return WcStatus::kRemOpErr;
  }
}

bool IsWrite(Opcode opcode) { return opcode == Opcode::kRdmaWrite || opcode == Opcode::kRdmaWriteWithImm; }

// Of packet `index` of `count`.
Op OpOf(Opcode opcode, uint64_t index, uint64_t count) {
  const bool first = index == 0;
  const bool last = index + 1 == count;
  const bool imm = opcode == Opcode::kRdmaWriteWithImm && last;
  if (IsWrite(opcode)) {
    if (first) {
      return last ? (imm ? Op::kWriteOnlyImm : Op::kWriteOnly) : Op::kWriteFirst;
    }
    return last ? (imm ? Op::kWriteLastImm : Op::kWriteLast) : Op::kWriteMiddle;
  }
  if (first) {
    return last ? Op::kSendOnly : Op::kSendFirst;
  }
  return last ? Op::kSendLast : Op::kSendMiddle;
}

}  // namespace

Requester::Requester(const ConnectionOptions& options, PacketSink& sink, CompletionSink& completions,
                     ConnectionCounters& counters)
    : options_(options),
      sink_(sink),
      completions_(completions),
      counters_(counters),
      assigned_((uint64_t{1} << 24) + (options.first_sequence & kSequenceMask)),
      oldest_(assigned_),
      next_(assigned_),
      sent_(assigned_),
      window_(kFirstWindow),
      threshold_(kMostWindow),
      patience_(kFirstPatience) {}

void Requester::Push(const SendWorkRequest& request, bool last, uint64_t packets) {
  items_.push_back({.request = request, .last = last, .first = assigned_, .packets = packets, .done = 0});
  assigned_ += packets;
}

void Requester::Post(const SendWorkRequest& request) {
  if (failed_) {
    Push(request, true, 0);
    Fail(WcStatus::kWrFlushErr);
    return;
  }
  if (request.opcode != Opcode::kRdmaRead) {
    const bool atomic = request.opcode == Opcode::kCompareSwap || request.opcode == Opcode::kFetchAdd;
    Push(request, true, atomic ? 1 : PacketsOf(request.local.length));
    return;
  }
  SendWorkRequest part = request;
  uint32_t left = request.local.length;
  do {
    const auto in_page = static_cast<uint32_t>(part.remote_offset % kPageSize);
    part.local.length = std::min<uint32_t>(left, in_page != 0 ? kPageSize - in_page : kReadPart);
    left -= part.local.length;
    Push(part, left == 0, PacketsOf(part.local.length));
    part.send_fence = false;  // the others follow the first one
    part.local.addr = static_cast<std::byte*>(part.local.addr) + part.local.length;
    part.remote_offset += part.local.length;
  } while (left > 0);
}

// ---------------------------------------------------------------------------------------------------------------
// Sending.

bool Requester::MaySend(const Item& item) const {
  if (item.request.send_fence && reads_ != 0) {
    return false;
  }
  if (item.answered() && at_ == 0) {
    return true;  // the oldest of all, however large it is
  }
  const uint64_t under_way = next_ - oldest_;
  if (!item.answered()) {
    return static_cast<double>(under_way) < window_;
  }
  return reads_ < options_.max_reads && static_cast<double>(under_way + item.packets) <= window_;
}

void Requester::Continue(TimePoint now) {
  if (failed_ || now < wait_until_) {
    return;
  }
  while (at_ < items_.size() && MaySend(items_[at_])) {
    Item& item = items_[at_];
    counters_.retransmissions += next_ < sent_ ? 1 : 0;
    if (next_ >= sent_ && timed_at_ == TimePoint{}) {
      timed_at_ = now;
      timed_ = item.answered() ? item.end() - 1 : next_;
    }
    if (item.request.opcode == Opcode::kRdmaRead) {
      SendRead(item);
      next_ = item.end();
      reads_++;
    } else if (item.answered()) {
      SendAtomic(item);
      next_ = item.end();
      reads_++;
    } else {
      const uint64_t index = next_ - item.first;
      next_++;
      const bool ends = next_ == item.end();
      const bool fills = static_cast<double>(next_ - oldest_) >= window_;
      SendPacket(item, index, ends || fills || (index + 1) % kAckEvery == 0);
    }
    sent_ = std::max(sent_, next_);
    at_ += next_ == item.end() ? 1 : 0;
    if (resend_at_ == TimePoint::max()) {
      resend_at_ = now + patience_;
    }
  }
}

void Requester::SendPacket(const Item& item, uint64_t index, bool wants_ack) {
  const SendWorkRequest& request = item.request;
  const uint64_t from = index * options_.mtu;
  const size_t length = std::min<uint64_t>(options_.mtu, request.local.length - from);
  Packet packet;
  packet.op = OpOf(request.opcode, index, item.packets);
  packet.wants_ack = wants_ack;
  packet.queue_pair = options_.peer;
  packet.sequence = static_cast<uint32_t>(item.first + index) & kSequenceMask;
  packet.imm = request.imm;
  if (IsWrite(request.opcode) && index == 0) {
    packet.address = request.remote_offset;
    packet.rkey = request.rkey.value;
    packet.length = request.local.length;
  }
  packet.payload = {static_cast<const std::byte*>(request.local.addr) + from, length};
  const size_t header = HeaderBytes(packet.op);
  std::byte* const to = sink_.Begin(PacketBytes(header, length));
  EncodeHeaders(packet, to);
  if (length != 0) {
    std::memcpy(to + header, packet.payload.data(), length);
  }
}

// From where it stands: the pages that have come are not asked for again. A page of which a part has come is, as the
// rest may be of another version by now.
uint64_t Requester::DonePages(const Item& item) const {
  const uint64_t page = kPageSize / options_.mtu;  // in packets
  return item.request.remote_offset % kPageSize == 0 ? item.done - item.done % page : 0;
}

void Requester::SendRead(Item& item) {
  item.done = DonePages(item);  // since GoBack more packets of the attempt before may have come
  attempt_ = attempt_ % kLastAttempt + 1;
  item.attempt = attempt_;
  const uint64_t done = item.done * options_.mtu;
  Packet packet;
  packet.op = Op::kReadRequest;
  packet.attempt = item.attempt;
  packet.wants_ack = true;
  packet.queue_pair = options_.peer;
  packet.sequence = static_cast<uint32_t>(item.first + item.done) & kSequenceMask;
  packet.address = item.request.remote_offset + done;
  packet.rkey = item.request.rkey.value;
  packet.length = static_cast<uint32_t>(item.request.local.length - done);
  EncodeHeaders(packet, sink_.Begin(HeaderBytes(packet.op)));
}

void Requester::SendAtomic(const Item& item) {
  const SendWorkRequest& request = item.request;
  Packet packet;
  packet.op = request.opcode == Opcode::kCompareSwap ? Op::kCompareSwap : Op::kFetchAdd;
  packet.wants_ack = true;
  packet.queue_pair = options_.peer;
  packet.sequence = static_cast<uint32_t>(item.first) & kSequenceMask;
  packet.address = request.remote_offset;
  packet.rkey = request.rkey.value;
  packet.swap_or_add = request.swap_or_add;
  packet.compare = request.compare;
  EncodeHeaders(packet, sink_.Begin(HeaderBytes(packet.op)));
}

// ---------------------------------------------------------------------------------------------------------------
// Answers.

// REQUIRES: it was sent, and is not answered yet.
std::deque<Requester::Item>::iterator Requester::ItemOf(uint64_t sequence) {
  return std::find_if(items_.begin(), items_.end(), [&](const Item& item) { return sequence < item.end(); });
}

uint64_t Requester::Unwrap(uint32_t sequence) const {
  return oldest_ + static_cast<uint64_t>(static_cast<int64_t>(
                       SequenceDistance(sequence, static_cast<uint32_t>(oldest_) & kSequenceMask)));
}

void Requester::OnPacket(const Packet& packet, TimePoint now) {
  const uint64_t sequence = Unwrap(packet.sequence);
  // Of something that was answered before, or that was never asked.
  if (failed_ || items_.empty() || sequence < oldest_ || sequence >= sent_) {
    counters_.dropped++;
    return;
  }
  switch (packet.op) {
    case Op::kAcknowledge:
      if (packet.ack.kind == AckKind::kAck) {
        OnAck(sequence, now);
      } else {
        OnNak(sequence, packet.ack, now);
      }
      return;
    case Op::kAtomicAcknowledge:
      return OnAtomicAnswer(sequence, packet, now);
    case Op::kReadResponseFirst:
    case Op::kReadResponseMiddle:
    case Op::kReadResponseLast:
    case Op::kReadResponseOnly:
      return OnReadResponse(sequence, packet, now);
    default:
      counters_.dropped++;
  }
}

// Time has not run in vain.
void Requester::Progress(uint64_t sequence, TimePoint now) {
  oldest_ = std::max(oldest_, sequence);
  next_ = std::max(next_, oldest_);
  window_ = std::min(window_ + (window_ < threshold_ ? 1 : 1 / window_), kMostWindow);
  gone_back_ = false;
  retries_ = 0;
  not_ready_since_ = {};
  if (timed_at_ != TimePoint{} && oldest_ > timed_) {
    const nanoseconds took = now - timed_at_;
    round_trip_ = round_trip_ == nanoseconds(0) ? took : (round_trip_ * 7 + took) / 8;
    timed_at_ = {};
  }
  patience_ = round_trip_ == nanoseconds(0) ? kFirstPatience
                                            : std::clamp<nanoseconds>(4 * round_trip_, kLeastPatience, kMostPatience);
  resend_at_ = oldest_ == sent_ ? TimePoint::max() : now + patience_;
}

void Requester::CompleteFront() {
  const Item& front = items_.front();
  const bool was_sent = at_ > 0;
  if (front.answered() && was_sent) {
    reads_--;
  }
  if (front.last && !front.request.signaled) {
    completions_.OnUnsignaledSend();
  } else if (front.last) {
    WorkCompletion completion;
    completion.id = front.request.id;
    completion.status = WcStatus::kSuccess;
    completion.opcode = front.request.opcode;
    completion.qp_num = options_.queue_pair;
    completions_.OnSend(completion);
  }
  if (was_sent) {
    at_--;
  } else {
    next_ = std::max(next_, front.end());  // answered late, when it was to be sent again
  }
  items_.pop_front();
}

bool Requester::CompleteUpTo(uint64_t sequence, TimePoint now) {
  while (!items_.empty() && items_.front().first < sequence) {
    const Item& front = items_.front();
    if (front.answered()) {
      return false;
    }
    const uint64_t end = front.end();
    if (end > sequence) {
      break;
    }
    CompleteFront();
    Progress(end, now);
  }
  if (sequence > oldest_) {
    Progress(sequence, now);
  }
  return true;
}

void Requester::OnAck(uint64_t sequence, TimePoint now) {
  if (!CompleteUpTo(sequence + 1, now)) {
    Lost(false);  // a READ's answer has not come, although what is behind it was carried out
  }
}

void Requester::OnNak(uint64_t sequence, const Ack& ack, TimePoint now) {
  // A READ is refused as a whole, whatever of it has come and from where on it was asked for again.
  const Item& item = *ItemOf(sequence);
  if (!CompleteUpTo(item.answered() ? item.first : sequence, now)) {
    Lost(false);
    return;
  }
  if (ack.kind == AckKind::kReceiverNotReady) {
    if (not_ready_since_ == TimePoint{}) {
      not_ready_since_ = now;
    } else if (now - not_ready_since_ >= options_.rnr_timeout) {
      Fail(WcStatus::kRnrRetryExcErr);
      return;
    }
    wait_until_ = now + microseconds(10) * kNotReadyTimers[ack.value];
    retries_ = 0;  // it is there
    GoBack();
    return;
  }
  if (ack.kind != AckKind::kNak) {
    counters_.dropped++;
    return;
  }
  if (static_cast<NakCode>(ack.value) == NakCode::kSequenceError) {
    Lost(false);
    return;
  }
  Fail(StatusOf(ack));
}

void Requester::OnReadResponse(uint64_t sequence, const Packet& packet, TimePoint now) {
  // Everything before the READ that it belongs to has been carried out.
  const auto item = ItemOf(sequence);
  if (item->request.opcode != Opcode::kRdmaRead || (packet.attempt != 0 && packet.attempt != item->attempt)) {
    counters_.dropped++;
    return;
  }
  if (!CompleteUpTo(item->first, now)) {
    Lost(false);
    return;
  }
  Item& read = items_.front();  // as all before it are gone
  const uint64_t index = sequence - read.first;
  if (index != read.done) {
    if (index > read.done) {
      Lost(false);
    }
    return;
  }
  const uint64_t from = index * options_.mtu;
  const uint64_t length = std::min<uint64_t>(options_.mtu, read.request.local.length - from);
  if (packet.payload.size() != length) {
    Fail(WcStatus::kFatalErr);
    return;
  }
  if (length != 0) {
    std::memcpy(static_cast<std::byte*>(read.request.local.addr) + from, packet.payload.data(), length);
  }
  read.done++;
  if (read.done == read.packets) {
    const uint64_t end = read.end();
    CompleteFront();
    Progress(end, now);
  } else {
    // What was lost of it would be asked for from its page on, so that counts as unanswered.
    gone_back_ = false;
    retries_ = 0;
    resend_at_ = now + patience_;
  }
}

void Requester::OnAtomicAnswer(uint64_t sequence, const Packet& packet, TimePoint now) {
  if (!CompleteUpTo(sequence, now)) {
    Lost(false);
    return;
  }
  Item& front = items_.front();
  if (front.first != sequence || !front.answered() || front.request.opcode == Opcode::kRdmaRead) {
    counters_.dropped++;
    return;
  }
  std::memcpy(front.request.local.addr, &packet.original, sizeof(packet.original));
  CompleteFront();
  Progress(sequence + 1, now);
}

// ---------------------------------------------------------------------------------------------------------------
// What is lost.

void Requester::GoBack() {
  if (items_.empty()) {
    return;
  }
  Item& front = items_.front();
  if (front.request.opcode == Opcode::kRdmaRead) {
    front.done = DonePages(front);
  }
  next_ = front.answered() ? front.first + front.done : std::max(oldest_, front.first);
  at_ = 0;
  reads_ = 0;
  timed_at_ = {};
}

void Requester::Lost(bool timeout) {
  if (gone_back_ && !timeout) {
    return;  // what was sent before it went back goes on arriving
  }
  threshold_ = std::max(window_ / 2, kLeastWindow);
  window_ = timeout ? kLeastWindow : threshold_;
  GoBack();
  gone_back_ = true;
}

TimePoint Requester::deadline() const {
  if (failed_ || items_.empty()) {
    return TimePoint::max();
  }
  return wait_until_ != TimePoint{} ? wait_until_ : resend_at_;
}

void Requester::OnTimer(TimePoint now) {
  if (failed_ || items_.empty()) {
    return;
  }
  if (wait_until_ != TimePoint{}) {
    if (now < wait_until_) {
      return;
    }
    wait_until_ = {};
    resend_at_ = now + patience_;
    return;
  }
  if (now < resend_at_) {
    return;
  }
  counters_.timeouts++;
  if (++retries_ > kRetries) {
    Fail(WcStatus::kRetryExcErr);
    return;
  }
  patience_ = std::min(patience_ * 2, kMostPatience);
  resend_at_ = now + patience_;
  Lost(true);
}

void Requester::Fail(WcStatus first) {
  failed_ = true;
  resend_at_ = TimePoint::max();
  WcStatus status = first;
  while (!items_.empty()) {
    const Item item = items_.front();
    items_.pop_front();
    if (!item.last) {
      continue;
    }
    WorkCompletion completion;
    completion.id = item.request.id;
    completion.status = std::exchange(status, WcStatus::kWrFlushErr);
    completion.opcode = item.request.opcode;
    completion.qp_num = options_.queue_pair;
    completions_.OnSend(completion);
  }
}

}  // namespace termfs::driver::roce

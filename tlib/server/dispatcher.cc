// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/dispatcher.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "base/log.h"
#include "tlib/server/heat_reader.h"
#include "tlib/server/worker.h"

namespace termfs::tlib::server {
namespace {

using std::chrono::steady_clock;

constexpr size_t kMaxReplyBody = kMaxMessage - sizeof(ReplyHeader);
constexpr size_t kMaxErrorText = 256;
// A client has kChannelCredits; one that runs far ahead of them does not keep to the protocol.
constexpr uint32_t kMaxRunning = 2 * kChannelCredits;

uint64_t NanosecondsSince(steady_clock::time_point begin) {
  return static_cast<uint64_t>((steady_clock::now() - begin).count());
}

Status NotInRegion() { return Status::Error(EINVAL, "beyond the region's end"); }

}  // namespace

Dispatcher::Dispatcher(RegionIoImpl& region, Service& service, BlockingPool& blocking, MetricsRegistry& metrics,
                       uint64_t epoch)
    : region_(region),
      service_(service),
      blocking_(blocking),
      epoch_(epoch),
      reads_(metrics.counter("rpc_reads_total")),
      read_pages_(metrics.counter("rpc_read_pages_total")),
      writes_(metrics.counter("rpc_writes_total")),
      read_latency_(metrics.histogram("rpc_read")),
      write_latency_(metrics.histogram("rpc_write")) {}

void Dispatcher::Serve(SessionId session, SessionTraffic& traffic, Connection& connection, BulkPool& bulk,
                       std::span<const std::byte> message, uint64_t number) {
  const Task::OwnedBy owned(traffic.owner);
  const auto request = DecodeRequest(message, connection.seal() != nullptr);
  if (!request.ok()) {
    connection.Close(request.status());
    return;
  }
  CallImpl call(session, *request, number, connection, bulk, blocking_);
  Reply reply = request->header.epoch == epoch_ ? Answer(call, traffic, *request)
                                                : Reply(Status::Error(ESTALE, "a request of another epoch"));
  if (reply.ok() && reply->size() > kMaxReplyBody) {
    reply = Status::Error(EMSGSIZE, "reply too long");
  }
  std::span<const std::byte> tag;  // of bulk bytes
  if (reply.ok()) {
    auto made = call.OutTag();
    if (made.ok()) {
      tag = *made;
    } else {
      reply = made.status();
    }
  }
  const Status error = reply.status();
  const std::string text = error.ok() ? "" : error.ToString().substr(0, kMaxErrorText);
  const std::span<const std::byte> body =
      error.ok() ? std::span<const std::byte>(*reply) : std::as_bytes(std::span(text));
  const ReplyHeader header{.call = request->header.call,
                           .error = error.code(),
                           .body_bytes = static_cast<uint32_t>(body.size()),
                           .out_bytes = error.ok() ? call.out_bytes() : 0};
  const Status sent = connection.Send([&](std::byte* to) {
    const uint32_t length = EncodeMessage(header, body, to);
    std::copy(tag.begin(), tag.end(), to + length);
    return length + static_cast<uint32_t>(tag.size());
  });
  if (!sent.ok() && sent.code() != ENOTCONN) {
    connection.Close(sent);
  }
}

Dispatcher::Reply Dispatcher::Answer(CallImpl& call, SessionTraffic& traffic, const DecodedRequest& request) {
  switch (request.header.opcode) {
    case kRead:
      return ServeRead(call, traffic, request);
    case kWrite:
      return ServeWrite(call, request);
    default:
      if (request.header.opcode < kFirstServiceOpcode) {
        return Status::Error(ENOSYS, "no such request");
      }
      return service_.Handle(call);
  }
}

Dispatcher::Reply Dispatcher::ServeRead(CallImpl& call, SessionTraffic& traffic, const DecodedRequest& request) {
  const auto begin = steady_clock::now();
  ASSIGN_OR_RETURN(const DecodedRead read, DecodeRead(request));
  if (!InRegion(read.offset, read.length)) {
    return NotInRegion();
  }
  ReadBitmap present{};
  RETURN_IF_ERROR(region_.ReadMissing(call, read, present));
  uint64_t pages = 0;
  for (uint32_t i = 0; i < read.words; i++) {
    pages += static_cast<uint64_t>(std::popcount(read.missing[i]));
  }
  reads_.Add();
  read_pages_.Add(pages);
  traffic.reads.fetch_add(1, std::memory_order_relaxed);
  traffic.read_pages.fetch_add(pages, std::memory_order_relaxed);
  read_latency_.Record(NanosecondsSince(begin));
  const auto words = std::as_bytes(std::span(present.data(), read.words));
  return std::vector<std::byte>(words.begin(), words.end());
}

Dispatcher::Reply Dispatcher::ServeWrite(CallImpl& call, const DecodedRequest& request) {
  const auto begin = steady_clock::now();
  if (!service_.AllowsRawWrites()) {
    return Status::Error(EPERM, "raw writes to the region are not allowed");
  }
  ASSIGN_OR_RETURN(const DecodedWrite write, DecodeWrite(request));
  if (!InRegion(write.offset, write.length)) {
    return NotInRegion();
  }
  RETURN_IF_ERROR(region_.WriteFrom(call, {write.offset}, 0, write.length, nullptr));
  writes_.Add();
  write_latency_.Record(NanosecondsSince(begin));
  return std::vector<std::byte>();
}

Status DataHandler::OnMessage(Connection& connection, std::span<const std::byte> message) {
  if (connection.users() >= kMaxRunning) {
    return Status::Error(EPROTO, "the client has more requests in flight than credits");
  }
  if (idle_.empty()) {
    idle_.push_back(requests_.emplace_back(std::make_unique<Request>()).get());
  }
  Request* const request = idle_.back();
  idle_.pop_back();
  request->connection.emplace(connection);
  request->message.assign(message.begin(), message.end());
  request->number = connection.seal() != nullptr ? connection.seal()->last_opened() : 0;
  Worker::Current()->Spawn([this, request] {
    dispatcher_.Serve(session_, *traffic_, **request->connection, bulk_, request->message, request->number);
    idle_.push_back(request);
    request->connection.reset();  // may end the connection, though not before this has returned
  });
  return Status::Ok();
}

Status DataHandler::OnRing() {
  if (heat_ != nullptr) {
    heat_->Ring();
  }
  return Status::Ok();
}

void DataHandler::OnClosing(Connection&) {
  if (heat_ != nullptr) {
    heat_->Close();
  }
}

}  // namespace termfs::tlib::server

// SPDX-License-Identifier: Apache-2.0
//
// CallImpl: one request of a client while its coroutine runs. Beyond what a Service sees it moves parts of the bulk
// buffers, from and to registered memory.
//
// Thread-safety: its task.
// Ownership:     owns the message's bytes; refers to the connection, whose user the task is.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tlib/rpc/decode.h"
#include "tlib/server/blocking_pool.h"
#include "tlib/server/bulk_pool.h"
#include "tlib/server/connection.h"
#include "tlib/server/region.h"
#include "tlib/server/server.h"

namespace termfs::tlib::server {

class CallImpl final : public Call {
 public:
  // `number`: of the request's message, where those are sealed.
  CallImpl(SessionId session, const DecodedRequest& request, uint64_t number, Connection& connection, BulkPool& bulk,
           BlockingPool& blocking)
      : session_(session),
        request_(request),
        number_(number),
        connection_(connection),
        bulk_(bulk),
        blocking_(blocking) {}

  SessionId session() const override { return session_; }
  uint16_t opcode() const override { return request_.header.opcode; }
  std::span<const std::byte> body() const override { return request_.body; }
  const RemoteBuffer& in() const override { return request_.header.in; }
  const RemoteBuffer& out() const override { return request_.header.out; }
  RequestMark mark() const override { return RequestMark::Of(request_.header); }
  Status PullBulk(std::span<std::byte> into) override;
  Status PushBulk(std::span<const std::byte> from) override;
  void RunBlocking(std::function<void()> task) override { blocking_.Run(task); }

  // Bytes [offset, offset + length) of in(), into a buffer of bulk(), where they are checked when messages are sealed;
  // returns them. REQUIRES: length <= most_pulled(). ERANGE: beyond in(). EBADMSG: not what the client sent, and the
  // connection closes.
  uint32_t most_pulled() const {
    return connection_.seal() == nullptr ? BulkPool::kBufferBytes : BulkPool::kBufferBytes - 2 * kTaggedBytes;
  }
  Result<std::span<const std::byte>> Pull(uint32_t offset, uint32_t length, const BulkPool::Buffer& into);
  // Pieces in registered memory, to out() + base + their places. ERANGE: beyond out(). Where messages are sealed, those
  // of one call and of calls one after the other go on to higher places; one that goes back begins from the start.
  Status Push(uint32_t base, std::span<const Piece> pieces);
  // Of what was pushed, where messages are sealed; else empty.
  Result<std::span<const std::byte>> OutTag();

  // All of in(), where they came with the request.
  std::span<const std::byte> inline_in() const { return request_.in; }

  BulkPool& bulk() { return bulk_; }
  uint32_t out_bytes() const { return out_bytes_; }

 private:
  const SessionId session_;
  Status AddToTag(uint64_t at, std::span<const std::byte> bytes);

  const DecodedRequest& request_;
  const uint64_t number_;
  Connection& connection_;
  BulkPool& bulk_;
  BlockingPool& blocking_;
  uint32_t out_bytes_ = 0;
  std::optional<TagOfBytes> out_;  // of the bytes that were pushed
  uint64_t out_end_ = 0;           // behind the last of them
  Aead::Tag out_tag_{};
  std::vector<driver::SendWorkRequest> writes_;
};

}  // namespace termfs::tlib::server

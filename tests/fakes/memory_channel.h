// SPDX-License-Identifier: Apache-2.0
//
// MemoryChannel: a client's channel to a MemoryServer, which carries its calls at once, and its posts and reads under
// way when a test says so.
//
// Thread-safety: as tlib::client::Channel. Ownership: ends before its server.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/fakes/memory_session.h"
#include "tests/fakes/memory_tlib.h"

namespace termfs {

class MemoryChannel final : public tlib::client::Channel {
 public:
  MemoryChannel(MemoryServer& server, std::shared_ptr<MemorySession> session, size_t bytes)
      : server_(server), session_(std::move(session)), buffer_(bytes) {}
  ~MemoryChannel() override { Drop(); }

  std::span<std::byte> buffer() override { return buffer_; }

  Status Read(std::span<const tlib::client::ReadRequest> reads) override {
    for (const auto& read : reads) {
      if (session_->lost) {
        return Status::Error(ENOTCONN, "the session is lost");
      }
      const auto at = static_cast<size_t>(read.destination - buffer_.data());
      TERMFS_CHECK(at <= buffer_.size() && read.length <= buffer_.size() - at && read.length > 0);
      RETURN_IF_ERROR(server_.Read(read.offset, {read.destination, read.length}));
    }
    return Status::Ok();
  }

  Status BeginRead(std::span<const tlib::client::ReadRequest> reads, std::vector<std::byte*>& under_way) override {
    if (broken_) {
      return Status::Error(ENOTCONN, "injected: the channel is broken");
    }
    if (!server_.holding_ || session_->lost) {
      return Read(reads);
    }
    for (const auto& read : reads) {
      under_way_.push_back(read);
      under_way.push_back(read.destination);
    }
    return Status::Ok();
  }
  Status AwaitReads(std::vector<std::byte*>& done) override {
    while (!under_way_.empty() && !HasNews()) {
      pollfd answers{.fd = server_.answers_.get(), .events = POLLIN, .revents = 0};
      poll(&answers, 1, 1);  // a loss wakes nobody here
    }
    return PollReads(done);
  }
  Status PollReads(std::vector<std::byte*>& done) override {
    const int failure = under_way_.empty() ? 0 : server_.reads_failure_.exchange(0);
    if (failure == EINTR) {
      return Status::Error(EINTR, "injected: interrupted");
    }
    if (failure == ETIMEDOUT) {
      done.push_back(under_way_.front().destination);
    }
    broken_ = broken_ || failure == ENOTCONN;
    if (failure != 0 || session_->lost) {
      VoidUnderWay();
      return failure != 0 ? Status::Error(failure, "injected") : Status::Error(ENOTCONN, "the session is lost");
    }
    if (server_.holding_) {
      return Status::Ok();
    }
    RETURN_IF_ERROR(Read(under_way_));
    for (const auto& read : std::exchange(under_way_, {})) {
      done.push_back(read.destination);
    }
    return Status::Ok();
  }
  bool ArmReads(tlib::client::ReadsFds& fds) override {
    fds = {server_.answers_.get(), -1};
    return !HasNews();
  }
  void DisarmReads() override {}
  void DropReads() override {
    if (!under_way_.empty()) {
      VoidUnderWay();
    }
  }
  size_t ReadRoom() override {
    return tlib::kChannelCredits - std::min<size_t>(under_way_.size(), tlib::kChannelCredits);
  }
  uint64_t voids() const override { return voids_; }
  bool unsent() const override { return unsent_; }
  Status Post(const tlib::client::CallRequest& request, tlib::client::LateReply late) override {
    if (session_->closing || session_->lost) {
      return Status::Error(ENOTCONN, "the session is lost");
    }
    auto posted = std::make_shared<MemoryPost>();
    posted->session = session_;
    posted->request = request;
    posted->body.assign(request.body.begin(), request.body.end());
    posted->request.body = posted->body;
    posted->in.assign(request.in.begin(), request.in.end());
    posted->request.in = posted->in;
    posted->late = std::move(late);
    posted_.push_back(posted);
    server_.Deliver(std::move(posted));
    return Status::Ok();
  }
  Status AwaitPosted() override {
    while (!posted_.empty() && !session_->lost) {
      TakeAnswers();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return session_->lost ? Status::Error(ENOTCONN, "the session is lost") : Status::Ok();
  }
  void AfterGivenUp(tlib::client::LateReply late) override {
    if (!late_.has_value()) {
      return late(Status::Error(ENOTCONN, "nothing is given up here"));
    }
    const Result<std::vector<std::byte>> reply = *std::exchange(late_, std::nullopt);
    if (!reply.ok()) {
      return late(reply.status());
    }
    late(std::span<const std::byte>(*reply));
  }
  // Nobody delivers what was not: its bytes are gone.
  void Drop() {
    TakeAnswers();
    for (const auto& posted : std::exchange(posted_, {})) {
      server_.Withdraw(posted);
      posted->Tell();
    }
  }
  void Detach() override {
    Drop();
    server_.detached_ += std::exchange(detached_, true) ? 0U : 1U;
  }
  Status Write(RegionOffset, std::span<const std::byte>) override { return Status::Error(EACCES, "not allowed"); }

  Result<tlib::client::CallReply> Call(const tlib::client::CallRequest& request) override {
    TakeAnswers();
    unsent_ = session_->closing || session_->lost;
    if (unsent_) {
      return Status::Error(ENOTCONN, "the session is lost");
    }
    uint32_t out_bytes = 0;
    auto result = std::optional(server_.Carry(*session_, request, out_bytes));
    if (const auto delay = server_.Take(&MemoryServer::delay_, request.opcode)) {
      delay();
    }
    if (const auto loss = server_.Take(&MemoryServer::loss_, request.opcode)) {
      session_->lost = true;
      loss();
    }
    if (session_->lost) {
      return Status::Error(ENOTCONN, "the session is lost");
    }
    if (uint16_t expected = request.opcode; server_.given_up_opcode_.compare_exchange_strong(expected, 0)) {
      late_ = std::move(result);
      VoidUnderWay();
      return Status::Error(ETIMEDOUT, "given up");
    }
    RETURN_IF_ERROR(result->status());
    reply_ = std::move(*result).value();
    TERMFS_CHECK(reply_.size() <= tlib::kMaxMessage - sizeof(tlib::ReplyHeader));
    return tlib::client::CallReply{.body = reply_, .out_bytes = out_bytes};
  }

 private:
  // As a channel does that is used again.
  void TakeAnswers() {
    std::erase_if(posted_, [](const std::shared_ptr<MemoryPost>& posted) {
      if (!posted->answered) {
        return false;
      }
      posted->Tell();
      return true;
    });
  }
  bool HasNews() const { return !server_.holding_ || session_->lost || server_.reads_failure_ != 0; }
  void VoidUnderWay() {
    if (!under_way_.empty()) {
      under_way_.clear();
      buffer_ = std::vector<std::byte>(buffer_.size());
      voids_++;
    }
  }

  MemoryServer& server_;
  const std::shared_ptr<MemorySession> session_;
  std::vector<std::byte> buffer_;
  std::vector<std::byte> reply_;
  std::vector<tlib::client::ReadRequest> under_way_;
  bool broken_ = false;  // for BeginRead
  bool unsent_ = false;
  uint64_t voids_ = 0;
  bool detached_ = false;
  std::optional<Result<std::vector<std::byte>>> late_;
  std::vector<std::shared_ptr<MemoryPost>> posted_;
};

}  // namespace termfs

// SPDX-License-Identifier: Apache-2.0
//
// ChannelImpl: Channel over an RpcPort and a OneSidedReader. Thread-safety, ownership and errors: Channel's.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tlib/client/one_sided_reader.h"
#include "tlib/client/rpc_port.h"
#include "tlib/client/session.h"
#include "tlib/client/session_core.h"
#include "tlib/client/validated_reader.h"

namespace termfs::tlib::client {

class ChannelImpl final : public Channel {
 public:
  static Result<std::unique_ptr<Channel>> Open(std::shared_ptr<SessionCore> core, const ChannelOptions& options);
  ~ChannelImpl() override;

  std::span<std::byte> buffer() override { return buffer_->bytes(); }
  Status Read(std::span<const ReadRequest> reads) override;
  Status BeginRead(std::span<const ReadRequest> reads, std::vector<std::byte*>& under_way) override;
  Status AwaitReads(std::vector<std::byte*>& done) override;
  Status PollReads(std::vector<std::byte*>& done) override;
  bool ArmReads(ReadsFds& fds) override;
  void DisarmReads() override;
  void DropReads() override;
  size_t ReadRoom() override;
  uint64_t voids() const override { return voids_; }
  Status Write(RegionOffset offset, std::span<const std::byte> data) override;
  Result<CallReply> Call(const CallRequest& request) override;
  bool unsent() const override { return unsent_; }
  Status Post(const CallRequest& request, LateReply late) override;
  Status AwaitPosted() override;
  void AfterGivenUp(LateReply late) override;
  void Detach() override;

 private:
  using TimePoint = RpcPort::TimePoint;

  ChannelImpl(std::shared_ptr<SessionCore> core, const ChannelOptions& options)
      : core_(std::move(core)),
        options_(options),
        hit_latency_(core_->metrics().histogram("read_hit")),
        miss_latency_(core_->metrics().histogram("read_miss")),
        call_latency_(core_->metrics().histogram("call")) {}
  Status Init();
  // What is no lone hit, and every so many that is, with a clock.
  [[gnu::noinline]] Status ReadInFull(std::span<const ReadRequest> reads);
  // Fills missing_.
  Status ReadOneSided(std::span<const ReadRequest> reads);
  // For the kinds whose region cannot be READ.
  Status AllAreMissing(std::span<const ReadRequest> reads);
  Status Fetch(std::span<const ReadRequest> reads, TimePoint begin);
  // Begins to fetch what is missing.
  Status BeginFetches(std::span<const ReadRequest> reads, std::vector<std::byte*>& under_way);
  // Takes those that are answered out of under_way_.
  void EndAnswered();
  // Says which have ended, or that one failed, or which are late.
  Status NameEnded(std::vector<std::byte*>& done);
  // Those of under_way_ that have been for as long as a call may take. Polls for their answers once more.
  void NameLate(std::vector<std::byte*>& late);
  TimePoint OldestBegin() const;  // REQUIRES: some are under way
  // Why answers will not come.
  Status WhyNoAnswers();
  // Until `port` has a credit, as far as what is under way has them all.
  Status MakeRoom(RpcPort& port, Deadline& deadline);
  // Where absent pages are asked for. Of a thread that is bound to a CPU: a queue pair that a worker of the same CPU
  // serves, see "Woken where it sleeps"; else the channel's.
  RpcPort& FetchPort();
  Result<RpcPort::Ticket> BeginFetch(const ReadRequest& read, const MissingPages& pages, Deadline& deadline);
  Status EndFetch(const ReadRequest& read, const MissingPages& pages, const RpcPort::Ticket& ticket,
                  Deadline& deadline);
  // Where messages are sealed: the absent pages have arrived.
  Status TakeFetched(const ReadRequest& read, const MissingPages& pages, const RpcPort::Ticket& ticket,
                     const DecodedReply& reply);
  // EINVAL: it is not in the buffer.
  Status CheckBulk(std::span<const std::byte> bulk) const;
  // Names bytes to the server in a request, or has it bring them along.
  Status Bring(std::span<const std::byte> bulk, RpcPort::Request& request);
  Result<DecodedReply> Exchange(const RpcPort::Request& request, Deadline& deadline);
  // The server may still reach into the buffer: calls with bulk bytes were given up.
  void ReplaceBuffer();
  static bool GivenUp(const Status& status) { return status.code() == ETIMEDOUT || status.code() == EINTR; }

  const std::shared_ptr<SessionCore> core_;
  const ChannelOptions options_;
  Histogram& hit_latency_;
  Histogram& miss_latency_;
  Histogram& call_latency_;
  uint64_t exchanges_ = 0;
  bool unsent_ = false;  // of the last one that failed
  std::shared_ptr<ChannelCounters> counters_;
  std::shared_ptr<RegisteredBuffer> buffer_;
  std::unique_ptr<RpcPort> port_;                // null: detached
  std::unique_ptr<RpcPort> bound_port_;          // null: none, or not asked for yet
  std::shared_ptr<const std::byte[]> messages_;  // detached: of the port that was
  bool bound_port_asked_for_ = false;
  // By how the region is READ: one of the two, or none.
  std::unique_ptr<OneSidedReader> reader_;
  std::unique_ptr<ValidatedReader> validated_;
  std::vector<MissingPages> missing_;
  std::vector<RpcPort::Ticket> tickets_;

  // Of BeginRead.
  struct UnderWay {
    ReadRequest read;
    MissingPages pages;
    RpcPort::Ticket ticket;
    TimePoint begin;  // when it was sent
  };
  void ForgetUnderWay();
  // After an error. The server may still write to where they were to be read.
  Status VoidUnderWay(Status why);
  std::vector<UnderWay> under_way_;
  std::vector<std::byte*> ended_;  // read, and AwaitReads has not said so yet
  Status read_failed_;             // one of them; neither has this been said
  uint64_t voids_ = 0;
};

}  // namespace termfs::tlib::client

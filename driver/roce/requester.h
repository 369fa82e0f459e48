// SPDX-License-Identifier: Apache-2.0
//
// Requester: the half of a connection that carries out what is posted to its send queue.
//
// Go-back-N: what was sent from the oldest unanswered packet on is sent again when the responder says that one is
// missing (NAK), when an answer skips one, or when nothing comes for a while. A window of packets under way grows by
// one for each answer up to a threshold, then by one for each window, and is halved by loss, as TCP's; a READ counts
// with the packets of its response.
#pragma once

#include <deque>

#include "driver/roce/connection.h"

namespace termfs::driver::roce {

class Requester {
 public:
  Requester(const ConnectionOptions& options, PacketSink& sink, CompletionSink& completions,
            ConnectionCounters& counters);

  // REQUIRES: the local buffer is one that the request may use; messages that are not READs have at most
  // kMaxPacketsOfMessage packets. The caller counts requests under way.
  void Post(const SendWorkRequest& request);
  // An acknowledge, a READ response, an atomic acknowledge.
  void OnPacket(const Packet& packet, TimePoint now);
  // Sends what may be sent.
  void Continue(TimePoint now);
  // REQUIRES: called at or after deadline(), or as often as one likes; Continue follows.
  void OnTimer(TimePoint now);
  TimePoint deadline() const;
  // The oldest request completes with `first`, and all others with kWrFlushErr, from now on.
  void Fail(WcStatus first);
  bool failed() const { return failed_; }

 private:
  // A work request; or a part of a READ.
  struct Item {
    SendWorkRequest request;
    bool last = true;  // the work request ends with it
    uint64_t first = 0;
    uint64_t packets = 1;
    uint64_t done = 0;    // of a READ's packets
    uint8_t attempt = 0;  // of a READ; never 0 once it was sent

    bool answered() const {  // by something else than an acknowledge
      return request.opcode == Opcode::kRdmaRead || request.opcode == Opcode::kCompareSwap ||
             request.opcode == Opcode::kFetchAdd;
    }
    uint64_t end() const { return first + packets; }
  };

  void Push(const SendWorkRequest& request, bool last, uint64_t packets);
  uint64_t PacketsOf(uint64_t bytes) const { return bytes == 0 ? 1 : (bytes + options_.mtu - 1) / options_.mtu; }
  void SendPacket(const Item& item, uint64_t index, bool wants_ack);
  uint64_t DonePages(const Item& item) const;  // in packets
  void SendRead(Item& item);
  void SendAtomic(const Item& item);
  bool MaySend(const Item& item) const;

  void OnAck(uint64_t sequence, TimePoint now);
  void OnNak(uint64_t sequence, const Ack& ack, TimePoint now);
  void OnReadResponse(uint64_t sequence, const Packet& packet, TimePoint now);
  void OnAtomicAnswer(uint64_t sequence, const Packet& packet, TimePoint now);
  // Everything before `sequence` that needs an acknowledge only is done. False: something in between needs more.
  bool CompleteUpTo(uint64_t sequence, TimePoint now);
  void CompleteFront();
  void Progress(uint64_t sequence, TimePoint now);
  void GoBack();
  void Lost(bool timeout);
  std::deque<Item>::iterator ItemOf(uint64_t sequence);
  uint64_t Unwrap(uint32_t sequence) const;

  const ConnectionOptions options_;
  PacketSink& sink_;
  CompletionSink& completions_;
  ConnectionCounters& counters_;
  bool failed_ = false;

  // Sequence numbers here do not wrap; on the wire they are 24 bits of them.
  std::deque<Item> items_;
  uint8_t attempt_ = 0;
  uint64_t assigned_;       // the next item's first
  uint64_t oldest_;         // unanswered
  uint64_t next_;           // to be sent
  uint64_t sent_;           // the highest that was, and one
  size_t at_ = 0;           // the item of `next_`
  uint32_t reads_ = 0;      // asked for, of items before `next_`
  bool gone_back_ = false;  // and nothing has come since

  double window_;
  double threshold_;

  int retries_ = 0;
  std::chrono::nanoseconds patience_;  // before something is sent again
  TimePoint resend_at_ = TimePoint::max();
  TimePoint timed_at_{};  // when `timed_` was sent; zero: nothing is being timed
  uint64_t timed_ = 0;
  std::chrono::nanoseconds round_trip_{0};  // smoothed
  TimePoint wait_until_{};                  // the responder has no receive
  TimePoint not_ready_since_{};
};

}  // namespace termfs::driver::roce

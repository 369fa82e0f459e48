// SPDX-License-Identifier: Apache-2.0
//
// Responder: the half of a connection that carries out the peer's requests: receives for its messages, its access to
// our memory, and the answers.
//
// Answers leave in the order of the requests, so an acknowledge waits for the READ responses before it. They leave in
// Continue, of which each call sends a bounded number: a peer that asks for much gets it bit by bit.
//
// A request that was carried out before is answered again as far as it may still be outstanding: READs only if they ask
// for what was asked, or for the rest of it. What is older, or differs, is dropped.
//
// What a hostile peer can do: have the connection end. It sees and changes what RemoteMemory allows.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "driver/roce/connection.h"

namespace termfs::driver::roce {

class Responder {
 public:
  Responder(const ConnectionOptions& options, RemoteMemory& memory, PacketSink& sink, CompletionSink& completions,
            ConnectionCounters& counters);

  // REQUIRES: the local buffer may be written to.
  void Post(const RecvWorkRequest& request);
  // A request of the peer's.
  void OnPacket(const Packet& packet);
  // Sends answers. True: there are more; call it again.
  bool Continue();
  // What is posted completes with kWrFlushErr, from now on.
  void Fail();
  bool failed() const { return failed_; }

 private:
  // What is owed to the peer, in this order.
  struct Answer {
    enum class Kind : uint8_t { kAck, kRead, kAtomic } kind = Kind::kAck;
    uint32_t sequence = 0;
    Ack ack{};
    uint64_t original = 0;  // kAtomic
    // kRead: what is left of it
    RKey rkey{};
    uint64_t offset = 0;
    uint32_t length = 0;
    uint8_t attempt = 0;
    bool begun = false;
  };
  struct DoneAtomic {
    uint32_t sequence = 0;
    uint64_t original = 0;
    bool valid = false;
  };
  // READs that were asked for, which may be asked for again.
  struct AskedRead {
    uint32_t sequence = 0;
    RKey rkey{};
    uint64_t offset = 0;
    uint32_t length = 0;
    bool valid = false;
  };
  // Of the message that is coming in, in several packets.
  enum class Incoming : uint8_t { kNone, kSend, kWrite };

  void OnDuplicate(const Packet& packet);
  bool WasAsked(const Packet& packet) const;
  bool IsAllowed(const Packet& packet) const;
  void OnNext(const Packet& packet);
  void OnSend(const Packet& packet, bool first, bool last);
  void OnWrite(const Packet& packet, bool first, bool last);
  void OnRead(const Packet& packet);
  void OnAtomic(const Packet& packet);
  bool RightLength(const Packet& packet, bool last) const;
  bool HasReceive();
  void FinishReceive(uint32_t bytes, bool has_imm, uint32_t imm);
  void FailReceive(WcStatus status);

  void Advance(uint32_t packets) { expected_ = (expected_ + packets) & kSequenceMask; }
  void Done(const Packet& packet, bool message_ends);
  void Acknowledge();
  void Nak(AckKind kind, uint8_t value);
  void Refuse(NakCode code);
  bool IsNewAttempt(const Packet& packet) const;
  void QueueRead(const Packet& packet);
  uint32_t PacketsOf(uint32_t bytes) const { return bytes == 0 ? 1 : (bytes + options_.mtu - 1) / options_.mtu; }
  // One packet of it; false: the memory is not there any more.
  bool SendPartOfRead(Answer& answer);
  bool CopyOut(const Answer& answer, std::span<std::byte> to);
  void SendAnswer(const Answer& answer);

  const ConnectionOptions options_;
  RemoteMemory& memory_;
  PacketSink& sink_;
  CompletionSink& completions_;
  ConnectionCounters& counters_;
  bool failed_ = false;

  uint32_t expected_;     // sequence number
  uint32_t message_ = 0;  // sequence number of the last message that was carried out
  bool told_missing_ = false;
  uint32_t unacknowledged_ = 0;  // packets

  std::deque<RecvWorkRequest> receives_;
  Incoming incoming_ = Incoming::kNone;
  uint32_t received_ = 0;  // bytes of it
  RKey write_rkey_{};
  uint64_t write_offset_ = 0;
  uint32_t write_length_ = 0;

  uint8_t newest_attempt_ = 0;                       // of the READs that were queued
  std::array<uint32_t, kLastAttempt + 1> attempts_;  // of which sequence number each was the last time
  std::deque<Answer> answers_;
  std::array<DoneAtomic, kMaxReads> atomics_{};
  size_t next_atomic_ = 0;
  std::array<AskedRead, kMaxReads> reads_{};
  size_t next_read_ = 0;
  // The page that is being read out, at once; of the READ at the front.
  std::array<std::byte, kPageSize> page_;
  uint64_t page_offset_ = 0;
  uint32_t page_bytes_ = 0;  // 0: none
};

}  // namespace termfs::driver::roce

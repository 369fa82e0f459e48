// SPDX-License-Identifier: Apache-2.0
//
// One end of a reliable connection (RC) as RoCEv2 has it, without sockets, threads or a clock: packets come in and go
// out, and the time is told. Requester and Responder (requester.h, responder.h) are its two halves, which have nothing
// to do with each other but the packets' way out.
//
// Packets may be lost, doubled, late and out of order. What is delivered is each request once and in order; what is
// read or written is whole; atomics happen once. A peer that does not answer is reported after kRetries.
//
// READ and pages. A READ is asked for in parts: up to the end of its first page where it does not begin with one, then
// of kReadPart bytes. What is lost of a part is asked for again from the beginning of a page, and late answers to the
// earlier time are told apart (Packet::attempt), as is a READ that the network doubled. The responder takes each page
// out of memory at once, so of a page nobody ever gets a mixture of two versions, as long as the other end is of this
// kind, too.
//
// Thread-safety: none; its owner calls it from one thread at a time.
// Ownership:     memory, sink and completions outlive it; so do buffers of work requests until they have completed.
// Errors:        by completions only, as in driver/nic.h. What cannot be a packet of this connection is dropped and
// counted. Units:         bytes; sequence numbers count packets.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/page.h"
#include "driver/nic.h"
#include "driver/roce/packet.h"
#include "driver/wire.h"

namespace termfs::driver::roce {

using TimePoint = std::chrono::steady_clock::time_point;

inline constexpr uint32_t kReadPart = 32 << 10;
inline constexpr uint32_t kMaxReads = 64;  // READs and atomics under way, of those that a responder answers
inline constexpr int kRetries = 7;         // without progress; each waits twice as long as the one before
inline constexpr uint32_t kMaxPacketsOfMessage = 1U << 20;

// The way out. What it cannot send it may drop.
class PacketSink {
 public:
  virtual ~PacketSink() = default;
  // Room for a packet of `bytes`, which the caller fills; the next Begin, or the end of the call into the connection,
  // says that it is complete.
  virtual std::byte* Begin(size_t bytes) = 0;
  // The packet that was begun last is none.
  virtual void Discard() = 0;
};

struct ConnectionOptions {
  uint32_t queue_pair = 0;                      // our number
  uint32_t peer = 0;                            // the peer's
  uint32_t first_sequence = 0;                  // of our requests
  uint32_t peer_first_sequence = 0;             // of the peer's
  uint32_t mtu = 1024;                          // of payload: 256, 512, 1024, 2048 or 4096
  uint32_t max_reads = kMaxReads;               // that the peer answers at a time
  std::chrono::milliseconds rnr_timeout{1000};  // how long a SEND waits for a receive of the peer's
  ReceiveSource* receives = nullptr;            // null: those that are posted
};

struct ConnectionCounters {
  uint64_t dropped = 0;          // packets that had no place here
  uint64_t retransmissions = 0;  // times that something was sent again
  uint64_t timeouts = 0;
  uint64_t refusals = 0;  // of the peer's requests, which end the connection
};

// Signed distance from `b` to `a`, both 24 bits.
constexpr int32_t SequenceDistance(uint32_t a, uint32_t b) { return static_cast<int32_t>((a - b) << 8) >> 8; }

}  // namespace termfs::driver::roce

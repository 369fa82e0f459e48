// SPDX-License-Identifier: Apache-2.0
//
// Requester: the half of an iWARP stream that carries out what is posted to its send queue.
//
// A SEND is one message. A WRITE or READ is cut into messages of at most kMostMessage bytes, so that the other
// direction's have their turn. SENDs and WRITEs complete when their last byte was handed over to be sent, READs when
// the last byte has arrived; completions come in the order of the requests.
//
// Each READ request names its response by a number of its own as the key of the sink. A response has to be that of the
// oldest READ under way, and its bytes have to come in order and to be as many as were asked for: so a peer never
// writes anywhere but where the oldest READ wants its next bytes.
//
// Thread-safety: none; its owner calls it from one thread at a time.
// Ownership:     the sink of completions outlives it; so do buffers of requests until they have completed.
// Errors:        by completions, as in driver/nic.h; what the peer does wrong is an Error for Terminate.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "driver/iwarp/unit.h"
#include "driver/nic.h"
#include "driver/wire.h"

namespace termfs::driver::iwarp {

inline constexpr uint32_t kMostMessage = 64 << 10;  // of a WRITE or a READ

// What a half of a stream has written of a message.
struct Written {
  size_t bytes = 0;  // 0: there was not enough room
  bool message_ends = true;
};

class Requester {
 public:
  // `max_reads`: READ requests that the peer queues. REQUIRES: at least 1.
  Requester(uint32_t queue_pair, uint32_t max_reads, bool with_crc, CompletionSink& completions);

  // REQUIRES: a SEND, WRITE or READ; the local buffer is one that it may use.
  void Post(const SendWorkRequest& request);
  // The peer queues fewer. REQUIRES: at least 1; nothing has been sent.
  void SetMaxReads(uint32_t max_reads) { max_reads_ = max_reads; }
  bool has_unit() const;
  // The next unit's frame, to the beginning of `to`. REQUIRES: has_unit().
  Written WriteUnit(std::span<std::byte> to);
  std::optional<Error> OnReadResponse(const Unit& unit);
  // The oldest request completes with `first`, all others with kWrFlushErr, from now on.
  void Fail(WcStatus first);
  bool failed() const { return failed_; }
  bool awaits_answer() const { return !reads_.empty(); }

 private:
  struct Item {
    SendWorkRequest request;
    uint32_t sent = 0;        // bytes; of a READ: asked for
    uint32_t unanswered = 0;  // parts of a READ
    bool all_sent = false;
    bool done() const { return all_sent && unanswered == 0; }
  };
  struct Read {
    Item* item = nullptr;
    uint32_t number = 0;
    std::byte* to = nullptr;
    uint32_t length = 0;
    uint32_t arrived = 0;
  };

  Written WriteSend(Item& item, std::span<std::byte> to);
  Written WriteWrite(Item& item, std::span<std::byte> to);
  Written WriteReadRequest(Item& item, std::span<std::byte> to);
  void Advance(Item& item, bool all_sent);
  void CompleteFront();
  void Complete(const SendWorkRequest& request, WcStatus status);

  const uint32_t queue_pair_;
  uint32_t max_reads_;
  const bool with_crc_;
  CompletionSink& completions_;
  bool failed_ = false;
  std::deque<Item> items_;
  size_t next_ = 0;            // the first of them that is not sent whole
  uint32_t write_left_ = 0;    // of the WRITE message that has begun
  std::deque<Read> reads_;     // asked for and not answered
  uint32_t send_message_ = 1;  // numbers of the next messages
  uint32_t read_message_ = 1;
};

}  // namespace termfs::driver::iwarp

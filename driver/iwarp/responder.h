// SPDX-License-Identifier: Apache-2.0
//
// Responder: the half of an iWARP stream that carries out the peer's requests: receives for its messages, its access to
// our memory, and the responses to its READs.
//
// Nothing that arrives waits for something to be sent: READ requests are queued, as many as was agreed, and responses
// are written when there is room. Each page of a response is taken out of memory at once, when it is written: of a page
// the peer never gets a mixture of two versions. A READ that is not allowed ends the stream in its turn, behind the
// responses to those before it.
//
// What a hostile peer can do: have the stream end. It sees and changes what RemoteMemory allows.
//
// Thread-safety: none; its owner calls it from one thread at a time.
// Ownership:     memory, completions and the source of receives outlive it.
// Errors:        what the peer does wrong is an Error for Terminate.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <variant>

#include "driver/iwarp/requester.h"
#include "driver/iwarp/unit.h"
#include "driver/wire.h"

namespace termfs::driver::iwarp {

class Responder {
 public:
  // `max_reads`: READ requests that are queued. `receives` may be null: those that are posted.
  Responder(uint32_t queue_pair, uint32_t max_reads, bool with_crc, RemoteMemory& memory, CompletionSink& completions,
            ReceiveSource* receives);

  // REQUIRES: the local buffer may be written to.
  void Post(const RecvWorkRequest& request);
  // False: it begins a message, and there is no receive for it.
  bool IsReadyFor(const Unit& unit);
  // REQUIRES: a SEND, WRITE or READ request.
  std::optional<Error> OnUnit(const Unit& unit);
  bool has_unit() const { return !answers_.empty(); }
  // The next unit's frame, to the beginning of `to`. REQUIRES: has_unit().
  std::variant<Written, Error> WriteUnit(std::span<std::byte> to);
  // What is posted completes with kWrFlushErr, from now on.
  void Fail();
  bool failed() const { return failed_; }

 private:
  struct Answer {
    ReadRequest request;
    uint32_t sent = 0;
    std::optional<Error> refusal{};
  };

  std::optional<Error> OnSend(const Unit& unit);
  std::optional<Error> OnWrite(const Unit& unit);
  std::optional<Error> OnReadRequest(const Unit& unit);
  bool HasReceive();
  void FinishReceive(WcStatus status, uint32_t bytes);
  bool CopyOut(const ReadRequest& request, uint32_t from, std::span<std::byte> to);

  const uint32_t queue_pair_;
  const uint32_t max_reads_;
  const bool with_crc_;
  RemoteMemory& memory_;
  CompletionSink& completions_;
  ReceiveSource* const source_;
  bool failed_ = false;
  std::deque<RecvWorkRequest> receives_;
  bool receiving_ = false;     // a message, into the first of them
  uint32_t received_ = 0;      // bytes of it
  uint32_t send_message_ = 1;  // numbers of the next messages
  uint32_t read_message_ = 1;
  std::deque<Answer> answers_;
};

}  // namespace termfs::driver::iwarp

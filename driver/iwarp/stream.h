// SPDX-License-Identifier: Apache-2.0
//
// Stream: one end of an iWARP connection after its set-up (setup.h), without sockets, threads or a clock: bytes of the
// TCP stream come in and go out. Requester and Responder are its two halves; they take turns to send, message by
// message.
//
//   kOpen ---- the peer's Terminate, Fail, an error of the peer's ----> kFailed
//
// An error of the peer is reported to it by a Terminate, the last frame that is sent.
//
// What completions promise: see the table in driver/nic.h.
//
// Thread-safety: none; its owner calls it from one thread at a time.
// Ownership:     memory, completions and the source of receives outlive it; so do buffers of work requests until they
//                have completed.
// Errors:        by completions only, as in driver/nic.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>

#include "driver/iwarp/requester.h"
#include "driver/iwarp/responder.h"
#include "driver/iwarp/unit.h"

namespace termfs::driver::iwarp {

inline constexpr uint32_t kMaxReads = 64;
// The longest frame that MPA knows: what a buffer of arriving bytes has to hold.
inline constexpr size_t kMostFrameOfPeer = FrameBytesOf(0xffff);

struct StreamOptions {
  uint32_t queue_pair = 0;  // of the completions
  bool dials = true;        // the end that dials sends first, the other end after its first frame
  bool with_crc = true;
  uint32_t reads_of_ours = kMaxReads;  // READ requests that the peer queues
  uint32_t reads_of_peer = kMaxReads;  // and that this end does
  ReceiveSource* receives = nullptr;   // null: those that are posted
  // Else a SEND that finds no receive ends the stream, as RFC 5041 has it.
  bool waits_for_receives = false;
};

class Stream {
 public:
  Stream(const StreamOptions& options, RemoteMemory& memory, CompletionSink& completions);

  // REQUIRES: a SEND, WRITE or READ with a local buffer that it may use.
  void Post(const SendWorkRequest& request) { requester_.Post(request); }
  void Post(const RecvWorkRequest& request) { responder_.Post(request); }
  // Instead of StreamOptions::reads_of_ours, where the set-up comes after that. REQUIRES: at least 1; nothing was sent.
  void SetReadsOfOurs(uint32_t reads) { requester_.SetMaxReads(reads); }

  // Takes the whole frames that `bytes` begin with. Returns how many bytes that was: what is left is to be given again,
  // with more behind it. After a failure everything is taken, and dropped.
  // With StreamOptions::waits_for_receives a SEND that finds none waits: it and all behind it is not taken.
  size_t Take(std::span<const std::byte> bytes);
  bool waits_for_receive() const { return waits_for_receive_; }
  // It has waited long enough: the stream ends.
  void GiveUpWaiting();
  // Writes whole frames to `to`, as many as there are and fit. Returns their bytes; 0: nothing is to be sent now.
  // REQUIRES: room for kMostFrameBytes.
  size_t Fill(std::span<std::byte> to);
  bool has_output() const;
  // READs have been asked for that are not answered.
  bool awaits_answer() const { return requester_.awaits_answer(); }

  // Nothing is sent any more. The oldest request completes with `first`, the others with kWrFlushErr.
  void Fail(WcStatus first);
  bool failed() const { return failed_; }
  // Of what this end ended the stream for, or the peer did.
  const std::optional<Error>& error() const { return error_; }

 private:
  enum class Side : uint8_t { kRequester, kResponder };

  enum class Taken : uint8_t { kYes, kLater };
  std::variant<Taken, Error> OnFrame(std::span<const std::byte> frame);
  void OnTerminate(const Unit& unit);
  void Terminate(const Error& error);
  std::optional<Side> NextSide() const;
  // Absent: there is not enough room.
  std::optional<size_t> WriteOne(std::span<std::byte> to);
  size_t WriteReady(std::span<std::byte> to);
  size_t WriteTerminate(std::span<std::byte> to);

  const StreamOptions options_;
  Requester requester_;
  Responder responder_;
  bool failed_ = false;
  bool waits_for_receive_ = false;
  std::optional<Error> error_;
  bool owes_terminate_ = false;
  bool owes_ready_;  // the first frame of the end that dials
  bool peer_is_ready_;
  Side turn_ = Side::kRequester;
  bool message_open_ = false;  // of the side whose turn it is
};

}  // namespace termfs::driver::iwarp

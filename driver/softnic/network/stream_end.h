// SPDX-License-Identifier: Apache-2.0
//
// StreamEnd: one end of an iWARP stream on a TCP connection. The queue pair's thread posts, which sends at once what
// the socket takes; what it does not take an RNIC thread sends when there is room (stream_loop.h).
//
//   kIdle -- Start, of both ends: the connection is there; Enable: the queue pair is connected --> kOpen
//   kOpen -- Close, the peer's end, an error, no answer for kPatience --> kFailed
//
// A SEND that finds no receive waits for one, for as long as a RoCE peer would repeat it
// (QueuePairOptions::rnr_timeout); meanwhile the stream is not read, and TCP holds the peer back. So a burst of
// messages ends no connection.
//
// Inside TLS what arrives is opened, and what is sent is sealed, with the end's lock held: a session of TLS is one
// thread's at a time.
//
// Receiving never waits for sending: what arrives is taken as long as there is something, READ requests are noted, and
// answered when the socket has room. Memory: while the socket is full, up to kOutputBytes that it has not taken; while
// a frame has come in part, that part.
//
// Thread-safety: any thread; Receive: one at a time.
// Ownership:     shared by its queue pair and the RNIC thread; owns the socket, which is closed with it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/tls.h"
#include "base/unique_fd.h"
#include "driver/iwarp/stream.h"
#include "driver/softnic/network/counters.h"
#include "driver/softnic/network/exported_memory.h"
#include "driver/softnic/network/own_port.h"
#include "driver/softnic/network/wire_end.h"

namespace termfs::driver::softnic {

class StreamLoop;

class StreamEnd final : public WireEnd, public PortReceiver {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // Without an answer to a READ, or a byte of it, the peer is taken for gone.
  static constexpr std::chrono::seconds kPatience{7};
  // Filled and sent at a time: small enough to stay in the first caches between the copy out of the frames, the CRC and
  // the socket, large enough for few calls. 32 KiB cost streams a quarter, 80 KiB and more a fifth to a half.
  static constexpr size_t kOutputBytes = 64 << 10;

  StreamEnd(StreamLoop& loop, NetworkCounters& counters, ExportedMemory memory, const iwarp::StreamOptions& options,
            std::chrono::milliseconds receive_patience, QueuePairCounts* owner, std::shared_ptr<CompletionInlet> sends,
            std::shared_ptr<CompletionInlet> receives, bool shares_receives);

  // The connection has been set up; `early`: bytes of the stream that came behind the set-up, opened; `max_reads`: READ
  // requests that this end may have under way. EISCONN: it had a connection; EPIPE: it is closed.
  Status Start(UniqueFd socket, std::unique_ptr<TlsSession> tls, std::span<const std::byte> early, uint16_t max_reads)
      EXCLUDES(mutex_);
  // Whether its connection has to be inside TLS.
  bool secure() const { return secure_; }
  // From now on what arrives is taken.
  void Enable() EXCLUDES(mutex_);
  bool started() const { return started_.load(std::memory_order_acquire); }
  // The thread of the queue pair receives, and not the RNIC thread.
  void SetPolled() { polled_ = true; }

  void Post(std::span<const SendWorkRequest> requests, WcStatus local_error) override EXCLUDES(mutex_);
  void Post(std::span<const RecvWorkRequest> requests) override EXCLUDES(mutex_);
  void Close(bool detach) override EXCLUDES(mutex_);
  uint32_t number() const override { return number_; }
  bool ready() const override { return enabled_.load(std::memory_order_acquire) && !completions_.failed(); }
  uint32_t TakeUnsignaled() override { return completions_.TakeUnsignaled(); }

  int fd() const override { return socket_.get(); }
  void Receive() override EXCLUDES(mutex_);

  bool waits_for_receive() const { return waits_for_receive_.load(std::memory_order_relaxed); }

  // --- For the RNIC thread.
  void Retry() EXCLUDES(mutex_);
  void OnRoom() EXCLUDES(mutex_);
  TimePoint deadline() const { return TimePoint(TimePoint::duration(deadline_.load(std::memory_order_seq_cst))); }
  void OnTimer(TimePoint now) EXCLUDES(mutex_);

 private:
  void Open() EXCLUDES(mutex_);
  // Returns what it has not taken.
  std::span<const std::byte> Take(std::span<const std::byte> bytes) EXCLUDES(mutex_);
  std::span<const std::byte> TakeLocked(std::span<const std::byte> bytes) REQUIRES(mutex_);
  // What was received behind `partial_`: keeps there what the stream has not taken. False: no record of the session's.
  bool TakeReceived(std::span<const std::byte> bytes) EXCLUDES(mutex_);
  bool TakeSealed(std::span<const std::byte> sealed) EXCLUDES(mutex_);
  bool SendFilled(std::span<const std::byte> filled) REQUIRES(mutex_);
  void Lost() EXCLUDES(mutex_);
  // Ends whatever the end was called for: what may be sent is, sleepers are woken.
  void Finish() REQUIRES(mutex_);
  void Send() REQUIRES(mutex_);
  void GiveUpSending() REQUIRES(mutex_);
  bool SendBytes(std::span<const std::byte> bytes) REQUIRES(mutex_);
  void NoteDeadline() REQUIRES(mutex_);
  // What waited for a receive. False: it still does.
  bool TakeWaiting() EXCLUDES(mutex_);

  StreamLoop& loop_;
  NetworkCounters& counters_;
  const uint32_t number_;
  const std::chrono::milliseconds receive_patience_;
  const bool secure_;
  CompletionPath completions_;
  bool polled_ = false;
  std::atomic<bool> started_{false};
  std::atomic<bool> enabled_{false};
  std::atomic<bool> open_{false};
  std::atomic<bool> waits_for_receive_{false};
  std::atomic<TimePoint::rep> deadline_{TimePoint::max().time_since_epoch().count()};
  UniqueFd socket_;  // once, by Start
  // Belongs to the receiving thread: the beginning of a frame.
  std::vector<std::byte> partial_;

  Mutex mutex_;
  std::unique_ptr<TlsSession> tls_ GUARDED_BY(mutex_);
  ExportedMemory memory_ GUARDED_BY(mutex_);
  iwarp::Stream stream_ GUARDED_BY(mutex_);
  std::vector<std::byte> unsent_ GUARDED_BY(mutex_);
  size_t unsent_from_ GUARDED_BY(mutex_) = 0;
  bool waits_for_room_ GUARDED_BY(mutex_) = false;
  bool shut_ GUARDED_BY(mutex_) = false;
  bool lost_ GUARDED_BY(mutex_) = false;
  bool opening_ GUARDED_BY(mutex_) = false;
  TimePoint waits_since_ GUARDED_BY(mutex_){};  // for a receive; zero: it does not
  bool awaited_ GUARDED_BY(mutex_) = false;     // an answer, since something came last
};

}  // namespace termfs::driver::softnic

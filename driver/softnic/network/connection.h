// SPDX-License-Identifier: Apache-2.0
//
// Connection: a reliable connection with its lock, its way out and its way to the completion queues. The queue pair's
// thread posts, which sends at once what may be sent; the RNIC thread brings what comes in and the timers.
//
//   kIdle ---- Connect ----> kReady ---- Close, a failed operation ----> kFailed
//
// Thread-safety: any thread.
// Ownership:     shared by its queue pair and the RNIC thread; refers to the port, which outlives it. After Close with
//                `detach` nothing is put into the completion queues any more, nor is memory of the poster's touched.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "driver/nic.h"
#include "driver/roce/requester.h"
#include "driver/roce/responder.h"
#include "driver/softnic/network/exported_memory.h"
#include "driver/softnic/network/udp_port.h"
#include "driver/softnic/network/wire_end.h"

namespace termfs::driver::softnic {

class Connection final : public WireEnd, private roce::PacketSink {
 public:
  using TimePoint = roce::TimePoint;

  // `owner`, `shares_receives`: see CompletionPath.
  Connection(UdpPort& port, NetworkCounters& counters, ExportedMemory memory, QueuePairCounts* owner,
             std::shared_ptr<CompletionInlet> sends, std::shared_ptr<CompletionInlet> receives, bool shares_receives);
  ~Connection() override;

  // `peer`: where its packets come from; without a port from any.
  void Connect(const roce::ConnectionOptions& options, const Flow& flow, const PacketSource& peer) EXCLUDES(mutex_);
  void Post(std::span<const SendWorkRequest> requests, WcStatus local_error) override EXCLUDES(mutex_);
  void Post(std::span<const RecvWorkRequest> requests) override EXCLUDES(mutex_);
  void Close(bool detach) override EXCLUDES(mutex_);

  // Set once, before anything else: the queue pair's number.
  void set_number(uint32_t number) { number_ = number; }
  uint32_t number() const override { return number_; }
  bool ready() const override { return connected_.load(std::memory_order_acquire) && !completions_.failed(); }
  uint32_t TakeUnsignaled() override { return completions_.TakeUnsignaled(); }

  // --- For the RNIC thread.

  // When OnTimer has something to do; any thread may ask.
  TimePoint deadline() const { return TimePoint(TimePoint::duration(deadline_.load(std::memory_order_seq_cst))); }
  void OnTimer(TimePoint now) EXCLUDES(mutex_);
  struct Arrived {
    roce::Packet packet;
    PacketSource from;
  };
  // Both return true when there is more to answer: call Answer, which sends a bounded number of packets, again.
  bool Deliver(std::span<const Arrived> packets, TimePoint now) EXCLUDES(mutex_);
  bool Answer(TimePoint now) EXCLUDES(mutex_);

 private:
  // Ends whatever the connection was called for: what may be sent is, a half that failed takes the other one along,
  // sleepers are woken.
  void Finish(TimePoint now) REQUIRES(mutex_);
  void SealPacket() REQUIRES(mutex_);
  void Flush() REQUIRES(mutex_);

  // Of the two halves, which run under the lock.
  std::byte* Begin(size_t bytes) override REQUIRES(mutex_);
  void Discard() override REQUIRES(mutex_) { open_ = {}; }

  uint32_t number_ = 0;
  UdpPort& port_;
  NetworkCounters& counters_;
  CompletionPath completions_;
  std::atomic<bool> connected_{false};
  std::atomic<TimePoint::rep> deadline_{TimePoint::max().time_since_epoch().count()};

  Mutex mutex_;
  ExportedMemory memory_ GUARDED_BY(mutex_);
  std::optional<Flow> flow_ GUARDED_BY(mutex_);
  PacketSource peer_ GUARDED_BY(mutex_){};
  std::optional<roce::Requester> requester_ GUARDED_BY(mutex_);
  std::optional<roce::Responder> responder_ GUARDED_BY(mutex_);
  roce::ConnectionCounters counted_ GUARDED_BY(mutex_);
  std::vector<RecvWorkRequest> early_receives_ GUARDED_BY(mutex_);  // posted before Connect
  std::unique_ptr<UdpPort::Batch> batch_ GUARDED_BY(mutex_);        // from the first packet to Flush
  size_t used_ GUARDED_BY(mutex_) = 0;                              // bytes of it
  std::span<std::byte> open_ GUARDED_BY(mutex_);                    // the packet that is being written
};

}  // namespace termfs::driver::softnic

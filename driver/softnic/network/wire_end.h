// SPDX-License-Identifier: Apache-2.0
//
// WireEnd: what carries out the requests of a queue pair over a network: a reliable connection of RoCE (connection.h)
// or a stream of iWARP (stream_end.h). And the way of its completions, which both have in common.
//
// Thread-safety: any thread.
// Ownership:     shared by its queue pair and the RNIC thread. After Close with `detach` nothing is put into the
//                completion queues any more but completions of shared receives, nor is memory of the poster's touched.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "driver/nic.h"
#include "driver/softnic/completion_inlet.h"
#include "driver/wire.h"

namespace termfs::driver::softnic {

class WireEnd {
 public:
  virtual ~WireEnd() = default;
  // REQUIRES: the buffers are the poster's to use. `local_error`: the last of `requests` cannot be carried out, for
  // this reason of the poster's own.
  virtual void Post(std::span<const SendWorkRequest> requests, WcStatus local_error) = 0;
  virtual void Post(std::span<const RecvWorkRequest> requests) = 0;
  // What is under way completes with kWrFlushErr, or where the owner has detached not at all.
  virtual void Close(bool detach) = 0;
  virtual uint32_t number() const = 0;  // of the queue pair
  virtual bool ready() const = 0;
  // Sends that ended without a completion since the last call.
  virtual uint32_t TakeUnsignaled() = 0;
};

// Of the end of a wire, under whose lock everything is called but what says otherwise.
class CompletionPath final : public CompletionSink {
 public:
  // `owner`: whose completions they are. `shares_receives`: those of receives come also when it has detached.
  CompletionPath(QueuePairCounts* owner, std::shared_ptr<CompletionInlet> sends,
                 std::shared_ptr<CompletionInlet> receives, bool shares_receives);

  void OnSend(const WorkCompletion& completion) override;
  void OnUnsignaledSend() override { unsignaled_.fetch_add(1, std::memory_order_relaxed); }
  void OnReceive(const WorkCompletion& completion) override;
  // The end has failed: where receives are shared, and none is flushed, one completion says so.
  void ReportEnd(uint32_t number);
  void Detach() { owner_ = nullptr; }
  // After one or more completions.
  void Wake();

  // Any thread.
  uint32_t TakeUnsignaled() { return unsignaled_.exchange(0, std::memory_order_relaxed); }
  // A completion has said that the end failed.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Threads that wait for receives look again.
  void WakeReceives() { receives_->Wake(); }

 private:
  void NoteEnd(WcStatus status);

  const std::shared_ptr<CompletionInlet> sends_;
  const std::shared_ptr<CompletionInlet> receives_;
  const bool shares_receives_;
  std::atomic<uint32_t> unsignaled_{0};
  std::atomic<bool> failed_{false};
  bool told_end_ = false;
  QueuePairCounts* owner_;  // null: detached
};

}  // namespace termfs::driver::softnic

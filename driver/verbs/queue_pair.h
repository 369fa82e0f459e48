// SPDX-License-Identifier: Apache-2.0
//
// A queue pair of libibverbs, reliable connection over RoCE v2.
//
// The seam frees the place of an unsignaled send when it has ended; verbs tells that of none but signaled ones, so one
// in a few is signaled behind the user's back, and its completion swallowed.
//
// Thread-safety: one thread, that of its completion queues.
// Ownership:     completion queues outlive it.
#pragma once

#include <deque>
#include <memory>

#include "driver/nic.h"
#include "driver/verbs/completion_queue.h"
#include "driver/verbs/device.h"
#include "driver/verbs/memory.h"

namespace termfs::driver::verbs {

class VerbsQueuePair final : public QueuePair {
 public:
  static Result<std::unique_ptr<QueuePair>> Create(std::shared_ptr<Domain> domain, const QueuePairOptions& options);
  ~VerbsQueuePair() override;

  uint32_t number() const override { return pair_->qp_num; }
  Result<Endpoint> LocalEndpoint() override;
  Status Connect(Endpoint remote) override;
  Status PostSend(std::span<const SendWorkRequest> requests) override;
  Status PostRecv(std::span<const RecvWorkRequest> requests) override;
  Result<std::span<const std::byte>> SharedView(RKey rkey) override;
  void Close() override;
  bool connected() const override { return connected_ && !failed_; }

  // --- For the completion queues.

  void OnCompletion(const ibv_wc& completion);
  void OnTaken(const WorkCompletion& completion);

 private:
  struct Posted {
    uint64_t id;
    Opcode opcode;
    bool wanted;  // its completion
  };

  VerbsQueuePair(std::shared_ptr<Domain> domain, const QueuePairOptions& options)
      : domain_(std::move(domain)),
        options_(options),
        send_queue_(static_cast<VerbsCompletionQueue*>(options.send_cq)),
        receive_queue_(static_cast<VerbsCompletionQueue*>(options.recv_cq)) {}
  Status Init();
  Status Modify(ibv_qp_attr attributes, int mask, const char* what);
  uint32_t own_receives() const { return options_.shared_receives != nullptr ? 1 : options_.max_recv; }
  // What the device would not find out.
  WcStatus Check(const SendWorkRequest& request) const;
  void Refuse(const SendWorkRequest& request, WcStatus status);
  int PostOne(const SendWorkRequest& request);

  const std::shared_ptr<Domain> domain_;
  const QueuePairOptions options_;
  VerbsCompletionQueue* const send_queue_;
  VerbsCompletionQueue* const receive_queue_;
  PortAddress port_;
  PairPtr pair_;
  uint32_t first_sequence_ = 0;
  bool send_reserved_ = false;
  bool receive_reserved_ = false;
  bool connected_ = false;
  bool failed_ = false;
  std::deque<Posted> sends_;          // posted, in order, of which the device has not said that they have ended
  uint64_t first_send_ = 0;           // the number of the first of them
  uint32_t silent_ = 0;               // unsignaled ones since the last that was signaled
  uint32_t untaken_sends_ = 0;        // completions of sends that nobody has polled yet
  std::deque<uint64_t> receive_ids_;  // posted, in order; they complete in this order
  uint32_t receives_ = 0;             // posted, and completed but not polled
};

}  // namespace termfs::driver::verbs

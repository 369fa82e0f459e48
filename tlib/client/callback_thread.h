// SPDX-License-Identifier: Apache-2.0
//
// CallbackThread: answers what the server asks, on a queue pair of its own. tlib's own requests (new patterns) are
// handled here, the others by the session's handler, one at a time.
//
// Thread-safety: Start and Stop from one thread.
// Ownership:     owns its thread, queue pair and buffers; the handler outlives it.
// Errors:        a malformed request, or any failed completion, means that the session is lost.
#pragma once

#include <memory>
#include <thread>

#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/nic.h"
#include "tlib/client/session.h"
#include "tlib/client/session_core.h"
#include "tlib/rpc/decode.h"

namespace termfs::tlib::client {

class CallbackThread {
 public:
  // `handler` may be null: then the server's calls are answered with ENOSYS.
  static Result<std::unique_ptr<CallbackThread>> Start(std::shared_ptr<SessionCore> core, CallbackHandler* handler);
  // Waits for a callback that runs.
  ~CallbackThread();
  CallbackThread(const CallbackThread&) = delete;
  CallbackThread& operator=(const CallbackThread&) = delete;

 private:
  CallbackThread(std::shared_ptr<SessionCore> core, CallbackHandler* handler)
      : core_(std::move(core)), handler_(handler) {}
  Status Init();
  void Run();
  // False: time to end.
  bool Sleep();
  Status PollOnce(bool* any);
  Status HandleMessage(const driver::WorkCompletion& completion);
  Result<std::vector<std::byte>> Dispatch(const DecodedRequest& request);
  Status TakePatterns(std::span<const std::byte> body);
  Status TakeRevocation(std::span<const std::byte> body);
  Status SendReply(uint32_t index, uint64_t call, const Result<std::vector<std::byte>>& reply);
  Status PostReceive(uint32_t index);

  std::byte* receive_bytes(uint32_t index) { return messages_.get() + size_t{index} * max_send_; }
  std::byte* reply_bytes(uint32_t index) { return messages_.get() + (kChannelCredits + size_t{index}) * max_send_; }

  const std::shared_ptr<SessionCore> core_;
  CallbackHandler* const handler_;
  const uint32_t max_send_ = MaxSend(core_->sealed());
  UniqueFd stop_event_;
  std::unique_ptr<std::byte[]> messages_;  // receives, then replies; a reply's buffer is its request's
  std::unique_ptr<driver::MemoryRegion> messages_region_;
  std::unique_ptr<driver::CompletionQueue> queue_;
  std::unique_ptr<driver::QueuePair> pair_;
  std::unique_ptr<MessageSeal> seal_;  // null: messages are not sealed
  std::thread thread_;
};

}  // namespace termfs::tlib::client

// SPDX-License-Identifier: Apache-2.0
//
// Shared receive queues of the software RNIC: one for queue pairs within the host, whose messages wait in their inboxes
// until their thread takes them, and one for those over the network, whose messages the RNIC thread takes in.
//
// Thread-safety: LocalSharedReceives: its queue pairs' thread. NetworkSharedReceives: PostRecv on that thread, Take on
//                any.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "driver/nic.h"
#include "driver/softnic/local_keys.h"
#include "driver/wire.h"

namespace termfs::driver::softnic {

class LocalSharedReceives final : public SharedReceiveQueue {
 public:
  explicit LocalSharedReceives(const SharedReceiveQueueOptions& options) : options_(options) {}
  Status PostRecv(std::span<const RecvWorkRequest> requests) override;

  uint32_t max_message() const { return options_.max_message; }
  bool empty() const { return posted_.empty(); }
  // The one that was posted last, whose memory is the likeliest to be in a cache. REQUIRES: not empty.
  RecvWorkRequest Take() {
    const RecvWorkRequest request = posted_.back();
    posted_.pop_back();
    return request;
  }

 private:
  const SharedReceiveQueueOptions options_;
  std::vector<RecvWorkRequest> posted_;
};

class NetworkSharedReceives final : public SharedReceiveQueue, public ReceiveSource {
 public:
  // `on_more`: called after a PostRecv that follows a Take in vain.
  NetworkSharedReceives(const SharedReceiveQueueOptions& options, std::shared_ptr<Registry> registry, uint32_t domain,
                        std::function<void()> on_more)
      : options_(options), local_keys_(std::move(registry), domain), on_more_(std::move(on_more)) {}
  Status PostRecv(std::span<const RecvWorkRequest> requests) override EXCLUDES(mutex_);
  std::optional<RecvWorkRequest> Take() override EXCLUDES(mutex_);

 private:
  const SharedReceiveQueueOptions options_;
  LocalKeys local_keys_;  // of the thread that posts
  const std::function<void()> on_more_;
  Mutex mutex_;
  bool wanted_ GUARDED_BY(mutex_) = false;
  std::vector<RecvWorkRequest> posted_ GUARDED_BY(mutex_);
};

}  // namespace termfs::driver::softnic

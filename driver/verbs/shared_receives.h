// SPDX-License-Identifier: Apache-2.0
//
// A shared receive queue of libibverbs. The device does not complete the receives in the order in which they were
// posted; so each is known by its place here, which its wr_id names.
//
// Thread-safety: one thread, that of the completion queues of its queue pairs.
// Ownership:     outlives its queue pairs, and their completions.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <vector>

#include "driver/nic.h"
#include "driver/verbs/device.h"
#include "driver/verbs/memory.h"

namespace termfs::driver::verbs {

using SharedReceivesPtr = std::unique_ptr<ibv_srq, Ender<ibv_destroy_srq>>;

class VerbsSharedReceives final : public SharedReceiveQueue {
 public:
  static Result<std::unique_ptr<SharedReceiveQueue>> Create(std::shared_ptr<Domain> domain,
                                                            const SharedReceiveQueueOptions& options);
  Status PostRecv(std::span<const RecvWorkRequest> requests) override;

  // --- For completion queues.

  ibv_srq* get() const { return queue_.get(); }
  // Whether `wr_id` is of a shared receive. Sends count from 0, and other receives have UINT64_MAX.
  static bool Has(uint64_t wr_id) { return (wr_id & kMark) != 0 && wr_id != UINT64_MAX; }
  // Frees its place; returns the id that it was posted with. REQUIRES: Has(wr_id); called once for a completion.
  static uint64_t Finish(uint64_t wr_id);

 private:
  static constexpr uint64_t kMark = uint64_t{1} << 63;
  struct Place {
    VerbsSharedReceives* owner;
    uint64_t id;
  };

  VerbsSharedReceives(std::shared_ptr<Domain> domain, const SharedReceiveQueueOptions& options)
      : domain_(std::move(domain)), options_(options), places_(options.max_recv) {}
  Status PostOne(const RecvWorkRequest& request);

  const std::shared_ptr<Domain> domain_;
  const SharedReceiveQueueOptions options_;
  std::vector<Place> places_;  // never resized
  std::vector<Place*> free_;
  SharedReceivesPtr queue_;
};

}  // namespace termfs::driver::verbs

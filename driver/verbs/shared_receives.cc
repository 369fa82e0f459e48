// SPDX-License-Identifier: Apache-2.0
#include "driver/verbs/shared_receives.h"

#include <cerrno>
#include <string>

#include "driver/verbs/elements.h"

namespace termfs::driver::verbs {

Result<std::unique_ptr<SharedReceiveQueue>> VerbsSharedReceives::Create(std::shared_ptr<Domain> domain,
                                                                        const SharedReceiveQueueOptions& options) {
  std::unique_ptr<VerbsSharedReceives> queue(new VerbsSharedReceives(std::move(domain), options));
  ibv_srq_init_attr wanted{};
  wanted.attr.max_wr = options.max_recv;
  wanted.attr.max_sge = queue->domain_->keys() != nullptr ? kMostParts : 1;
  queue->queue_.reset(ibv_create_srq(queue->domain_->get(), &wanted));
  if (queue->queue_ == nullptr) {
    return ErrnoStatus("create a shared receive queue for " + std::to_string(options.max_recv));
  }
  for (Place& place : queue->places_) {
    place.owner = queue.get();
    queue->free_.push_back(&place);
  }
  return std::unique_ptr<SharedReceiveQueue>(std::move(queue));
}

Status VerbsSharedReceives::PostRecv(std::span<const RecvWorkRequest> requests) {
  if (requests.size() > free_.size()) {
    return Status::Error(ENOMEM, "post more receives than the shared receive queue holds");
  }
  for (const RecvWorkRequest& request : requests) {
    if (request.local.length != options_.max_message) {
      return Status::Error(EINVAL, "post a receive of another length to a shared receive queue");
    }
    RETURN_IF_ERROR(PostOne(request));
  }
  return Status::Ok();
}

Status VerbsSharedReceives::PostOne(const RecvWorkRequest& request) {
  Elements elements;
  const std::optional<int> parts = ElementsOf(domain_->keys(), request.local, elements);
  if (!parts) {
    return Status::Error(EINVAL, "post a receive with a key that is none");
  }
  Place* const place = free_.back();
  place->id = request.id;
  ibv_recv_wr wanted{};
  wanted.wr_id = kMark | reinterpret_cast<uintptr_t>(place);
  wanted.sg_list = elements.data();
  wanted.num_sge = *parts;
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_srq_recv(queue_.get(), &wanted, &bad); error != 0) {
    return Status::Errno(error, "post a shared receive");
  }
  free_.pop_back();
  return Status::Ok();
}

uint64_t VerbsSharedReceives::Finish(uint64_t wr_id) {
  // It is the address that was posted. NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const place = reinterpret_cast<Place*>(static_cast<uintptr_t>(wr_id & ~kMark));
  place->owner->free_.push_back(place);
  return place->id;
}

}  // namespace termfs::driver::verbs

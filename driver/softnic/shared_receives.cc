// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/shared_receives.h"

#include <algorithm>
#include <utility>

namespace termfs::driver::softnic {
namespace {

Status Check(const SharedReceiveQueueOptions& options, std::span<const RecvWorkRequest> requests, size_t posted) {
  if (requests.size() > options.max_recv - posted) {
    return Status::Error(ENOMEM, "post more receives than the shared receive queue holds");
  }
  const auto other = [&](const RecvWorkRequest& request) { return request.local.length != options.max_message; };
  return std::none_of(requests.begin(), requests.end(), other)
             ? Status::Ok()
             : Status::Error(EINVAL, "post a receive of another length to a shared receive queue");
}

}  // namespace

Status LocalSharedReceives::PostRecv(std::span<const RecvWorkRequest> requests) {
  RETURN_IF_ERROR(Check(options_, requests, posted_.size()));
  posted_.insert(posted_.end(), requests.begin(), requests.end());
  return Status::Ok();
}

Status NetworkSharedReceives::PostRecv(std::span<const RecvWorkRequest> requests) {
  bool wanted = false;
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(Check(options_, requests, posted_.size()));
    for (RecvWorkRequest request : requests) {
      if (!local_keys_.Cover(request.local, /*write=*/true)) {
        request.local = {};  // nothing fits into it
      }
      posted_.push_back(request);
    }
    wanted = std::exchange(wanted_, false);
  }
  if (wanted) {
    on_more_();
  }
  return Status::Ok();
}

std::optional<RecvWorkRequest> NetworkSharedReceives::Take() {
  MutexLock lock(mutex_);
  if (posted_.empty()) {
    wanted_ = true;
    return std::nullopt;
  }
  const RecvWorkRequest request = posted_.back();
  posted_.pop_back();
  return request;
}

}  // namespace termfs::driver::softnic

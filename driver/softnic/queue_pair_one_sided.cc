// SPDX-License-Identifier: Apache-2.0
//
// READ, WRITE and atomics: executed here and now, on mappings of the peer's memory, when the keys are known.
#include <linux/futex.h>
#include <poll.h>

#include <algorithm>

#include "base/log.h"
#include "driver/softnic/queue_pair.h"

namespace termfs::driver::softnic {
namespace {

// How long the peer's RNIC thread, or its fault handler, may take. Its death is noticed at once; this is for a process
// that was stopped.
constexpr std::chrono::seconds kAnswerTimeout{5};
constexpr size_t kFewRegions = 2;

}  // namespace

RemoteRegion* SoftQueuePair::FindRemoteSlow(RKey rkey) {
  const auto found = remote_.find(rkey.value);
  if (found == remote_.end()) {
    return nullptr;
  }
  return remote_cache_[rkey.value % remote_cache_.size()] = found->second.get();
}

void SoftQueuePair::ForgetRegions() {
  std::erase_if(remote_, [this](const auto& entry) {
    RemoteRegion* const region = entry.second.get();
    if (region->valid() || std::find(shown_.begin(), shown_.end(), region->rkey()) != shown_.end()) {
      return false;
    }
    std::replace(remote_cache_.begin(), remote_cache_.end(), region, static_cast<RemoteRegion*>(nullptr));
    return true;
  });
  forget_at_ = std::max(kFewRegions, 2 * remote_.size());  // so that many that are in use cost no more each
}

inline bool SoftQueuePair::PeerServes() const {
  FenceAfterRacyReads();
  const auto* const serving = reinterpret_cast<const std::atomic<uint32_t>*>(validity_->data() + kServingOffset);
  return peer_control().closed.load(std::memory_order_relaxed) == 0 &&
         (serving->load(std::memory_order_relaxed) & FUTEX_TID_MASK) != 0;
}

inline RemoteRegion* SoftQueuePair::FindRemote(RKey rkey) {
  RemoteRegion* region = remote_cache_[rkey.value % remote_cache_.size()];
  if (region != nullptr && region->rkey() == rkey) [[likely]] {
    return region;
  }
  return FindRemoteSlow(rkey);
}

SoftQueuePair::Outcome SoftQueuePair::Resolve(RKey rkey, Progressing& progress) {
  if (progress.wait == Wait::kResolve) {
    if (awaited_rkey_ == 0) {
      return Done(progress, answer_failed_ ? WcStatus::kRemAccessErr : WcStatus::kRetryExcErr);
    }
    return Expired(progress) ? Done(progress, WcStatus::kRetryExcErr) : Outcome::kBlocked;
  }
  SocketMessage request;
  request.type = static_cast<uint32_t>(MessageType::kResolve);
  request.rkey = rkey.value;
  if (rkey.value == 0) {
    return Done(progress, WcStatus::kRemAccessErr);
  }
  if (!port_->SendRequest(request)) {
    return Done(progress, WcStatus::kRetryExcErr);
  }
  awaited_rkey_ = rkey.value;
  answer_failed_ = false;
  if (remote_.size() >= forget_at_) {
    ForgetRegions();
  }
  return Block(progress, Wait::kResolve, kAnswerTimeout);
}

void SoftQueuePair::TakeAnswer(const SocketMessage& message, std::span<const UniqueFd> fds) {
  const auto type = static_cast<MessageType>(message.type);
  if (awaited_rkey_ == 0 || message.rkey != awaited_rkey_) {
    return;  // a wake-up, or an answer that came too late
  }
  if (type == MessageType::kResolved) {
    if (remote_.contains(message.rkey)) {
      return;  // it is another answer that is awaited, and the region is in use
    }
    awaited_rkey_ = 0;
    Result<std::unique_ptr<RemoteRegion>> region =
        RemoteRegion::Create(message, fds, validity_, *parts_.mappings, options_.maps_files);
    if (region.ok()) {
      remote_[message.rkey] = std::move(region).value();
      return;
    }
    answer_failed_ = true;
    if (region.status().code() != EACCES) {
      LOG_WARNING("queue pair {}: {}", number_, region.status().ToString());
    }
  } else if (type == MessageType::kFaultDone && !sends_.empty() && sends_.front().progress.wait == Wait::kFault &&
             sends_.front().progress.page.value == message.page) {
    awaited_rkey_ = 0;
    answer_failed_ = message.ok == 0;
  }
}

inline RemoteRegion* SoftQueuePair::Reach(const SendWorkRequest& request, uint64_t length, Access access,
                                          Progressing& progress, Outcome* outcome) {
  RemoteRegion* region = FindRemote(request.rkey);
  if (region == nullptr) [[unlikely]] {
    *outcome = Resolve(request.rkey, progress);
    return nullptr;
  }
  if (!region->valid() || !region->Allows(access) || !region->Covers(request.remote_offset, length)) [[unlikely]] {
    *outcome = Done(progress, WcStatus::kRemAccessErr);
    return nullptr;
  }
  return region;
}

// Starts loading what request `index` will need from the peer's memory. Where it is not a READ of pages, or the region
// is not known yet, there is nothing to do.
void SoftQueuePair::PrefetchEntry(std::span<const SendWorkRequest> requests, size_t index) const {
  if (index < requests.size()) {
    if (const RemoteRegion* region = PagesOf(requests[index])) {
      region->PrefetchEntry(requests[index].remote_offset);
    }
  }
}

void SoftQueuePair::PrefetchFrame(std::span<const SendWorkRequest> requests, size_t index) const {
  if (index < requests.size()) {
    if (const RemoteRegion* region = PagesOf(requests[index])) {
      region->PrefetchFrame(requests[index].remote_offset, requests[index].local.length);
    }
  }
}

inline const RemoteRegion* SoftQueuePair::PagesOf(const SendWorkRequest& request) const {
  const RemoteRegion* region = remote_cache_[request.rkey.value % remote_cache_.size()];
  return region != nullptr && region->rkey() == request.rkey && region->has_pages() ? region : nullptr;
}

SoftQueuePair::Outcome SoftQueuePair::Read(const SendWorkRequest& request, Progressing& progress) {
  if (!local_keys_.Cover(request.local, /*write=*/true)) [[unlikely]] {
    return Done(progress, WcStatus::kLocProtErr);
  }
  Outcome outcome;
  RemoteRegion* region = Reach(request, request.local.length, Access::kRemoteRead, progress, &outcome);
  if (region == nullptr) [[unlikely]] {
    return outcome;
  }
  if (region->has_pages()) {
    return ReadPages(*region, request, progress);
  }
  RacyCopy(request.local.addr, region->At(request.remote_offset), request.local.length);
  return Done(progress, PeerServes() ? WcStatus::kSuccess : WcStatus::kRetryExcErr);
}

SoftQueuePair::Outcome SoftQueuePair::ReadPages(RemoteRegion& region, const SendWorkRequest& request,
                                                Progressing& progress) {
  auto* to = static_cast<std::byte*>(request.local.addr);
  while (progress.done < request.local.length) {
    const RegionOffset at{request.remote_offset + progress.done};
    const auto in_page = static_cast<uint32_t>(at.in_page());
    const auto part =
        static_cast<uint32_t>(std::min<uint64_t>(request.local.length - progress.done, kPageSize - in_page));
    const PageCopy copy = region.Copy(at.page(), in_page, to + progress.done, part);
    if (copy != PageCopy::kData) [[unlikely]] {
      if (copy == PageCopy::kCorrupt) {
        return Done(progress, WcStatus::kRemOpErr);
      }
      if (region.kind() == RegionKind::kOdp) {
        return AbsentPage(region, at.page(), copy, progress);
      }
      if (!region.CopyPattern(in_page, to + progress.done, part)) {
        return Done(progress, WcStatus::kRemOpErr);
      }
    }
    progress.done += part;
    if (progress.wait != Wait::kNone) [[unlikely]] {
      progress.wait = Wait::kNone;
      awaited_rkey_ = 0;  // an answer that is still on its way is of no interest any more
    }
  }
  return Done(progress, PeerServes() ? WcStatus::kSuccess : WcStatus::kRetryExcErr);
}

// Every instruction counts: successive calls overlap in the processor as far as they fit into its window together.
bool SoftQueuePair::ReadNow(std::byte* to, uint32_t length, uint64_t remote_offset, RKey rkey) {
  // What is posted comes first, and what is lost is found out by posting.
  RemoteRegion* const region = remote_cache_[rkey.value % remote_cache_.size()];
  if (state_ != State::kReady || !sends_.empty() || port_->broken() || region == nullptr || region->rkey() != rkey)
      [[unlikely]] {
    return false;
  }
  return region->CopyNow(remote_offset, to, length) && PeerServes();
}

SoftQueuePair::Outcome SoftQueuePair::AbsentPage(RemoteRegion& region, PageIndex page, PageCopy copy,
                                                 Progressing& progress) {
  const bool waiting = progress.wait == Wait::kFault || progress.wait == Wait::kUnstable;
  if (waiting && Expired(progress)) {
    return Done(progress, WcStatus::kRemOpErr);
  }
  if (progress.wait == Wait::kFault) {
    if (awaited_rkey_ != 0) {
      return Outcome::kBlocked;
    }
    if (answer_failed_) {
      return Done(progress, WcStatus::kRemOpErr);
    }
  }
  const TimePoint deadline = waiting ? progress.deadline : std::chrono::steady_clock::now() + kAnswerTimeout;
  if (copy == PageCopy::kUnstable) {
    progress.wait = Wait::kUnstable;
  } else {
    SocketMessage request;
    request.type = static_cast<uint32_t>(MessageType::kFault);
    request.rkey = region.rkey().value;
    request.page = page.value;
    if (!port_->SendRequest(request)) {
      return Done(progress, WcStatus::kRetryExcErr);
    }
    progress.wait = Wait::kFault;
    progress.page = page;
    awaited_rkey_ = region.rkey().value;
    answer_failed_ = false;
  }
  progress.deadline = deadline;
  return Outcome::kBlocked;
}

SoftQueuePair::Outcome SoftQueuePair::Write(const SendWorkRequest& request, Progressing& progress) {
  if (!local_keys_.Cover(request.local, /*write=*/false)) {
    return Done(progress, WcStatus::kLocProtErr);
  }
  Outcome outcome;
  RemoteRegion* region = Reach(request, request.local.length, Access::kRemoteWrite, progress, &outcome);
  if (region == nullptr) {
    return outcome;
  }
  RacyCopy(region->At(request.remote_offset), request.local.addr, request.local.length);
  return Done(progress, WcStatus::kSuccess);
}

SoftQueuePair::Outcome SoftQueuePair::Atomic(const SendWorkRequest& request, Progressing& progress) {
  if (request.local.length != sizeof(uint64_t)) {
    return Done(progress, WcStatus::kLocLenErr);
  }
  if (!local_keys_.Cover(request.local, /*write=*/true)) {
    return Done(progress, WcStatus::kLocProtErr);
  }
  Outcome outcome;
  RemoteRegion* region = Reach(request, sizeof(uint64_t), Access::kRemoteAtomic, progress, &outcome);
  if (region == nullptr) {
    return outcome;
  }
  std::byte* at = region->At(request.remote_offset);
  if (reinterpret_cast<uintptr_t>(at) % sizeof(uint64_t) != 0) {
    return Done(progress, WcStatus::kRemInvReqErr);
  }
  std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(at));
  uint64_t before = request.compare;
  if (request.opcode == Opcode::kFetchAdd) {
    before = word.fetch_add(request.swap_or_add, std::memory_order_seq_cst);
  } else {
    word.compare_exchange_strong(before, request.swap_or_add, std::memory_order_seq_cst);
  }
  RacyCopy(request.local.addr, &before, sizeof(before));
  return Done(progress, WcStatus::kSuccess);
}

Result<std::span<const std::byte>> SoftQueuePair::SharedView(RKey rkey) {
  const TimePoint deadline = std::chrono::steady_clock::now() + kAnswerTimeout;
  if (awaited_rkey_ != 0) {
    return Status::Error(EBUSY, "map remote memory while a send waits for the peer");
  }
  NoticeLoss();
  Progressing progress;
  while (FindRemote(rkey) == nullptr) {
    if (state_ != State::kReady) {
      return Status::Error(ENOTCONN, "map remote memory over a lost connection");
    }
    if (Resolve(rkey, progress) == Outcome::kDone) {
      return Status::Errno(answer_failed_ ? EACCES : ENOTCONN, "map remote memory");
    }
    pollfd waiting{port_->request_fd(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0 || poll(&waiting, 1, static_cast<int>(left.count())) == 0) {
      awaited_rkey_ = 0;
      return Status::Error(ETIMEDOUT, "map remote memory: the peer does not answer");
    }
    ReadSocket();
  }
  const RemoteRegion* region = FindRemote(rkey);
  if (!region->valid() || !region->Allows(Access::kRemoteRead)) {
    return Status::Error(EACCES, "map remote memory: the region is gone, or not for remote reads");
  }
  if (region->has_pages()) {
    return Status::Error(ENOTSUP, "map a region that has a page table");
  }
  if (std::find(shown_.begin(), shown_.end(), rkey) == shown_.end()) {
    shown_.push_back(rkey);
  }
  return std::span<const std::byte>(region->At(0), region->size());
}

}  // namespace termfs::driver::softnic

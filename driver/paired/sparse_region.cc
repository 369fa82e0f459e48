// SPDX-License-Identifier: Apache-2.0
#include "driver/paired/sparse_region.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>

#include "base/log.h"
#include "base/start_thread.h"

namespace termfs::driver::paired {
namespace {

constexpr uint64_t kWordsInTurn = 1024;          // of 64 pages each
constexpr uint32_t kPagesInTurn = 1024;          // that are shown; each run of them costs a system call
constexpr std::chrono::milliseconds kPause{50};  // between turns; a fifth of it as long as there is much to show
constexpr std::chrono::seconds kLongPause{1};    // until there are peers

}  // namespace

Result<std::unique_ptr<TermRegion>> SparseRegion::Create(
    std::unique_ptr<TermRegion> local, DeviceDomain& device, std::shared_ptr<KeyMap> keys,
    std::shared_ptr<const std::atomic<bool>> peers,
    const std::function<void(const std::shared_ptr<DeviceTermRegion>&)>& registered) {
  std::unique_ptr<SparseRegion> region(new SparseRegion(std::move(local), std::move(keys), std::move(peers)));
  RETURN_IF_ERROR(region->Register(device));
  registered(region->term_);
  ASSIGN_OR_RETURN(region->thread_, StartThread([raw = region.get()] { raw->Run(); }));
  return std::unique_ptr<TermRegion>(std::move(region));
}

Status SparseRegion::Register(DeviceDomain& device) {
  const TermRegionMemory memory = local().memory();
  const uint64_t pages = local().pages();
  ASSIGN_OR_RETURN(const UniqueFd frames, local().FramesFd());
  bytes_ = pages << kPageBits;
  void* const shown = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, frames.get(), 0);
  if (shown == MAP_FAILED) {
    return ErrnoStatus("map the frames for the device");
  }
  shown_ = static_cast<std::byte*>(shown);
  // In case the process locks all of its memory: what is locked cannot be taken out of a mapping.
  munlock(shown_, bytes_);
  madvise(shown_, bytes_, MADV_NOHUGEPAGE);
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceTermRegion> term,
                   device.RegisterTerm({.shown = shown_, .written = memory.frames.data(), .pages = pages}));
  term_ = std::move(term);
  ASSIGN_OR_RETURN(bitmap_, device.RegisterForeign(memory.bitmap.data(), memory.bitmap.size(), Access::kRemoteRead));
  readable_ = std::make_unique<std::atomic<uint64_t>[]>(pages / 64 + 1);
  keys_->Add(frames_lkey(), memory.frames.data(), bytes_, term_->lkey());
  return local().SetPattern(term_->pattern());
}

SparseRegion::~SparseRegion() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  keys_->Remove(frames_lkey(), local().memory().frames.data());
  bitmap_.reset();
  term_.reset();
  if (shown_ != nullptr) {
    munmap(shown_, bytes_);
  }
}

RegionKeys SparseRegion::keys(bool network) const {
  if (!network) {
    return local().keys(false);
  }
  return {.way = ReadWay::kTranslated, .region = term_->rkey(), .bitmap = bitmap_->rkey()};
}

void SparseRegion::Publish(PageIndex page, FrameIndex frame) {
  MutexLock lock(LockOf(page));
  local().Publish(page, frame);
  readable_[page.value / 64].fetch_or(uint64_t{1} << (page.value % 64), std::memory_order_relaxed);
  if (peers_->load(std::memory_order_relaxed)) {
    if (const Status shown = term_->Show(page, 1); !shown.ok()) {
      LOG_DEBUG("page {}: {}", page.value,
                shown.ToString());  // it will be tried again, and is served by RPC until then
    }
  }
}

void SparseRegion::TakeFromView(PageIndex page) {
  readable_[page.value / 64].fetch_and(~(uint64_t{1} << (page.value % 64)), std::memory_order_relaxed);
  if (Shown(page)) {
    term_->Hide(page);
  }
}

void SparseRegion::BeginWrite(PageIndex page) {
  MutexLock lock(LockOf(page));
  local().BeginWrite(page);
  TakeFromView(page);
}

void SparseRegion::Hide(PageIndex page) {
  MutexLock lock(LockOf(page));
  local().Hide(page);
  TakeFromView(page);
}

Status SparseRegion::SetPattern(const Pattern& /*pattern*/) {
  return Status::Error(EOPNOTSUPP, "change the pattern: a TeRM memory region keeps the one its driver has made up");
}

Status SparseRegion::CheckRoom(uint64_t pages) const {
  return pages <= term_->pages()
             ? Status::Ok()
             : Status::Error(ENOTSUP,
                             "a region that is served with an RDMA device that has TeRM memory regions grows "
                             "only while it is not served, or served without the device");
}

Status SparseRegion::Resize(uint64_t pages) {
  RETURN_IF_ERROR(CheckRoom(pages));
  return local().Resize(pages);
}

Status SparseRegion::MakeRoom(uint64_t pages) {
  RETURN_IF_ERROR(CheckRoom(pages));
  return local().MakeRoom(pages);
}

// ---------------------------------------------------------------------------------------------------------------
// Showing again.

uint32_t SparseRegion::ShowReadable(uint64_t word) {
  const auto hidden = [&] { return readable_[word].load(std::memory_order_relaxed) & ~term_->ShownOf64(word); };
  if (hidden() == 0) {
    return 0;
  }
  uint32_t shown = 0;
  MutexLock lock(LockOf({word * 64}));
  for (uint64_t left = hidden(); left != 0;) {
    const int first = std::countr_zero(left);
    const int count = std::countr_one(left >> first);
    if (const Status status = term_->Show({word * 64 + static_cast<uint64_t>(first)}, static_cast<uint32_t>(count));
        !status.ok()) {
      LOG_DEBUG("pages {} and on: {}", word * 64 + static_cast<uint64_t>(first), status.ToString());
    }
    shown += static_cast<uint32_t>(count);
    left &= first + count == 64 ? 0 : ~uint64_t{0} << (first + count);
  }
  return shown;
}

uint32_t SparseRegion::ShowNextPart() {
  const uint64_t words = (term_->pages() + 63) / 64;
  uint32_t shown = 0;
  for (uint64_t i = 0; i < std::min(words, kWordsInTurn) && shown < kPagesInTurn; i++) {
    shown += ShowReadable(next_word_);
    next_word_ = next_word_ + 1 < words ? next_word_ + 1 : 0;
  }
  return shown;
}

// Whether it is to end.
bool SparseRegion::Pause(std::chrono::milliseconds longest) {
  MutexLock lock(mutex_);
  if (!stopping_) {
    changed_.WaitFor(mutex_, longest);
  }
  return stopping_;
}

void SparseRegion::Run() {
  pthread_setname_np(pthread_self(), "show-pages");
  std::chrono::milliseconds pause = kLongPause;
  while (!Pause(pause)) {
    if (peers_->load(std::memory_order_relaxed)) {
      pause = ShowNextPart() >= kPagesInTurn ? kPause / 5 : kPause;
    }
  }
}

}  // namespace termfs::driver::paired

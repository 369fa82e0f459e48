// SPDX-License-Identifier: Apache-2.0
#include "fs/server/capacity.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/page.h"
#include "base/size.h"
#include "base/start_thread.h"
#include "fs/server/volume_directory.h"
#include "tlib/server/region_label.h"

namespace termfs::fs::server {

namespace {

constexpr std::chrono::seconds kShrinkPatience{60};  // with a region of which nothing more can be moved
constexpr std::chrono::milliseconds kPause{100};
constexpr std::chrono::seconds kGrace{2};  // for what was removed just now to be free
constexpr uint64_t kStatBlock = 512;       // bytes

}  // namespace

Capacity::Progress Capacity::progress() const {
  const uint64_t target = target_.load();  // first: when it is none, the pages are those of the end
  const uint64_t now = pages();
  Progress progress{.pages = now,
                    .target_pages = target != 0 ? target : now,
                    .pages_to_move = 0,
                    .changing = target != 0,
                    .failure = {}};
  if (progress.target_pages < progress.pages) {
    progress.pages_to_move = p_.names.TakenBeyond();
  }
  MutexLock lock(mutex_);
  progress.failure = failure_;
  return progress;
}

Status Capacity::Set(uint64_t pages) {
  const uint64_t before = this->pages();
  const uint64_t target = target_.load();
  if (target != 0 && pages == before && pages != target) {
    cancelled_.store(true);
    return Status::Ok();
  }
  if (target != 0 && pages != target) {
    return Status::Error(EBUSY, "the capacity is on its way to " + ReadableSize(target << kPageBits) +
                                    "; capacity=" + std::to_string(before << kPageBits) + " (" +
                                    ReadableSize(before << kPageBits) + ") calls that off");
  }
  if (target != 0 || (pages == before && !behind_.load())) {
    return Status::Ok();
  }
  {
    MutexLock lock(mutex_);
    failure_.clear();
  }
  if (pages < before) {
    return BeginShrink(pages);
  }
  target_.store(pages);
  Status done = pages == before ? Follow(pages) : Grow(pages);
  if (done.ok()) {
    LOG_INFO("the capacity is {} now", ReadableSize(pages << kPageBits));
  } else {  // whoever asked may have given up waiting for the answer, and looks here
    MutexLock lock(mutex_);
    failure_ = done.ToString();
  }
  target_.store(0);
  return done;
}

void Capacity::Stop() {
  cancelled_.store(true);
  if (thread_.joinable()) {
    thread_.join();
  }
}

// First everything that serves pages; then the settings; then the superblock, which decides, and from which moment on
// the pages are given to files.
Status Capacity::Grow(uint64_t pages) {
  const uint64_t before = this->pages();
  RETURN_IF_ERROR(CheckDisk(pages));
  RETURN_IF_ERROR(p_.server.Grow(pages));
  Status noted = p_.note(pages);
  if (noted.ok()) {
    noted = p_.names.Grow(pages);
  }
  if (!noted.ok()) {
    Status undone = p_.note(before);
    if (undone.ok()) {  // else they say what the label has to say; the next start puts both right
      undone = p_.server.Shrink(before);
    }
    if (!undone.ok()) {
      behind_.store(true);
      LOG_WARNING("after a growth that failed: {}", undone.ToString());
    }
    return noted;
  }
  behind_.store(false);
  return p_.names.Sync();
}

// A file of the region shares its disk with the metadata, mostly. What counts is which blocks it has: it may have
// holes, as a copy has, and be longer than the capacity says, when it was not cut.
Status Capacity::CheckDisk(uint64_t pages) const {
  struct stat device {};
  struct stat meta {};
  struct statvfs space {};
  if (stat(p_.device.c_str(), &device) != 0 || stat(p_.meta.c_str(), &meta) != 0 ||
      statvfs(p_.device.c_str(), &space) != 0) {
    return ErrnoStatus("examine " + p_.device);
  }
  if (!S_ISREG(device.st_mode)) {
    return Status::Ok();
  }
  const unsigned __int128 free = static_cast<unsigned __int128>(space.f_bavail) * space.f_frsize;
  const uint64_t bytes = tlib::server::kRegionStart + (pages << kPageBits);
  const uint64_t missing = bytes - std::min(bytes, static_cast<uint64_t>(device.st_blocks) * kStatBlock);
  const uint64_t needed = missing + (device.st_dev == meta.st_dev ? kMetadataReserve : 0);
  if (free < needed) {
    return Status::Error(ENOSPC, p_.device + ": " + ReadableSize(needed) + " more are needed on its disk, which has " +
                                     ReadableSize(static_cast<uint64_t>(free)) + " free");
  }
  return Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------
// Smaller.

Status Capacity::BeginShrink(uint64_t pages) {
  RETURN_IF_ERROR(p_.server.CheckShrink());
  const auto deadline = std::chrono::steady_clock::now() + kGrace;
  Status confined = p_.confine(pages);
  while (confined.code() == ENOSPC && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kPause);
    confined = p_.confine(pages);
  }
  RETURN_IF_ERROR(std::move(confined).WithContext("the capacity cannot be " + ReadableSize(pages << kPageBits)));
  if (thread_.joinable()) {
    thread_.join();  // of an earlier one; it has ended
  }
  cancelled_.store(false);
  target_.store(pages);
  Result<std::thread> started = StartThread([this, pages, before = this->pages()] {
    const Status done = Shrink(pages);
    if (done.ok()) {
      LOG_INFO("the capacity is {} now", ReadableSize(pages << kPageBits));
    } else {
      LOG_WARNING("changing the capacity to {}: {}", ReadableSize(pages << kPageBits), done.ToDebugString());
      MutexLock lock(mutex_);
      failure_ = done.ToString();
    }
    if (this->pages() == before) {
      p_.names.EndConfinement();
    }
    target_.store(0);
  });
  if (!started.ok()) {
    p_.names.EndConfinement();
    target_.store(0);
    return std::move(started).status();
  }
  thread_ = std::move(started).value();
  return Status::Ok();
}

Status Capacity::Shrink(uint64_t pages) {
  const auto cancelled = [this] { return cancelled_.load(); };
  uint64_t least = p_.names.TakenBeyond();
  auto deadline = std::chrono::steady_clock::now() + kShrinkPatience;
  while (true) {
    ASSIGN_OR_RETURN(const Evacuation::Pass pass, p_.evacuate(cancelled));
    Status obstacle = pass.obstacle;
    if (pass.found == 0) {
      obstacle = p_.alone([&] { return Cut(pages); });
      if (obstacle.code() != EBUSY) {
        return obstacle;  // or none
      }
    }
    const auto now = std::chrono::steady_clock::now();
    const uint64_t left = p_.names.TakenBeyond();
    if (pass.moved > 0 || left < least) {
      deadline = now + kShrinkPatience;
    }
    least = std::min(least, left);
    if (now >= deadline) {
      return obstacle.ok() ? Status::Error(EBUSY, ReadableSize(left << kPageBits) + " cannot be moved") : obstacle;
    }
    if (cancelled()) {
      return Status::Error(ECANCELED, "the change of the capacity was called off");
    }
    if (pass.moved == 0) {
      std::this_thread::sleep_for(kPause);
    }
  }
}

// The superblock decides, so it comes first; what a crash leaves of the rest is cut at the next start.
Status Capacity::Cut(uint64_t pages) {
  if (cancelled_.load()) {
    return Status::Error(ECANCELED, "the change of the capacity was called off");
  }
  RETURN_IF_ERROR(p_.names.Shrink(pages));
  behind_.store(true);
  return Follow(pages);
}

// What the superblock does not decide becomes as large as it says.
Status Capacity::Follow(uint64_t pages) {
  Status followed = p_.names.Sync();
  if (followed.ok()) {
    followed = p_.note(pages);
  }
  if (followed.ok()) {
    followed = p_.server.Shrink(pages);
  }
  if (followed.ok()) {
    behind_.store(false);
  }
  return std::move(followed).WithContext(
      "the capacity is " + ReadableSize(pages << kPageBits) +
      ", but the SSD and the DRAM tier follow at the next start only, or when the same is set again");
}

}  // namespace termfs::fs::server

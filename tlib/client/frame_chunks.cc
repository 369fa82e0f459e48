// SPDX-License-Identifier: Apache-2.0
#include "tlib/client/frame_chunks.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace termfs::tlib::client {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAskAgain{20};
constexpr std::chrono::microseconds kLook{100};

}  // namespace

std::shared_ptr<FrameChunks::Reader> FrameChunks::AddReader() {
  std::shared_ptr<Reader> reader(new Reader(*this));
  MutexLock lock(mutex_);
  readers_.push_back(reader);
  return reader;
}

void FrameChunks::RemoveReader(const std::shared_ptr<Reader>& reader) {
  MutexLock lock(mutex_);
  std::erase(readers_, reader);
}

std::shared_ptr<const FrameChunks::Keys> FrameChunks::Get(uint64_t* version) const {
  MutexLock lock(mutex_);
  *version = version_.load(std::memory_order_relaxed);
  return keys_;
}

void FrameChunks::Learn(Keys keys) {
  MutexLock lock(mutex_);
  if (keys.epoch < keys_->epoch) {
    return;
  }
  keys_ = std::make_shared<const Keys>(std::move(keys));
  version_.fetch_add(1, std::memory_order_seq_cst);
}

Status FrameChunks::Revoke(uint64_t epoch, steady_clock::time_point deadline) {
  uint64_t version = 0;
  {
    MutexLock lock(mutex_);
    if (epoch > keys_->epoch) {
      keys_ = std::make_shared<const Keys>(Keys{.chunk_frames = keys_->chunk_frames, .epoch = epoch, .chunks = {}});
      version_.fetch_add(1, std::memory_order_seq_cst);
    }
    version = version_.load(std::memory_order_relaxed);
  }
  ask_again_at_.store(0, std::memory_order_relaxed);
  while (!AllBeyond(version)) {
    if (steady_clock::now() >= deadline) {
      return Status::Error(ETIMEDOUT, "READs of frames that the server takes back do not complete");
    }
    std::this_thread::sleep_for(kLook);  // as long as a READ takes
  }
  return Status::Ok();
}

bool FrameChunks::AllBeyond(uint64_t version) const {
  MutexLock lock(mutex_);
  return std::all_of(readers_.begin(), readers_.end(), [version](const auto& reader) {
    const uint64_t reading = reader->reading_.load(std::memory_order_seq_cst);
    return reading == 0 || reading >= version;
  });
}

bool FrameChunks::BeginAsking() {
  const int64_t now = steady_clock::now().time_since_epoch().count();
  if (now < ask_again_at_.load(std::memory_order_relaxed) || asking_.exchange(true, std::memory_order_acquire)) {
    return false;
  }
  ask_again_at_.store(now + std::chrono::nanoseconds(kAskAgain).count(), std::memory_order_relaxed);
  return true;
}

}  // namespace termfs::tlib::client

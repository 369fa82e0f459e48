// SPDX-License-Identifier: Apache-2.0
#include "fs/client/idle_opens.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace termfs::fs::client {

using std::chrono::steady_clock;

namespace {
constexpr std::chrono::seconds kPatience{1};  // usually a tenth of a millisecond
}

IdleOpens::IdleOpens(Close close) : close_(std::move(close)), thread_([this] { Run(); }) {}

void IdleOpens::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
    closed_.NotifyAll();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

bool IdleOpens::Keep(Idle idle) {
  const uint64_t ino = idle.ino;
  MutexLock lock(mutex_);
  const TimePoint until = idle.since.when + kLongest;
  if (by_inode_.contains(ino) || until <= steady_clock::now()) {
    return false;
  }
  if (order_.size() >= kMost) {
    ended_.push_back(Remove(by_inode_.find(order_.front().idle.ino)));
    wake_.NotifyAll();
  }
  auto place = order_.end();
  while (place != order_.begin() && std::prev(place)->until > until) {
    --place;
  }
  by_inode_[ino] = order_.insert(place, {.idle = std::move(idle), .until = until});
  if (!any_.exchange(true)) {
    wake_.NotifyAll();  // which sleeps while there are none
  }
  return true;
}

IdleOpens::Idle IdleOpens::Remove(std::unordered_map<uint64_t, Order::iterator>::iterator kept) {
  Idle idle = std::move(kept->second->idle);
  order_.erase(kept->second);
  by_inode_.erase(kept);
  any_.store(!order_.empty());
  return idle;
}

std::optional<IdleOpens::Idle> IdleOpens::Take(uint64_t ino) {
  if (!any_.load()) {
    return std::nullopt;
  }
  MutexLock lock(mutex_);
  const auto kept = by_inode_.find(ino);
  return kept == by_inode_.end() ? std::nullopt : std::optional(Remove(kept));
}

std::vector<IdleOpens::Idle> IdleOpens::TakeAll() {
  MutexLock lock(mutex_);
  std::vector<Idle> all = std::exchange(ended_, {});
  while (!order_.empty()) {
    all.push_back(Remove(by_inode_.find(order_.front().idle.ino)));
  }
  return all;
}

void IdleOpens::End(uint64_t ino) {
  if (!any_.load()) {
    return;
  }
  MutexLock lock(mutex_);
  if (const auto kept = by_inode_.find(ino); kept != by_inode_.end()) {
    ended_.push_back(Remove(kept));
    wake_.NotifyAll();
  }
}

bool IdleOpens::IsClosing(uint64_t ino) {
  const auto is_it = [ino](const Idle& idle) { return idle.ino == ino; };
  return std::any_of(ended_.begin(), ended_.end(), is_it) || std::any_of(closing_.begin(), closing_.end(), is_it);
}

void IdleOpens::AwaitClosed(uint64_t ino) {
  const auto deadline = steady_clock::now() + kPatience;
  MutexLock lock(mutex_);
  while (IsClosing(ino) && !stopping_ && closed_.WaitUntil(mutex_, deadline)) {
  }
}

void IdleOpens::Run() {
  mutex_.Lock();
  while (!stopping_) {
    const auto now = steady_clock::now();
    while (!order_.empty() && order_.front().until <= now) {
      ended_.push_back(Remove(by_inode_.find(order_.front().idle.ino)));
    }
    closing_ = std::exchange(ended_, {});
    if (closing_.empty()) {
      const auto wait = order_.empty() ? std::chrono::milliseconds(kLongest)
                                       : std::chrono::ceil<std::chrono::milliseconds>(order_.front().until - now);
      wake_.WaitFor(mutex_, wait);
      continue;
    }
    const std::vector<Idle> now_closing = closing_;
    mutex_.Unlock();
    for (const Idle& idle : now_closing) {
      close_(idle);
    }
    mutex_.Lock();
    closing_.clear();
    closed_.NotifyAll();
  }
  mutex_.Unlock();
}

}  // namespace termfs::fs::client

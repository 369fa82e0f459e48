// SPDX-License-Identifier: Apache-2.0
#include "fs/client/idle_opens.h"

#include <utility>

namespace termfs::fs::client {

using std::chrono::steady_clock;

IdleOpens::IdleOpens(Close close) : close_(std::move(close)), thread_([this] { Run(); }) {}

void IdleOpens::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

bool IdleOpens::Keep(Idle idle) {
  const uint64_t ino = idle.ino;
  MutexLock lock(mutex_);
  if (by_inode_.contains(ino)) {
    return false;
  }
  if (order_.size() >= kMost) {
    ended_.push_back(Remove(by_inode_.find(order_.front().idle.ino)));
    wake_.NotifyAll();
  }
  order_.push_back({.idle = std::move(idle), .until = steady_clock::now() + kLongest});
  by_inode_[ino] = std::prev(order_.end());
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

void IdleOpens::Run() {
  mutex_.Lock();
  while (!stopping_) {
    const auto now = steady_clock::now();
    while (!order_.empty() && order_.front().until <= now) {
      ended_.push_back(Remove(by_inode_.find(order_.front().idle.ino)));
    }
    const std::vector<Idle> ended = std::exchange(ended_, {});
    if (ended.empty()) {
      const auto wait = order_.empty() ? std::chrono::milliseconds(kLongest)
                                       : std::chrono::ceil<std::chrono::milliseconds>(order_.front().until - now);
      wake_.WaitFor(mutex_, wait);
      continue;
    }
    mutex_.Unlock();
    for (const Idle& idle : ended) {
      close_(idle);
    }
    mutex_.Lock();
  }
  mutex_.Unlock();
}

}  // namespace termfs::fs::client

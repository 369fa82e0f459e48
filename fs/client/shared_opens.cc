// SPDX-License-Identifier: Apache-2.0
#include "fs/client/shared_opens.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace termfs::fs::client {

using std::chrono::steady_clock;

namespace {
constexpr std::chrono::seconds kPatience{1};  // usually a tenth of a millisecond
}

SharedOpens::SharedOpens(Close close) : close_(std::move(close)), thread_([this] { Run(); }) {}

void SharedOpens::Stop() {
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

void SharedOpens::Share(const Open& open) {
  MutexLock lock(mutex_);
  if (const Open idle = TakeListed(open->ino)) {
    EndSoon(idle);
  }
  open->users_++;
  open->listed_ = true;
  open->place_ = order_.insert(order_.end(), open);
  listed_[open->ino] = open;
  any_.store(true);
  if (EndOf(*open) < looks_at_) {
    wake_.NotifyAll();
  }
}

SharedOpens::Open SharedOpens::Join(uint64_t ino, int flags) {
  if (!any_.load()) {
    return nullptr;
  }
  MutexLock lock(mutex_);
  const auto found = listed_.find(ino);
  if (found == listed_.end() || found->second->flags != flags || EndOf(*found->second) <= steady_clock::now()) {
    return nullptr;
  }
  idle_ -= found->second->users_++ == 0 ? 1 : 0;
  return found->second;
}

bool SharedOpens::Leave(const Open& open, bool keep) {
  MutexLock lock(mutex_);
  const bool full = open->users_ == 1 && idle_ >= kMostIdle;
  if (!keep || full || stopping_ || EndOf(*open) <= steady_clock::now()) {
    Unlist(open);
  }
  if (--open->users_ > 0) {
    return true;
  }
  idle_ += open->listed_ ? 1 : 0;
  return open->listed_;
}

bool SharedOpens::Unlist(const Open& open) {
  if (!open->listed_) {
    return false;
  }
  open->listed_ = false;
  order_.erase(open->place_);
  listed_.erase(open->ino);
  any_.store(!listed_.empty());
  if (open->users_ > 0) {
    return false;
  }
  idle_--;
  return true;
}

SharedOpens::Open SharedOpens::TakeListed(uint64_t ino) {
  const auto found = listed_.find(ino);
  const Open open = found != listed_.end() ? found->second : nullptr;
  return open != nullptr && Unlist(open) ? open : nullptr;
}

void SharedOpens::EndSoon(const Open& open) {
  ended_.push_back(open);
  wake_.NotifyAll();
}

SharedOpens::Open SharedOpens::Take(uint64_t ino) {
  if (!any_.load()) {
    return nullptr;
  }
  MutexLock lock(mutex_);
  return TakeListed(ino);
}

std::vector<SharedOpens::Open> SharedOpens::TakeAll() {
  MutexLock lock(mutex_);
  std::vector<Open> all = std::exchange(ended_, {});
  while (!listed_.empty()) {
    if (Open idle = TakeListed(listed_.begin()->first)) {
      all.push_back(std::move(idle));
    }
  }
  return all;
}

void SharedOpens::End(uint64_t ino) {
  if (!any_.load()) {
    return;
  }
  MutexLock lock(mutex_);
  if (const Open idle = TakeListed(ino)) {
    EndSoon(idle);
  }
}

bool SharedOpens::IsClosing(uint64_t ino) {
  const auto is_it = [ino](const Open& open) { return open->ino == ino; };
  return std::any_of(ended_.begin(), ended_.end(), is_it) || std::any_of(closing_.begin(), closing_.end(), is_it);
}

void SharedOpens::AwaitClosed(uint64_t ino) {
  const auto deadline = steady_clock::now() + kPatience;
  MutexLock lock(mutex_);
  while (IsClosing(ino) && !stopping_ && closed_.WaitUntil(mutex_, deadline)) {
  }
}

std::vector<SharedOpens::Open> SharedOpens::TakeOutdated() {
  std::vector<Open> outdated;
  const TimePoint now = steady_clock::now();
  while (!order_.empty() && EndOf(*order_.front()) <= now) {
    if (Open idle = TakeListed(order_.front()->ino)) {
      outdated.push_back(std::move(idle));
    }
  }
  looks_at_ = order_.empty() ? now + kLongest : EndOf(*order_.front());
  return outdated;
}

void SharedOpens::Run() {
  mutex_.Lock();
  while (!stopping_) {
    const std::vector<Open> outdated = TakeOutdated();
    closing_ = std::exchange(ended_, {});
    if (closing_.empty() && outdated.empty()) {
      wake_.WaitUntil(mutex_, looks_at_);
      continue;
    }
    const std::vector<Open> ended = closing_;
    mutex_.Unlock();
    for (const Open& open : ended) {
      close_(*open, true);
    }
    for (const Open& open : outdated) {
      close_(*open, false);
    }
    mutex_.Lock();
    closing_.clear();
    closed_.NotifyAll();
  }
  mutex_.Unlock();
}

}  // namespace termfs::fs::client

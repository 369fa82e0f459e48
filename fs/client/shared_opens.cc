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
  Insert(open);
  listed_[open->ino] = open;
  any_.store(true);
  if (EndOf(*open) < looks_at_) {
    wake_.NotifyAll();
  }
}

void SharedOpens::Insert(const Open& open) {
  auto place = order_.end();
  while (place != order_.begin() && EndOf(**std::prev(place)) > EndOf(*open)) {
    --place;
  }
  open->place_ = order_.insert(place, open);
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
  ended_.push_front(open);
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
  std::vector<Open> all(ended_.begin(), ended_.end());
  ended_.clear();
  closed_.NotifyAll();
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

void SharedOpens::AwaitClosed(const std::vector<uint64_t>& inodes, TimePoint since) {
  const auto is_one = [&](const Open& open) {
    return open != nullptr && std::find(inodes.begin(), inodes.end(), open->ino) != inodes.end();
  };
  MutexLock lock(mutex_);
  std::stable_partition(ended_.begin(), ended_.end(), is_one);  // these first
  const auto is_closing = [&]() REQUIRES(mutex_) {
    return is_one(closing_) || std::any_of(ended_.begin(), ended_.end(), is_one);
  };
  while (is_closing() && !stopping_ && closed_.WaitUntil(mutex_, since + kPatience)) {
  }
}

void SharedOpens::EndOutdated() {
  const TimePoint now = steady_clock::now();
  while (!order_.empty() && EndOf(*order_.front()) <= now) {
    if (const Open idle = TakeListed(order_.front()->ino)) {
      ended_.push_back(idle);
    }
  }
  looks_at_ = order_.empty() ? now + kLongest : EndOf(*order_.front());
}

void SharedOpens::Run() {
  mutex_.Lock();
  while (!stopping_) {
    EndOutdated();
    if (ended_.empty()) {
      wake_.WaitUntil(mutex_, looks_at_);
      continue;
    }
    const Open open = ended_.front();
    ended_.pop_front();
    closing_ = open;
    mutex_.Unlock();
    close_(*open);
    mutex_.Lock();
    closing_ = nullptr;
    closed_.NotifyAll();
  }
  mutex_.Unlock();
}

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
#include "fs/client/first_writes.h"

#include <utility>

#include "base/log.h"

namespace termfs::fs::client {

uint64_t FirstWrites::BeginMaking() const {
  MutexLock lock(mutex_);
  return asked_unknown_;
}

void FirstWrites::Made(uint64_t ino, uint64_t begun, uint64_t generation) {
  MutexLock lock(mutex_);
  if (asked_unknown_ == begun) {  // else it may have been about this one
    allowed_[ino] = generation;
    Count();
  }
}

bool FirstWrites::MayPost(uint64_t ino, uint64_t generation) {
  if (!any()) {
    return false;
  }
  MutexLock lock(mutex_);
  const auto allowed = allowed_.find(ino);
  return allowed != allowed_.end() && allowed->second == generation;
}

bool FirstWrites::Take(uint64_t ino, uint64_t generation, tlib::RequestMark mark, std::span<const std::byte> bytes,
                       std::shared_ptr<InodeCache> cache) {
  Posted posted{
      .generation = generation, .mark = mark, .bytes = {bytes.begin(), bytes.end()}, .cache = std::move(cache)};
  MutexLock lock(mutex_);
  const auto allowed = allowed_.find(ino);
  if (allowed == allowed_.end() || allowed->second != generation) {
    return false;
  }
  allowed_.erase(allowed);
  posted_[ino] = std::move(posted);
  Count();
  return true;
}

FirstWrites::PostedWrites::iterator FirstWrites::Find(uint64_t ino, uint64_t sequence) {
  const auto write = posted_.find(ino);
  return write != posted_.end() && write->second.mark.sequence == sequence ? write : posted_.end();
}

bool FirstWrites::Withdraw(uint64_t ino, uint64_t sequence) {
  MutexLock lock(mutex_);
  const auto write = Find(ino, sequence);
  if (write == posted_.end() || write->second.resending) {
    return false;
  }
  allowed_[ino] = write->second.generation;  // what the server was told of it meanwhile is taken back by Forgo
  Erase(write);
  return true;
}

void FirstWrites::Answered(uint64_t ino, uint64_t sequence, const Status& status) {
  if (status.code() == ENOTCONN) {
    return;  // it is sent again
  }
  MutexLock lock(mutex_);
  if (const auto write = Find(ino, sequence); write != posted_.end()) {
    status.ok() ? Erase(write) : Lose(write, status);
  }
}

FirstWrite FirstWrites::Forgo(uint64_t ino) {
  if (!any()) {
    return FirstWrite::kUnsaid;
  }
  MutexLock lock(mutex_);
  if (Disallow(ino)) {
    return FirstWrite::kForgone;
  }
  return posted_.contains(ino) ? FirstWrite::kPosted : FirstWrite::kUnsaid;
}

bool FirstWrites::Asked(uint64_t ino) {
  MutexLock lock(mutex_);
  if (Disallow(ino)) {
    return false;
  }
  if (posted_.contains(ino)) {
    return true;
  }
  ++asked_unknown_;
  return false;
}

void FirstWrites::Failed(uint64_t ino) {
  MutexLock lock(mutex_);
  if (const auto write = posted_.find(ino); write != posted_.end()) {
    Lose(write, Status::Error(EIO, "the server could not carry it out"));
  }
}

void FirstWrites::BeginGeneration() {
  MutexLock lock(mutex_);
  allowed_.clear();
  Count();
}

std::vector<FirstWrites::Unanswered> FirstWrites::BeginResending() {
  std::vector<Unanswered> all;
  MutexLock lock(mutex_);
  for (auto& [ino, write] : posted_) {
    write.resending = true;
    all.push_back({.ino = ino, .mark = write.mark, .bytes = write.bytes});
  }
  return all;
}

void FirstWrites::Resent(uint64_t ino, uint64_t sequence, const Status& status) {
  MutexLock lock(mutex_);
  const auto write = Find(ino, sequence);
  if (write == posted_.end()) {
    return;
  }
  if (status.code() == ENOTCONN) {
    write->second.resending = false;
  } else {
    status.ok() ? Erase(write) : Lose(write, status);
  }
}

uint64_t FirstWrites::LoseAll() {
  MutexLock lock(mutex_);
  const uint64_t lost = posted_.size();
  while (!posted_.empty()) {
    Lose(posted_.begin(), Status::Error(ENOTCONN, "the server has not come back"));
  }
  return lost;
}

uint64_t FirstWrites::posted() const {
  MutexLock lock(mutex_);
  return posted_.size();
}

uint64_t FirstWrites::lost() const {
  MutexLock lock(mutex_);
  return lost_;
}

bool FirstWrites::Disallow(uint64_t ino) {
  const bool was = allowed_.erase(ino) > 0;
  Count();
  return was;
}

void FirstWrites::Erase(PostedWrites::iterator write) {
  posted_.erase(write);
  Count();
}

void FirstWrites::Lose(PostedWrites::iterator write, const Status& why) {
  LOG_ERROR("a write of {} bytes to inode {}, which had returned, is lost: {}", write->second.bytes.size(),
            write->first, why.ToString());
  write->second.cache->writes().LoseOne();
  lost_++;
  Erase(write);
}

}  // namespace termfs::fs::client

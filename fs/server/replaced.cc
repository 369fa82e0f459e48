// SPDX-License-Identifier: Apache-2.0
#include "fs/server/replaced.h"

#include <utility>

namespace termfs::fs::server {

void ReplacedInodes::BeginGrace(Inode& inode) {
  MutexLock lock(inode.mutex);
  ++inode.graces;
}

void ReplacedInodes::CancelGrace(Inode& inode) {
  MutexLock lock(inode.mutex);
  --inode.graces;
}

void ReplacedInodes::Add(InodeRef inode, const metadata::Removed* removed, Time now) {
  Grace grace{.inode = std::move(inode), .end = now + grace_, .use = {}};
  if (removed != nullptr && removed->orphaned) {
    MutexLock lock(grace.inode->mutex);
    grace.inode->unlinked = true;
    if (grace.inode->opens.empty()) {
      grace.use = {.pages = removed->pages, .inodes = 1};
      grace.project = removed->project;
    }
  }
  MutexLock lock(mutex_);
  use_.pages += grace.use.pages;
  use_.inodes += grace.use.inodes;
  if (grace.project != 0) {
    Use& of = use_of_[grace.project];
    of.pages += grace.use.pages;
    of.inodes += grace.use.inodes;
  }
  graces_.push_back(std::move(grace));
  while (graces_.size() > 1 && (graces_.size() > max_inodes_ || use_.pages > max_pages_ + graces_.back().use.pages)) {
    EndFirst(ended_);
  }
}

void ReplacedInodes::EndFirst(std::vector<uint64_t>& orphans) {
  const Grace grace = std::move(graces_.front());
  graces_.pop_front();
  use_.pages -= grace.use.pages;
  use_.inodes -= grace.use.inodes;
  if (grace.project != 0) {
    const auto of = use_of_.find(grace.project);
    of->second.pages -= grace.use.pages;
    if ((of->second.inodes -= grace.use.inodes) == 0) {
      use_of_.erase(of);
    }
  }
  MutexLock lock(grace.inode->mutex);
  if (--grace.inode->graces == 0 && grace.inode->unlinked) {
    orphans.push_back(grace.inode->ino);
  }
}

std::vector<uint64_t> ReplacedInodes::TakeEnded(Time now) {
  MutexLock lock(mutex_);
  std::vector<uint64_t> orphans = std::exchange(ended_, {});
  while (!graces_.empty() && graces_.front().end <= now) {
    EndFirst(orphans);
  }
  return orphans;
}

std::vector<uint64_t> ReplacedInodes::TakeAll() {
  MutexLock lock(mutex_);
  std::vector<uint64_t> orphans = std::exchange(ended_, {});
  while (!graces_.empty()) {
    EndFirst(orphans);
  }
  return orphans;
}

std::optional<ReplacedInodes::Time> ReplacedInodes::NextEnd() const {
  MutexLock lock(mutex_);
  return graces_.empty() ? std::nullopt : std::optional(graces_.front().end);
}

bool ReplacedInodes::AnyEndedEarly() const {
  MutexLock lock(mutex_);
  return !ended_.empty();
}

bool ReplacedInodes::empty() const {
  MutexLock lock(mutex_);
  return graces_.empty() && ended_.empty();
}

ReplacedInodes::Use ReplacedInodes::use() const {
  MutexLock lock(mutex_);
  return use_;
}

ReplacedInodes::Use ReplacedInodes::UseOf(metadata::ProjectNumber project) const {
  MutexLock lock(mutex_);
  const auto of = use_of_.find(project);
  return of == use_of_.end() ? Use{} : of->second;
}

}  // namespace termfs::fs::server

// SPDX-License-Identifier: Apache-2.0
#include "fs/server/shrunk.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace termfs::fs::server {

namespace {

constexpr std::chrono::milliseconds kLookAtExpelled{20};

bool AreToldHeld(const Inode& inode, uint64_t session, ShrunkFile::Whose whose) REQUIRES(inode.mutex) {
  return std::any_of(inode.told_shrunk.begin(), inode.told_shrunk.end(),
                     [=](uint64_t told) { return told != session || whose == ShrunkFile::Whose::kAll; });
}

}  // namespace

void ShrunkFile::Begin(uint64_t generation) {
  generation_ = generation;
  MutexLock lock(inode_.mutex);
  for (const auto& [session, opener] : inode_.opens) {
    if (session != writer_ && (opener.caches || opener.leases > 0)) {
      Add(session);
    }
  }
}

void ShrunkFile::BeginReopened(uint64_t generation) {
  generation_ = generation;
  MutexLock lock(inode_.mutex);
  for (auto& [session, opener] : inode_.opens) {
    if (session != writer_ && std::exchange(opener.size_unsure, false)) {
      Add(session);
    }
  }
}

void ShrunkFile::Add(uint64_t session) {
  told_.push_back(session);
  inode_.told_shrunk.push_back(session);
}

ShrunkFile::~ShrunkFile() {
  if (told_.empty()) {
    return;
  }
  coherence_.TellShrunk(inode_, told_, generation_);
  MutexLock lock(inode_.mutex);
  for (const uint64_t session : told_) {
    inode_.told_shrunk.erase(std::find(inode_.told_shrunk.begin(), inode_.told_shrunk.end(), session));
  }
  inode_.change_entered.NotifyAll();
}

ShrunkFile::Others ShrunkFile::Look(Inode& inode, const Session& session, Whose whose) {
  MutexLock lock(inode.mutex);
  const bool unsure = std::any_of(inode.opens.begin(), inode.opens.end(), [&](const auto& opener) {
    return opener.first != session.id && opener.second.size_unsure;
  });
  if (unsure) {
    return Others::kAreToBeTold;
  }
  return AreToldHeld(inode, session.id, whose) ? Others::kAreBeingTold : Others::kKnow;
}

Status ShrunkFile::Await(Inode& inode, const Session& session, Whose whose) {
  MutexLock lock(inode.mutex);
  while (AreToldHeld(inode, session.id, whose)) {
    if (session.expelled.load(std::memory_order_relaxed)) {
      return Status::Error(ECANCELED, "the session is gone");
    }
    inode.change_entered.WaitUntil(inode.mutex, std::chrono::steady_clock::now() + kLookAtExpelled);
  }
  return Status::Ok();
}

}  // namespace termfs::fs::server

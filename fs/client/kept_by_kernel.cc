// SPDX-License-Identifier: Apache-2.0
#include "fs/client/kept_by_kernel.h"

#include <sys/stat.h>

#include <algorithm>

#include "fs/proto/codec.h"

namespace termfs::fs::client {

namespace {
constexpr size_t kMostInodes = size_t{1} << 18;  // as many as a server grants in all
}

bool KeptByKernel::Remember(uint64_t ino, Nanoseconds lasting) {
  MutexLock lock(mutex_);
  const BootTime now = Clock::System().Now();
  longest_ = std::max(longest_, lasting);
  if (now - since_ >= longest_) {
    earlier_.clear();
    if (now - since_ < 2 * longest_) {
      earlier_.swap(recent_);
    }
    recent_.clear();
    since_ = now;
  }
  if (recent_.size() >= kMostInodes && !recent_.contains(ino)) {
    return false;
  }
  recent_.insert(ino);
  return true;
}

std::vector<uint64_t> KeptByKernel::Void() {
  NoteRecall();  // first: who remembers an inode later sees it
  MutexLock lock(mutex_);
  std::vector<uint64_t> inodes(recent_.begin(), recent_.end());
  for (const uint64_t ino : earlier_) {
    if (!recent_.contains(ino)) {
      inodes.push_back(ino);
    }
  }
  recent_.clear();
  earlier_.clear();
  return inodes;
}

void LaneGrants::BeginRequest() {
  recalls_before_ = kept_.recalls();
  asked_ = sent_ = Clock::System().Now();
  Granted(0, 0);
}

bool LaneGrants::MayAnswer(const DirectoryChanges::Brought& brought) {
  recalls_before_ = brought.recalls;
  sent_ = brought.sent;
  asked_ = Clock::System().Now();
  Granted(0, brought.granted_ms);
  return !Recalled() && asked_ - sent_ < std::chrono::milliseconds(brought.granted_ms);
}

void LaneGrants::Bring(DirectoryChanges::Change& change, const wire::Attributes* directory, uint32_t granted_ms) const {
  if (directory != nullptr) {
    change.Brings(
        {.attributes = FromWire(*directory), .granted_ms = granted_ms, .sent = sent_, .recalls = recalls_before_});
  }
}

std::optional<BootTime> LaneGrants::End(uint32_t granted_ms) const {
  if (granted_ms == 0 || Recalled()) {
    return std::nullopt;
  }
  return sent_ + std::chrono::milliseconds(granted_ms);
}

Keep LaneGrants::keep(const Attributes* attributes) const {
  if ((entry_ms_ | attributes_ms_) == 0 || Recalled()) {
    return {};
  }
  const double passed = std::chrono::duration<double>(Clock::System().Now() - sent_).count();
  const auto rest = [passed](uint32_t granted_ms) { return std::max(0.0, granted_ms / 1000.0 - passed); };
  Keep keep{.entry = rest(entry_ms_), .attributes = rest(attributes_ms_)};
  if (attributes != nullptr && keep.attributes > 0) {
    const bool late = S_ISDIR(attributes->mode) && !kept_.changes().Settled(attributes->ino, asked_);
    if (late || !kept_.Remember(attributes->ino, std::chrono::milliseconds(attributes_ms_))) {
      keep.attributes = 0;
    }
  }
  // Before the look: a recall that this one misses finds noted what is given.
  if (!kept_.AboutToGive(attributes != nullptr && keep.attributes > 0 ? attributes->ino : 0, directory_,
                         std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(keep.entry)))) {
    keep.entry = 0;
  }
  return Recalled() ? Keep{} : keep;
}

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/tier_recovery.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

namespace termfs::tlib::server {
namespace {

// Half-done work of every page is undone, absent pages are hidden, frames in use are known. Pages that there is more to
// do about are added to `rest`; nothing is published before all of them have been found sound.
Status LookAtPages(const TierParts& parts, std::vector<PageIndex>& rest) {
  uint64_t logged_of_64 = 0;
  for (uint64_t i = 0; i < parts.states.pages(); i++) {
    const PageIndex page{i};
    if (i % 64 == 0) {
      logged_of_64 = parts.log.SetOf64(page);
    }
    const bool logged = (logged_of_64 >> (i % 64) & 1) != 0;
    const PageEntry entry = parts.states.Resume(page, logged);
    if (logged && !entry.on_ssd()) {
      parts.log.Clear(page);
    }
    if (entry.present() || entry.mark_pending()) {
      rest.push_back(page);
    }
    if (!entry.present()) {
      parts.term.Hide(page);
      continue;
    }
    const driver::FrameIndex frame = entry.frame();
    if (frame.value >= parts.term.max_frames() || parts.frames.taken(frame)) {
      return Status::Error(EUCLEAN, "page " + std::to_string(i) + " is in frame " + std::to_string(frame.value) +
                                        ", which does not exist or is another page's");
    }
    parts.frames.Adopt(frame, page);
  }
  return Status::Ok();
}

// The frames that are in use count; the others' memory is given back.
Status TakeFrames(const TierParts& parts, std::span<const PageIndex> pages, uint32_t frames) {
  uint32_t limit = frames;
  for (const PageIndex page : pages) {
    if (const PageEntry entry = parts.states.Peek(page); entry.present()) {
      limit = std::max(limit, entry.frame().value + 1);
    }
  }
  RETURN_IF_ERROR(parts.frames.SetLimit(limit, nullptr));
  parts.supply.SetHandRange(limit);  // so that the tier can give up what is more than its budget
  parts.frames.DecommitRest();
  return Status::Ok();
}

}  // namespace

Result<RecoveredTier> RecoverTier(const TierParts& parts, uint32_t frames) {
  std::vector<PageIndex> rest;
  RETURN_IF_ERROR(LookAtPages(parts, rest));
  RETURN_IF_ERROR(TakeFrames(parts, rest, frames));
  RecoveredTier found;
  for (const PageIndex page : rest) {
    const PageEntry entry = parts.states.Peek(page);
    if (entry.present()) {
      parts.supply.SetOwner(entry.frame(), page);
      parts.term.Publish(page, entry.frame());
      parts.policy.Access(page, 1, AccessKind::kWrite);  // it was worth a frame
      found.pages++;
    }
    if (entry.queued()) {
      parts.cleaner.NoteDirty(page);
      found.dirty++;
    }
    if (entry.mark_pending()) {
      parts.cleaner.NotePendingMark(page);
      found.unmarked++;
    }
  }
  // What was cleared reads as zeros from now on, also to who syncs it and then loses power.
  RETURN_IF_ERROR(parts.log.Sync());
  return found;
}

}  // namespace termfs::tlib::server

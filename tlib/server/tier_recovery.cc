// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/tier_recovery.h"

#include <algorithm>
#include <string>

namespace termfs::tlib::server {

Result<RecoveredTier> RecoverTier(const TierParts& parts, uint32_t frames) {
  RecoveredTier found;
  uint32_t limit = frames;
  for (uint64_t i = 0; i < parts.states.pages(); i++) {
    const PageIndex page{i};
    const bool logged = parts.log.IsSet(page);
    const PageEntry entry = parts.states.Resume(page, logged);
    if (logged && !entry.on_ssd()) {
      parts.log.Clear(page);
    }
    if (!entry.present()) {
      continue;
    }
    const driver::FrameIndex frame = entry.frame();
    if (frame.value >= parts.term.max_frames() || parts.frames.taken(frame)) {
      return Status::Error(EUCLEAN, "page " + std::to_string(i) + " is in frame " + std::to_string(frame.value) +
                                        ", which does not exist or is another page's");
    }
    parts.frames.Adopt(frame);
    limit = std::max(limit, frame.value + 1);
  }
  RETURN_IF_ERROR(parts.frames.SetLimit(limit, nullptr));
  parts.supply.SetHandRange(limit);  // so that the tier can give up what is more than its budget
  parts.frames.DecommitRest();
  for (uint64_t i = 0; i < parts.states.pages(); i++) {
    const PageIndex page{i};
    const PageEntry entry = parts.states.Peek(page);
    if (!entry.present()) {
      parts.term.Hide(page);
    } else {
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

// SPDX-License-Identifier: Apache-2.0
//
// What a server does with the DRAM tier that a killed one left (tier_store.h). A write goes: page marked dirty, entry
// `writing`, bytes, entry published; a page taken in: bytes, then the state; a written mark: device flushed, log
// synced, then the state. So whatever the instant, the page states are right, and everything else follows from them:
//
//   loading                  absent again: its frame may hold anything
//   clean, dirty             published anew in its frame; a write that never returned may be there in part
//   writing back             dirty: the SSD may hold any part of it
//   on the SSD, not marked   to be marked by the next commit: a mark that was on its way may or may not be in the log
//   not on the SSD, marked   the mark is cleared in the log: the page was dropped, and that was on its way
//
// Thread-safety: one task, before anybody else uses the parts.
// Ownership:     refers to the parts during the call only.
// Errors:        EUCLEAN: words that no server stored (two pages in one frame, a frame beyond the pool). Some of the
//                parts may have been changed then: the tier is not to be used.
// Units:         pages and frames, of 4 KiB each.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/cleaner.h"
#include "tlib/server/frame_supply.h"
#include "tlib/server/frames.h"
#include "tlib/server/page_states.h"
#include "tlib/server/tier_policy.h"
#include "tlib/server/written_log.h"

namespace termfs::tlib::server {

struct RecoveredTier {
  uint64_t pages = 0;     // in frames
  uint64_t dirty = 0;     // of these, newer than the SSD
  uint64_t unmarked = 0;  // on the SSD, still to be marked
};

struct TierParts {
  driver::TermRegion& term;
  WrittenLog& log;
  PageStates& states;
  Frames& frames;
  FrameSupply& supply;
  TierPolicy& policy;
  Cleaner& cleaner;
};

// `frames`: the budget to come; more are kept for now when pages are in frames beyond it.
Result<RecoveredTier> RecoverTier(const TierParts& parts, uint32_t frames);

}  // namespace termfs::tlib::server

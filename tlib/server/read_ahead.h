// SPDX-License-Identifier: Apache-2.0
//
// ReadAhead: recognises sequential reads among those that found pages absent, and loads what comes next before it is
// asked for. The reader then finds it by READs of his own, and the server hears of him again where the loaded part
// ends; so a part is as long as the window, which doubles each time, and the next one begins to load while the reader
// is on its way through the last half of this one, if he is fast enough to run into it.
//
// What is loaded passes through the tier (FrameSupply::TakeToPass), so a scan leaves the hot set alone. Two reads in a
// row may be chance: they load little. Of loads only a few run at a time, whatever clients ask for.
//
// Thread-safety: Missed from any task; Stop in a task.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/mutex.h"
#include "base/page.h"
#include "tlib/server/frame_supply.h"
#include "tlib/server/page_states.h"
#include "tlib/server/pager.h"
#include "tlib/server/region.h"

namespace termfs::tlib::server {

class ReadAhead {
 public:
  ReadAhead(PageStates& states, FrameSupply& supply, Pager& pager) : states_(states), supply_(supply), pager_(pager) {}
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Pages [first, first + count) are read, and some of them were absent. What comes next may be loaded by a task.
  void Missed(PageIndex first, uint64_t count, const Spawner& spawn) EXCLUDES(mutex_);
  // Nothing is loaded any more when this returns. Idempotent.
  void Stop();

 private:
  static constexpr size_t kStreams = 32;
  static constexpr uint32_t kMostLoads = 16;  // at a time

  // A reader who was at `next` last; the pages before `ahead` are loaded, or will be.
  struct Stream {
    uint64_t next = 0;
    uint64_t ahead = 0;
    uint64_t window = 0;
    uint64_t used = 0;  // when, in calls of Missed; 0: nobody's
  };
  // Those of whom more than one read is known apart from the others, so that random reads do not drive them out.
  using Streams = std::array<Stream, kStreams>;

  static Stream* Find(Streams& streams, uint64_t first);
  static Stream& Oldest(Streams& streams);
  // What to load now; of no pages: nothing.
  PageRange Advance(uint64_t first, uint64_t count) EXCLUDES(mutex_);
  void Load(PageRange range);

  PageStates& states_;
  FrameSupply& supply_;
  Pager& pager_;
  Mutex mutex_;
  uint64_t calls_ GUARDED_BY(mutex_) = 0;
  Streams known_ GUARDED_BY(mutex_);
  Streams seen_once_ GUARDED_BY(mutex_);
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> loading_{0};
};

}  // namespace termfs::tlib::server

// SPDX-License-Identifier: Apache-2.0
//
// ReadAhead: recognises sequential reads among those that found pages absent, and loads what comes next before it is
// asked for. The reader then finds it by READs of his own, and the server hears of him again where the loaded part
// ends; so a part is as long as the window, which doubles each time, and the next one begins to load while the reader
// is on its way through the last half of this one, if he is fast enough to run into it.
//
// What is loaded passes through the tier (FrameSupply::TakeToPass), so a scan leaves the hot set alone.
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

  // Some of pages [first, first + count) were absent, and are about to be read. What comes next may be loaded by a
  // task.
  void Missed(PageIndex first, uint64_t count, const Spawner& spawn) EXCLUDES(mutex_);
  // Nothing is loaded any more when this returns. Idempotent.
  void Stop();

 private:
  static constexpr size_t kStreams = 32;

  // A reader who was at `next` last; the pages before `ahead` are loaded, or will be.
  struct Stream {
    uint64_t next = 0;
    uint64_t ahead = 0;
    uint64_t window = 0;  // 0: one read so far
    uint64_t used = 0;    // when, in calls of Missed
  };

  Stream& Find(uint64_t first) REQUIRES(mutex_);
  void Load(PageRange range);

  PageStates& states_;
  FrameSupply& supply_;
  Pager& pager_;
  Mutex mutex_;
  uint64_t calls_ GUARDED_BY(mutex_) = 0;
  std::array<Stream, kStreams> streams_ GUARDED_BY(mutex_);
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> loading_{0};
};

}  // namespace termfs::tlib::server

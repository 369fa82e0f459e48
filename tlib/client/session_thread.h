// SPDX-License-Identifier: Apache-2.0
//
// SessionThread: what a session does beside its channels. It watches the control channel for the server's end, pulls
// the bitmap, and sums and exports the access counts. It owns the session's first queue pair: bitmap pulls go out on
// it, and the server's READs of the access counts come in on it.
//
// Thread-safety: Start and destruction from one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "base/metrics.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/nic.h"
#include "tlib/client/completion_waiter.h"
#include "tlib/client/heat_pace.h"
#include "tlib/client/session_core.h"
#include "tlib/client/table_puller.h"

namespace termfs::tlib::client {

class SessionThread {
 public:
  // ENOTSUP: the bitmap is wanted live, and cannot be.
  static Result<std::unique_ptr<SessionThread>> Start(std::shared_ptr<SessionCore> core);
  ~SessionThread();
  SessionThread(const SessionThread&) = delete;
  SessionThread& operator=(const SessionThread&) = delete;

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit SessionThread(std::shared_ptr<SessionCore> core)
      : core_(std::move(core)),
        waiter_(*core_),
        pulls_(core_->metrics().counter("bitmap_pulls_total")),
        pulled_bytes_(core_->metrics().counter("bitmap_pulled_bytes_total")),
        piece_words_(PieceWords(core_->options().pull_pages, core_->pulled_bitmap().size())) {}
  // Of the bitmap's `words`.
  static uint64_t PieceWords(uint64_t pull_pages, uint64_t words) {
    return std::clamp<uint64_t>(std::min(pull_pages, kMaxPullPages) / 64, 1, std::max<uint64_t>(words, 1));
  }
  Status Init();
  void Run();
  // When something is to be done, each.
  struct Due {
    TimePoint pull;
    TimePoint drain;
    TimePoint part;
    TimePoint ping;
    TimePoint first() const { return std::min({pull, drain, part, ping}); }
  };
  void Drain(TimePoint now);
  void EndPart(TimePoint now);
  // False: time to end.
  bool SleepUntil(TimePoint due);
  // READs the whole bitmap, a piece after the other. In a period: one piece, so that it does not cost more as the
  // region grows.
  Status PullBitmap();
  Status PullInTurn();
  Status PullNextPiece();
  // Posts it on the session's queue pair and waits until it has completed.
  Status Carry(const driver::SendWorkRequest& request);
  void Ping();
  // At the end of a part of a period.
  void TellHeat(const ReadTotals& totals, TimePoint now);
  // Once nothing has been read for a while, nothing is pulled or counted before something is.
  void Rest(TimePoint now);
  void GoOn(TimePoint now);

  const std::shared_ptr<SessionCore> core_;
  CompletionWaiter waiter_;
  Counter& pulls_;
  Counter& pulled_bytes_;
  const uint64_t piece_words_;
  uint64_t next_word_ = 0;
  // When the last one that was answered was sent. The server does not wait for pings before it has had one.
  TimePoint answered_ping_ = TimePoint::max();
  UniqueFd stop_event_;
  std::unique_ptr<uint64_t[]> piece_;
  std::unique_ptr<driver::MemoryRegion> piece_region_;
  std::unique_ptr<driver::CompletionQueue> queue_;
  std::unique_ptr<driver::QueuePair> pair_;
  std::unique_ptr<TablePuller> table_puller_;  // null unless READs are validated
  // Of the thread, as it runs.
  Due due_{};
  HeatPace pace_;
  std::chrono::milliseconds drain_period_{0};
  ReadTotals seen_totals_;
  TimePoint used_{};       // when pages were read the last time, as far as is known
  TimePoint published_{};  // the last access counts
  bool resting_ = false;
  std::thread thread_;
};

}  // namespace termfs::tlib::client

// SPDX-License-Identifier: Apache-2.0
//
// ReadWindow: one batch of a read, up to a window's pages: takes shared holds in ascending order, reads what is absent
// into bounce buffers, hands the pieces out, offers what was absent to the tier, and lets go.
//
// Thread-safety: one task. Ownership: its holds and buffers, until it is destroyed.
#pragma once

#include <cstdint>
#include <span>

#include "base/page.h"
#include "base/result.h"
#include "tlib/server/bounce_pool.h"
#include "tlib/server/inline_vector.h"
#include "tlib/server/page_runs.h"
#include "tlib/server/tiering_io.h"

namespace termfs::tlib::server {

class TieringIo::ReadWindow {
 public:
  // `zeros`: a page of zeros in registered memory.
  ReadWindow(const Parts& parts, const Bounce& zeros);
  ~ReadWindow() { ReleaseAll(); }
  ReadWindow(const ReadWindow&) = delete;
  ReadWindow& operator=(const ReadWindow&) = delete;

  // `parts`: ascending, at most Bounce::kWindowPages. `at[i]`: where parts[i] belongs in the range that is read.
  Status Run(std::span<const Part> parts, std::span<const uint32_t> at, PieceSink& sink);

 private:
  // False when more pages turned out absent than there are buffers for; nothing is held then.
  bool AcquireAll(std::span<const Part> parts, std::span<const uint32_t> at);
  void AddFromDevice(const Part& part, uint32_t at);
  uint32_t CountAbsent(std::span<const Part> parts) const;
  void Admit();
  void ReleaseAll();

  const Parts& p_;
  const Bounce& zeros_;
  const bool may_admit_;  // asked once: the budget may change while the window runs
  Bounce bounce_;
  PageRuns runs_{BlockIo::Kind::kRead};
  InlineVector<PageIndex, Bounce::kWindowPages> held_;
  InlineVector<PageIndex, Bounce::kWindowPages> read_;  // in the order of runs_ and of bounce_
  InlineVector<PageIndex, Bounce::kWindowPages> zero_;  // absent and never written
  InlineVector<Piece, Bounce::kWindowPages> pieces_;
};

}  // namespace termfs::tlib::server

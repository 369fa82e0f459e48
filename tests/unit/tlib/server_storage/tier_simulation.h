// SPDX-License-Identifier: Apache-2.0
//
// TierSimulation: a TierPolicy deciding about a tier of frames, without I/O: pages are accessed, hits are reported once
// a period as clients do, misses at once, and a miss that is worth a frame gets it.
//
// Thread-safety: none. The same seed gives the same run.
#pragma once

#include <cmath>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/random.h"
#include "tlib/server/tier_policy.h"

namespace termfs::tlib::server {

class TierSimulation final : public TierView {
 public:
  TierSimulation(uint64_t pages, uint32_t frames, FrameChoice choice)
      : policy_(pages, choice), owners_(frames), frame_of_(pages, kNone), pending_(pages) {
    policy_.SetBudget(frames);
  }

  std::optional<PageIndex> Owner(driver::FrameIndex frame) const override { return owners_[frame.value]; }
  bool Evictable(driver::FrameIndex /*frame*/, PageIndex page) const override { return held_ != page; }

  // Accesses between two reports of the clients: about one per page, as at half a million reads per second on 2 GiB.
  void SetPeriod(uint64_t accesses) { period_ = accesses; }
  // Nobody may give up its frame.
  void Hold(PageIndex page) { held_ = page; }
  // Reports reach the policy in every `periods`-th of its periods only, and say how many hits and misses they are of.
  void SetLate(uint32_t periods) { late_ = periods; }

  void Access(PageIndex page) {
    if (frame_of_[page.value] != kNone) {
      hits_++;
      untold_hits_++;
      if (pending_[page.value]++ == 0) {
        touched_.push_back(page);
      }
    } else {
      misses_++;
      untold_misses_++;
      policy_.Access(page, 1, AccessKind::kMiss);
      Admit(page);
    }
    if (++in_period_ >= period_) {
      EndPeriod();
    }
  }

  double TakeMissRatio() {
    const double ratio = static_cast<double>(misses_) / static_cast<double>(hits_ + misses_);
    hits_ = misses_ = 0;
    return ratio;
  }
  uint64_t TakeReplacements() { return std::exchange(replacements_, 0); }
  bool Resident(PageIndex page) const { return frame_of_[page.value] != kNone; }
  TierPolicy& policy() { return policy_; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  void Admit(PageIndex page) {
    std::optional<driver::FrameIndex> frame;
    if (used_ < owners_.size()) {
      frame = driver::FrameIndex{used_++};
    } else {
      frame = policy_.VictimFor(page, *this, static_cast<uint32_t>(owners_.size()));
      if (!frame.has_value()) {
        return;
      }
      frame_of_[owners_[frame->value]->value] = kNone;
      replacements_++;
    }
    owners_[frame->value] = page;
    frame_of_[page.value] = frame->value;
  }

  void EndPeriod() {
    if (late_ == 0 || ++ended_ % late_ == 0) {
      Report();
    }
    in_period_ = 0;
    policy_.EndPeriod();
  }

  void Report() {
    if (late_ != 0) {
      policy_.AddTotals(1, std::exchange(untold_hits_, 0), std::exchange(untold_misses_, 0));
    }
    for (const PageIndex page : touched_) {
      policy_.Access(page, std::exchange(pending_[page.value], 0), AccessKind::kHit);
    }
    touched_.clear();
  }

  TierPolicy policy_;
  std::vector<std::optional<PageIndex>> owners_;
  std::vector<uint32_t> frame_of_;
  std::vector<uint32_t> pending_;
  std::vector<PageIndex> touched_;
  uint32_t used_ = 0;
  uint64_t period_ = 65536;
  uint64_t in_period_ = 0;
  uint32_t late_ = 0;
  uint32_t ended_ = 0;
  uint32_t untold_hits_ = 0;
  uint32_t untold_misses_ = 0;
  std::optional<PageIndex> held_;
  uint64_t hits_ = 0;
  uint64_t misses_ = 0;
  uint64_t replacements_ = 0;
};

// Zipf-distributed ranks by rejection-free inversion over a table, scattered over the pages by a seeded permutation.
class ScrambledZipf {
 public:
  ScrambledZipf(uint64_t pages, double exponent, uint64_t seed) : cumulative_(pages), page_of_(pages), random_(seed) {
    double sum = 0;
    for (uint64_t rank = 0; rank < pages; rank++) {
      sum += 1 / std::pow(static_cast<double>(rank + 1), exponent);
      cumulative_[rank] = sum;
      page_of_[rank] = {rank};
    }
    for (double& value : cumulative_) {
      value /= sum;
    }
    Scramble();
  }
  // Other pages are hot from now on.
  void Scramble() {
    for (uint64_t i = page_of_.size() - 1; i > 0; i--) {
      std::swap(page_of_[i], page_of_[random_.Below(i + 1)]);
    }
  }
  PageIndex Next() {
    const auto found = std::lower_bound(cumulative_.begin(), cumulative_.end(), random_.Double());
    return page_of_[std::min<size_t>(static_cast<size_t>(found - cumulative_.begin()), page_of_.size() - 1)];
  }
  // Misses of a tier that always holds the `frames` pages most often accessed.
  double OracleMissRatio(uint64_t frames) const { return 1 - cumulative_[frames - 1]; }
  PageIndex page_of_rank(uint64_t rank) const { return page_of_[rank]; }

 private:
  std::vector<double> cumulative_;
  std::vector<PageIndex> page_of_;
  Random random_;
};

}  // namespace termfs::tlib::server

// SPDX-License-Identifier: Apache-2.0
//
// HeatPace: how much of what a client reads is counted, and how often the counts are told. Counting serves to miss
// less; so whoever hardly misses counts a sample, and whoever misses more than usual tells at once what is hot by now.
//
// Thread-safety: none.
#pragma once

#include <algorithm>
#include <cstdint>

namespace termfs::tlib::client {

// Pages, since the session began. Totals that are summed while others count may be a little short of the last.
struct ReadTotals {
  uint64_t hit_pages = 0;     // read one-sided
  uint64_t missed_pages = 0;  // fetched by RPC
};

class HeatPace {
 public:
  static constexpr uint32_t kParts = 4;  // of a period
  static constexpr uint32_t kMostSampling = 16;

  // A part of a period has ended, by when `now` had been read. True: the counts are to be told.
  bool PartEnded(const ReadTotals& now) {
    const Reads part = Since(part_began_, now);
    part_began_ = now;
    if (MissesMore(part)) {
      urgent_parts_ = 2 * kParts;
    }
    const bool due = ++parts_ % kParts == 0 || urgent_parts_ > 0;
    urgent_parts_ -= std::min(urgent_parts_, 1U);
    if (due) {
      usual_ = Since(told_, now);
      told_ = now;
    }
    return due;
  }

  // Of so many hits one is counted, for as many.
  uint32_t sampling() const {
    const uint64_t hits_per_miss = usual_.hits / std::max<uint64_t>(usual_.misses, 1);
    return static_cast<uint32_t>(std::clamp<uint64_t>(hits_per_miss / kFewMisses, 1, kMostSampling));
  }

 private:
  // One miss in so many hits costs as much as counting all of them.
  static constexpr uint64_t kFewMisses = 256;
  static constexpr uint64_t kEnoughReads = 256;  // in a part, to tell anything from them

  struct Reads {
    uint64_t hits = 0;
    uint64_t misses = 0;
    uint64_t all() const { return hits + misses; }
  };

  static Reads Since(const ReadTotals& then, const ReadTotals& now) {
    return {.hits = now.hit_pages - std::min(now.hit_pages, then.hit_pages),
            .misses = now.missed_pages - std::min(now.missed_pages, then.missed_pages)};
  }
  // By half, and five in a thousand.
  bool MissesMore(const Reads& part) const {
    return part.all() >= kEnoughReads && usual_.all() >= kEnoughReads &&
           static_cast<double>(part.misses) >
               static_cast<double>(part.all()) *
                   (0.005 + 1.5 * static_cast<double>(usual_.misses) / static_cast<double>(usual_.all()));
  }

  ReadTotals part_began_;
  ReadTotals told_;
  Reads usual_;  // between the last two times of telling
  uint32_t parts_ = 0;
  uint32_t urgent_parts_ = 0;
};

}  // namespace termfs::tlib::client

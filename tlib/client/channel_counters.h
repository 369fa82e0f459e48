// SPDX-License-Identifier: Apache-2.0
//
// ChannelCounters: what one channel counts. Its thread alone adds, with a plain load and store; others read whenever
// they like.
//
// Thread-safety: Add from the channel's thread; value from any.
#pragma once

#include <atomic>
#include <cstdint>

namespace termfs::tlib::client {

class LocalCounter {
 public:
  void Add(uint64_t n = 1) { value_.store(value() + n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct alignas(64) ChannelCounters {
  LocalCounter read_calls;
  LocalCounter slow_calls;  // of them; the others were reads of one page each, and hits, not in the counters below
  LocalCounter reads;
  LocalCounter read_pages;
  LocalCounter read_hit_pages;
  LocalCounter absent_by_bitmap_pages;
  LocalCounter absent_by_pattern_pages;
  LocalCounter validation_misses;  // pages that were READ, and whose entry had changed
  LocalCounter rpc_reads;
  LocalCounter rpc_read_pages;
  LocalCounter calls;

  void AddTo(ChannelCounters& sum) const {
    // A call that will turn out slow counts as quick until it has, so that a later sum may be one less.
    const uint64_t slow = slow_calls.value();
    const uint64_t quick = read_calls.value() - slow;
    sum.reads.Add(reads.value() + quick);
    sum.read_pages.Add(read_pages.value() + quick);
    sum.read_hit_pages.Add(read_hit_pages.value() + quick);
    sum.absent_by_bitmap_pages.Add(absent_by_bitmap_pages.value());
    sum.absent_by_pattern_pages.Add(absent_by_pattern_pages.value());
    sum.validation_misses.Add(validation_misses.value());
    sum.rpc_reads.Add(rpc_reads.value());
    sum.rpc_read_pages.Add(rpc_read_pages.value());
    sum.calls.Add(calls.value());
  }
};

}  // namespace termfs::tlib::client

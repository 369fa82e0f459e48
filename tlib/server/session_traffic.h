// SPDX-License-Identifier: Apache-2.0
//
// What one session has asked for, and for whom, so that an administrator sees which clients keep a server busy.
//
// Thread-safety: any thread; relaxed.
#pragma once

#include <atomic>
#include <cstdint>

namespace termfs::tlib::server {

struct SessionTraffic {
  explicit SessionTraffic(uint64_t whose = 0) : owner(whose) {}

  const uint64_t owner;            // of its share of what workers have: the same for all sessions of a host or user
  std::atomic<uint64_t> reads{0};  // requests for pages that were absent
  std::atomic<uint64_t> read_pages{0};  // by those
  std::atomic<uint64_t> hit_pages{0};   // READ one-sidedly, as the client reports about once a second
};

}  // namespace termfs::tlib::server

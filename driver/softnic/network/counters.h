// SPDX-License-Identifier: Apache-2.0
//
// What the network half of a software RNIC counts. Thread-safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/failure_log.h"

namespace termfs::driver::softnic {

struct NetworkCounters {
  std::atomic<uint64_t> packets_sent{0};
  std::atomic<uint64_t> packets_received{0};
  std::atomic<uint64_t> unsent{0};         // packets, or runs of them, that the socket would not take
  std::atomic<uint64_t> malformed{0};      // no packet of the transport
  std::atomic<uint64_t> wrong_crc{0};      // invariant CRC
  std::atomic<uint64_t> no_connection{0};  // for a queue pair that there is not, or from elsewhere than its peer
  std::atomic<uint64_t> out_of_place{0};   // in a connection: late, doubled, out of order
  std::atomic<uint64_t> retransmissions{0};
  std::atomic<uint64_t> timeouts{0};
  std::atomic<uint64_t> refusals{0};           // requests for which connections were ended
  std::atomic<uint64_t> stream_bytes_sent{0};  // over TCP, headers of iWARP included
  std::atomic<uint64_t> stream_bytes_received{0};
  std::atomic<uint64_t> tls_key_updates{0};  // of what is sent
  FailureLog refusal_log;
};

inline void Count(std::atomic<uint64_t>& counter, uint64_t by = 1) { counter.fetch_add(by, std::memory_order_relaxed); }

}  // namespace termfs::driver::softnic

// SPDX-License-Identifier: Apache-2.0
//
// HeatReader: READs one client's access counts (tlib/rpc/heat.h) as it publishes them, and gives them to the region,
// until the client's connection closes.
//
// Thread-safety: a task of the connection's worker.
// Errors:        a client whose counts make no sense is not listened to; one whose memory cannot be READ loses that
//                connection.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/rpc/heat.h"
#include "tlib/server/bulk_pool.h"
#include "tlib/server/connection.h"
#include "tlib/server/dispatcher.h"
#include "tlib/server/region.h"

namespace termfs::tlib::server {

struct HeatExport {
  driver::RKey rkey;
  uint64_t bytes = 0;
};

class HeatReader {
 public:
  static constexpr uint64_t kMaxBytes = 64ULL << 20;  // memory is rounded up by whoever allocates it

  HeatReader(Region& region, Counter& reads, Connection& connection, BulkPool& bulk, const HeatExport& exported)
      : region_(region), reads_(reads), connection_(connection), bulk_(bulk), exported_(exported) {}

  // Returns when the connection closes. `handler` is the connection's.
  void Run(DataHandler& handler, std::chrono::milliseconds period);

 private:
  Status ReadOnce(SessionTraffic& traffic);
  Status ReadHeader(HeatHeader& header);
  Status Read(uint64_t offset, uint32_t length, const BulkPool::Buffer& into);

  Region& region_;
  Counter& reads_;
  Connection& connection_;
  BulkPool& bulk_;
  const HeatExport exported_;
  uint64_t counted_ = 0;  // sequence
  std::vector<HeatEntry> entries_;
};

}  // namespace termfs::tlib::server

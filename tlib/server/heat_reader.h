// SPDX-License-Identifier: Apache-2.0
//
// HeatReader: READs one client's access counts (tlib/rpc/heat.h) as it publishes them, and gives them to the region, in
// a task that ends when there were none for a while, or when the connection closes.
//
//   no task ---- Ring ----> looking, every so often ---- nothing new for kPatience, or Close ----> no task
//
// Thread-safety: the connection's worker.
// Ownership:     its connection's handler and its task share it.
// Errors:        a client whose counts make no sense is not listened to; one whose memory cannot be READ loses that
//                connection.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/rpc/heat.h"
#include "tlib/server/bulk_pool.h"
#include "tlib/server/connection.h"
#include "tlib/server/region.h"
#include "tlib/server/session_traffic.h"

namespace termfs::tlib::server {

struct HeatExport {
  driver::RKey rkey;
  uint64_t bytes = 0;
};

class HeatReader : public std::enable_shared_from_this<HeatReader> {
 public:
  static constexpr uint64_t kMaxBytes = 64ULL << 20;  // memory is rounded up by whoever allocates it

  HeatReader(Region& region, Counter& reads, Connection& connection, BulkPool& bulk, const HeatExport& exported,
             std::chrono::milliseconds period, std::shared_ptr<SessionTraffic> traffic)
      : region_(region),
        reads_(reads),
        connection_(connection),
        bulk_(bulk),
        exported_(exported),
        period_(period),
        traffic_(std::move(traffic)) {}

  // There may be something new. REQUIRES: the connection is open.
  void Ring();
  // The connection closes.
  void Close();

 private:
  void Run();
  Status ReadOnce();
  Status ReadHeader(HeatHeader& header);
  Status Read(uint64_t offset, uint32_t length, const BulkPool::Buffer& into);

  Region& region_;
  Counter& reads_;
  Connection& connection_;
  BulkPool& bulk_;
  const HeatExport exported_;
  const std::chrono::milliseconds period_;  // in which a client publishes
  const std::shared_ptr<SessionTraffic> traffic_;
  bool running_ = false;  // a task, as the next
  Task* sleeper_ = nullptr;
  uint32_t rings_ = 0;
  uint64_t seen_ = 0;     // sequence
  uint64_t counted_ = 0;  // of it
  std::vector<HeatEntry> entries_;
};

}  // namespace termfs::tlib::server

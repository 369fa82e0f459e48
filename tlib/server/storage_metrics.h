// SPDX-License-Identifier: Apache-2.0
//
// StorageMetrics: the counters and histograms of the storage half, by the names of Server::Metrics.
//
// Thread-safety: any thread. Ownership: the registry's; it outlives this.
#pragma once

#include "base/metrics.h"

namespace termfs::tlib::server {

struct StorageMetrics {
  explicit StorageMetrics(MetricsRegistry& registry)
      : frame_read_pages(registry.counter("frame_read_pages_total")),
        told_hit_pages(registry.counter("told_hit_pages_total")),
        told_missed_pages(registry.counter("told_missed_pages_total")),
        ssd_reads(registry.counter("ssd_reads_total")),
        ssd_writes(registry.counter("ssd_writes_total")),
        ssd_read_bytes(registry.counter("ssd_read_bytes_total")),
        ssd_write_bytes(registry.counter("ssd_write_bytes_total")),
        ssd_errors(registry.counter("ssd_errors_total")),
        promotions(registry.counter("promotions_total")),
        read_ahead_pages(registry.counter("read_ahead_pages_total")),
        evictions(registry.counter("evictions_total")),
        write_backs(registry.counter("write_backs_total")),
        flushes(registry.counter("flushes_total")),
        faults(registry.counter("faults_total")),
        ssd_read(registry.histogram("ssd_read")),
        ssd_write(registry.histogram("ssd_write")) {}

  Counter& frame_read_pages;   // pages of RPC reads that were in a frame
  Counter& told_hit_pages;     // read one-sided, as clients tell
  Counter& told_missed_pages;  // and not
  Counter& ssd_reads;          // accesses, each of one or several adjacent pages
  Counter& ssd_writes;
  Counter& ssd_read_bytes;
  Counter& ssd_write_bytes;
  Counter& ssd_errors;        // accesses that failed
  Counter& promotions;        // pages that got a frame because they were read, or deserved it
  Counter& read_ahead_pages;  // pages that got one for a while, ahead of a sequential reader
  Counter& evictions;         // pages that lost their frame
  Counter& write_backs;       // pages
  Counter& flushes;           // calls of Flush
  Counter& faults;            // RNIC page faults (odp)
  Histogram& ssd_read;        // time of a batch of accesses, counted once for each access
  Histogram& ssd_write;
};

}  // namespace termfs::tlib::server

// SPDX-License-Identifier: Apache-2.0
//
// What an administrator asks a running server: status, metrics, settings.
//
// Thread-safety: free functions; each call makes a connection of its own and ends it.
// Errors:        ENOENT, ECONNREFUSED, EHOSTUNREACH: no server there; EACCES: not with this secret; EPROTO; otherwise
//                what the server answered.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"
#include "fs/client/quota.h"
#include "fs/types.h"
#include "tlib/rpc/server_address.h"

namespace termfs::fs::client {

inline constexpr char kAdministrator[] = "admin";  // the program that its sessions are of

using tlib::MeansHost;
using tlib::ParseHostPort;
using tlib::ServerAddress;

// Since the session began.
struct SessionTraffic {
  uint64_t reads = 0;       // requests to read: pages that were absent, or what the client has no map of
  uint64_t read_bytes = 0;  // by those
  uint64_t hit_pages = 0;   // READ one-sidedly, of which a server hears about once a second
  uint64_t writes = 0;
  uint64_t write_bytes = 0;
  uint64_t metadata = 0;  // other requests
};

struct SessionStatus {
  uint64_t id = 0;
  std::string program;
  std::string transport;
  std::string from;    // host and port; empty: the server's host, where it is a process of
  std::string bitmap;  // live, pulled, off
  std::string reads;   // translated, validated, rpc: driver::ReadWay
  uint32_t uid = 0;
  uint32_t pid = 0;
  uint32_t queue_pairs = 0;
  uint64_t seconds = 0;  // connected for
  SessionTraffic traffic;
};

struct VolumeStatus {
  std::string uuid;
  std::string version;    // of the server program
  uint32_t format = 0;    // of the volume
  std::string kind;       // memory-region kind
  std::string transport;  // what the server offers
  std::string health;     // "ok", or what is wrong
  uint32_t pid = 0;       // of the server, on its host; 0: it does not say
  uint64_t uptime_seconds = 0;
  double dram_ratio = 0;
  uint64_t tier_bytes = 0;  // D
  uint64_t tier_used_bytes = 0;
  uint64_t dirty_bytes = 0;
  uint64_t metadata_memory_bytes = 0;  // of the metadata store, the limit
  uint64_t metadata_used_bytes = 0;
  uint64_t metadata_table_bytes = 0;  // the store's files
  std::string changing;               // the setting that is being changed; empty: none
  std::string change_failure;         // why the last change of a setting failed; empty: it did not
  FileSystemStatus space;
  uint64_t capacity_target_bytes = 0;   // what the capacity is being changed to; equal to it when it is not
  uint64_t capacity_to_move_bytes = 0;  // what has to be moved before it is smaller
  bool capacity_changing = false;       // also when only DRAM tier and SSD are to follow
  std::string capacity_failure;         // why the last change came to nothing; empty: it did not
  std::vector<SessionStatus> sessions;
};

Result<VolumeStatus> GetStatus(const ServerAddress& address);
// The server's metrics (tlib/server/server.h, and fs_ of the service).
Result<std::vector<MetricValue>> GetMetrics(const ServerAddress& address);
// All directories with a quota, by path.
Result<std::vector<QuotaStatus>> ListQuotas(const ServerAddress& address);
// key: capacity (bytes), dram-ratio (0.01 to 1), metadata-memory (bytes), promoter (heat, recent, static), pattern
// (value "random": a new one).
// A smaller capacity is only begun: GetStatus says when it is reached, or why not. ETIMEDOUT: a change may go on at the
// server; VolumeStatus::changing says whether it does.
// EINVAL says what is allowed. Persisted in the volume's termfs.toml by the server where it is a setting.
Status ChangeSetting(const ServerAddress& address, const std::string& key, const std::string& value);

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
//
// The quota of a directory tree, through a mount: the value of its attribute kQuotaXattr, with setxattr(2) and
// getxattr(2) on any path in it.
//
// Thread-safety: free functions. Units: bytes of allocated pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace termfs::fs::client {

struct QuotaStatus {
  uint64_t root = 0;   // inode number of the directory that has it
  uint64_t bytes = 0;  // limits; 0: none
  uint64_t inodes = 0;
  uint64_t used_bytes = 0;
  uint64_t used_inodes = 0;
  bool counting = false;  // what was there before the quota is not all counted
  std::string failure;    // why counting does not go on, which the server tries again; empty: it does
  std::string path;       // of ParseQuotas: from the volume's root on; empty: it has been removed
};

// What setxattr is given: the limits that are to change, 0 for none.
std::vector<std::byte> QuotaValue(std::optional<uint64_t> bytes, std::optional<uint64_t> inodes);
// From what getxattr has returned. EBADMSG.
Result<QuotaStatus> ParseQuota(std::span<const std::byte> value);
// From a server's list of all (kAdminQuotas), by path. EBADMSG.
Result<std::vector<QuotaStatus>> ParseQuotas(std::span<const std::byte> list);

}  // namespace termfs::fs::client

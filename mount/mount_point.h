// SPDX-License-Identifier: Apache-2.0
//
// What another process can learn of a mount by its mount point, without the server: FrontEnd::Describe.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"
#include "fs/client/admin.h"

namespace termfs::mount {

struct MountDescription {
  int pid = 0;                 // of the process that answers
  uint64_t pid_namespace = 0;  // where it has that number; 0: not known
  std::string address;
  std::string secret;  // file, where the address is a host's
  std::string transport;
  std::string fuse;     // what its requests come over: "io_uring" or "/dev/fuse"
  std::string libfuse;  // version
  std::string options;  // those that it was mounted with, but for what only others understand
  std::map<std::string, uint64_t> metrics;
  std::map<std::string, Buckets> histograms;  // by name, without "_count"

  Result<fs::client::ServerAddress> server() const;
};

// Of this process, as MountDescription's.
uint64_t PidNamespace();

// A value in a line of a description: any bytes, such as those of a path, without the end of the line.
std::string ToLine(std::string_view value);
std::string FromLine(std::string_view text);

// Buckets of a histogram in a line: " 40:3,41:7" for 3 values in bucket 40 and 7 in the next; "" when all are empty.
std::string BucketsToText(const Buckets& buckets);
// EPROTO: `text` is nothing like that.
Result<Buckets> BucketsFromText(std::string_view text);

// What the kernel answers of a dead mount, also to a question that was on its way when that died.
inline bool SaysDead(int error) { return error == ENOTCONN || error == ECONNABORTED; }

// ENOTCONN: the mount is dead. EINVAL: `path` is not the root of a termfs mount. ETIMEDOUT: no answer for ten seconds.
Result<MountDescription> DescribeMount(const std::string& path);
// The mounts on this host of the volume at `address`: mount point and description. Those that do not answer within
// `patience` are left out.
Result<std::vector<std::pair<std::string, MountDescription>>> DescribeMountsOf(const std::string& address,
                                                                               std::chrono::milliseconds patience);
// Who mounted what is mounted on `path` (its last entry) by FUSE; none: nobody.
Result<std::optional<uid_t>> MountOwner(const std::string& path);
// The type that the mount table gives for `path` (its last entry), "" when nothing is mounted there.
Result<std::string> MountType(const std::string& path);

}  // namespace termfs::mount

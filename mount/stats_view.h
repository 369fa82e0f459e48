// SPDX-License-Identifier: Apache-2.0
//
// What two readings say about the time in between, as lines of at most 100 columns: rates per second, and percentiles
// of what ended in that time.
//
// Thread-safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mount/stats_sample.h"

namespace termfs::mount {

// Two lines: groups of columns, and the columns; each word of the second is above a word of StatsLine. A mount has
// other columns than a server.
std::string StatsHeader(const StatsSample& sample);
// REQUIRES: both are of the same source. "-": nothing to say, or the source does not know.
std::string StatsLine(const StatsSample& before, const StatsSample& now);

std::string SessionsHeader();
// A line for each session that has asked for something, the busiest first, and one that counts the others.
std::string SessionsLines(const StatsSample& before, const StatsSample& now);

// In at most five columns: "0", "99999", "123k", "4.5M"; of bytes, in powers of 1024: "0", "4.0K", "100M"; of
// nanoseconds: "12us", "1.2ms", "45s", "-" where there are none.
std::string ShortCount(std::optional<double> value);
std::string ShortBytes(std::optional<double> value);
std::string ShortTime(std::optional<uint64_t> nanoseconds);

}  // namespace termfs::mount

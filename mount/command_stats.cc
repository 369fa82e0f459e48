// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cstdio>
#include <limits>
#include <thread>

#include "mount/command.h"
#include "mount/size.h"
#include "mount/stats_sample.h"
#include "mount/stats_view.h"

namespace termfs::mount {
namespace {

constexpr uint64_t kLinesPerHeader = 20;

Result<std::chrono::duration<double>> ParseInterval(const std::string& text) {
  double seconds = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() ||
      !(seconds >= 0.05 && seconds <= 86400)) {
    return Status::Error(EINVAL, "--interval: '" + text + "' is not a number of seconds from 0.05 to 86400");
  }
  return std::chrono::duration<double>(seconds);
}

std::string Text(const StatsArguments& arguments, uint64_t shown, const StatsSample& before, const StatsSample& now) {
  if (arguments.json) {
    return StatsJson(now);
  }
  if (arguments.sessions) {
    return (shown > 0 ? "\n" : "") + SessionsHeader() + SessionsLines(before, now);
  }
  return (shown % kLinesPerHeader == 0 ? StatsHeader(now) : "") + StatsLine(before, now);
}

// The live view needs two samples for its first line; JSON shows the first as it is.
int Show(const StatsArguments& arguments, std::chrono::duration<double> interval, uint64_t count) {
  Status server_error;
  const StatsSource source{.place = arguments.source,
                           .secret = arguments.secret,
                           .server = arguments.json || arguments.sessions,
                           .sessions = arguments.sessions};
  Result<StatsSample> before = TakeSample(source, server_error);
  if (!before.ok()) {
    return Failed(before.status());
  }
  if (!server_error.ok()) {
    std::fprintf(stderr, "termfs: the server's own counters are not shown: %s\n", server_error.ToString().c_str());
  }
  const auto period = std::chrono::duration_cast<std::chrono::steady_clock::duration>(interval);
  auto next = std::chrono::steady_clock::now();
  for (uint64_t shown = 0; shown < count; shown++) {
    if (!arguments.json || shown > 0) {
      // After a sample that took longer than an interval the next is a whole one later.
      const auto now = std::chrono::steady_clock::now();
      next = now - next > period ? now + period : next + period;
      std::this_thread::sleep_until(next);
    }
    Result<StatsSample> now = TakeSample(source, server_error);
    if (!now.ok()) {
      return Failed(now.status());
    }
    if (const int printed = Print(Text(arguments, shown, *before, *now)); printed != kExitOk) {
      return printed;
    }
    before = std::move(now);
  }
  return kExitOk;
}

}  // namespace

int RunStats(const StatsArguments& arguments) {
  if (fs::client::MeansHost(arguments.source)) {
    if (const auto address = ServedAddress(arguments.source, arguments.secret); !address.ok()) {
      return BadUsage("stats", address.status());
    }
  }
  const auto interval = ParseInterval(arguments.interval);
  if (!interval.ok()) {
    return BadUsage("stats", interval.status());
  }
  uint64_t count = std::numeric_limits<uint64_t>::max();
  if (!arguments.count.empty()) {
    const Result<uint64_t> parsed = ParseCount(arguments.count, 1, count);
    if (!parsed.ok()) {
      return BadUsage("stats", parsed.status().WithContext("--count"));
    }
    count = *parsed;
  }
  return Show(arguments, *interval, count);
}

}  // namespace termfs::mount

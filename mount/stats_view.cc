// SPDX-License-Identifier: Apache-2.0
#include "mount/stats_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "mount/connection.h"

namespace termfs::mount {
namespace {

constexpr double kPageBytes = 4096;

enum class Shown : uint8_t { kRate, kBytes, kPages, kShare, kMedian, kP99 };

// `of`: counters, or for percentiles histograms, separated by spaces, which are summed up. kPages: those counted in
// pages, shown as bytes, and after a "+" those counted in bytes. kShare: the first in percent of all.
struct Column {
  std::string_view group;
  std::string_view title;
  Shown shown;
  std::string_view of;
};

constexpr std::array kOfMount = {
    Column{"reads", "r/s", Shown::kRate, "fs_reads_total"},
    Column{"reads", "bytes", Shown::kBytes, "fs_read_bytes_total"},
    Column{"reads", "hit%", Shown::kShare, "read_hit_pages_total rpc_read_pages_total"},
    Column{"reads", "miss", Shown::kRate, "rpc_read_pages_total"},
    Column{"reads", "p50", Shown::kMedian, "fuse_read"},
    Column{"reads", "p99", Shown::kP99, "fuse_read"},
    Column{"writes", "w/s", Shown::kRate, "fs_writes_total"},
    Column{"writes", "bytes", Shown::kBytes, "fs_write_bytes_total"},
    Column{"writes", "p50", Shown::kMedian, "fuse_write"},
    Column{"writes", "p99", Shown::kP99, "fuse_write"},
    Column{"metadata", "m/s", Shown::kRate, "fs_metadata_total"},
    Column{"metadata", "p50", Shown::kMedian, "fs_metadata"},
    Column{"metadata", "p99", Shown::kP99, "fs_metadata"},
};

constexpr std::array kOfServer = {
    Column{"reads", "hits", Shown::kRate, "told_hit_pages_total"},
    Column{"reads", "r/s", Shown::kRate, "rpc_reads_total fs_reads_total"},
    Column{"reads", "bytes", Shown::kPages, "rpc_read_pages_total+fs_read_bytes_total"},
    Column{"reads", "p50", Shown::kMedian, "rpc_read fs_read"},
    Column{"reads", "p99", Shown::kP99, "rpc_read fs_read"},
    Column{"writes", "w/s", Shown::kRate, "fs_writes_total"},
    Column{"writes", "bytes", Shown::kBytes, "fs_write_bytes_total"},
    Column{"writes", "p50", Shown::kMedian, "fs_write"},
    Column{"writes", "p99", Shown::kP99, "fs_write"},
    Column{"metadata", "m/s", Shown::kRate, "fs_metadata_count"},
    Column{"metadata", "p50", Shown::kMedian, "fs_metadata"},
    Column{"metadata", "p99", Shown::kP99, "fs_metadata"},
    Column{"tier", "in/s", Shown::kRate, "promotions_total"},
    Column{"tier", "out/s", Shown::kRate, "evictions_total"},
    Column{"SSD", "read", Shown::kBytes, "ssd_read_bytes_total"},
    Column{"SSD", "write", Shown::kBytes, "ssd_write_bytes_total"},
};

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return words;
}

// A counter that fell has been started again.
uint64_t Growth(uint64_t before, uint64_t now) { return now >= before ? now - before : now; }

class Interval {
 public:
  Interval(const Counted& before, const Counted& now, double seconds) : before_(before), now_(now), seconds_(seconds) {}

  std::string Show(const Column& column) const {
    switch (column.shown) {
      case Shown::kRate:
        return ShortCount(Rate(column.of));
      case Shown::kBytes:
        return ShortBytes(Rate(column.of));
      case Shown::kPages: {
        const size_t plus = column.of.find('+');
        const auto pages = Rate(column.of.substr(0, plus));
        const auto bytes = Rate(column.of.substr(plus + 1));
        return ShortBytes(pages || bytes ? std::optional(pages.value_or(0) * kPageBytes + bytes.value_or(0))
                                         : std::nullopt);
      }
      case Shown::kShare:
        return Share(column.of);
      case Shown::kMedian:
        return Percentile(column.of, 0.5);
      case Shown::kP99:
        return Percentile(column.of, 0.99);
    }
    return "-";
  }

 private:
  // Of all that are there; nothing when none is.
  std::optional<double> Rate(std::string_view names) const {
    std::optional<double> sum;
    for (const std::string_view name : Words(names)) {
      if (const auto growth = GrowthOf(name); growth && seconds_ > 0) {
        sum = sum.value_or(0) + static_cast<double>(*growth) / seconds_;
      }
    }
    return sum;
  }

  std::optional<uint64_t> GrowthOf(std::string_view name) const {
    const auto now = now_.metrics.find(std::string(name));
    if (now == now_.metrics.end()) {
      return std::nullopt;
    }
    const auto before = before_.metrics.find(now->first);
    return Growth(before == before_.metrics.end() ? 0 : before->second, now->second);
  }

  std::string Share(std::string_view names) const {
    const std::string_view first = names.substr(0, names.find(' '));
    const double all = Rate(names).value_or(0);
    return all > 0 ? fmt::format("{:.0f}", 100 * Rate(first).value_or(0) / all) : "-";
  }

  std::string Percentile(std::string_view names, double fraction) const {
    Buckets grown;
    for (const std::string_view name : Words(names)) {
      const auto now = now_.histograms.find(std::string(name));
      if (now == now_.histograms.end()) {
        continue;
      }
      const auto before = before_.histograms.find(now->first);
      for (const auto& [bucket, count] : now->second) {
        const bool known = before != before_.histograms.end() && before->second.contains(bucket);
        if (const uint64_t growth = Growth(known ? before->second.at(bucket) : 0, count); growth > 0) {
          grown[bucket] += growth;
        }
      }
    }
    return ShortTime(grown.empty() ? std::nullopt : std::optional(PercentileOf(grown, fraction)));
  }

  const Counted& before_;
  const Counted& now_;
  const double seconds_;
};

std::span<const Column> ColumnsOf(const StatsSample& sample) {
  return sample.of_mount ? std::span<const Column>(kOfMount) : std::span<const Column>(kOfServer);
}

// The first of a group stands apart from the one before.
size_t WidthOf(std::span<const Column> columns, size_t index) {
  constexpr size_t kWidth = 6;
  return kWidth + (index > 0 && columns[index].group != columns[index - 1].group ? 1 : 0);
}

double Seconds(const StatsSample& before, const StatsSample& now) {
  return std::chrono::duration<double>(now.when - before.when).count();
}

// " -- reads ---" above the columns of each group.
std::string GroupLine(std::span<const Column> columns) {
  std::string line;
  for (size_t first = 0; first < columns.size();) {
    size_t width = 0;
    size_t next = first;
    while (next < columns.size() && columns[next].group == columns[first].group) {
      width += WidthOf(columns, next++);
    }
    const size_t gap = first > 0 ? 2 : 1;
    line += std::string(gap, ' ') + fmt::format("{:-^{}}", fmt::format(" {} ", columns[first].group), width - gap);
    first = next;
  }
  return line;
}

// Three digits of a number, and a unit.
std::string Scaled(double value, double step, std::span<const char* const> units) {
  size_t unit = 0;
  while (value >= step - 0.5 && unit + 1 < units.size()) {
    value /= step;
    unit++;
  }
  return fmt::format("{:.{}f}{}", value, value < 9.95 ? 1 : 0, units[unit]);
}

using fs::client::SessionStatus;
using fs::client::SessionTraffic;

SessionTraffic Grown(const SessionTraffic& before, const SessionTraffic& now) {
  return {.reads = Growth(before.reads, now.reads),
          .read_bytes = Growth(before.read_bytes, now.read_bytes),
          .hit_pages = Growth(before.hit_pages, now.hit_pages),
          .writes = Growth(before.writes, now.writes),
          .write_bytes = Growth(before.write_bytes, now.write_bytes),
          .metadata = Growth(before.metadata, now.metadata)};
}

uint64_t Requests(const SessionTraffic& traffic) { return traffic.reads + traffic.writes + traffic.metadata; }

std::string SessionLine(const SessionStatus& session, const SessionTraffic& grown, double seconds) {
  const auto rate = [seconds](uint64_t count) { return std::optional(static_cast<double>(count) / seconds); };
  const std::string client =
      session.from.empty() ? fmt::format("{}, pid {}", session.program, session.pid) : session.from;
  return fmt::format("{:>6}  {:<50}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}\n", session.id, client,
                     ShortCount(rate(grown.hit_pages)), ShortCount(rate(grown.reads)),
                     ShortBytes(rate(grown.read_bytes)), ShortCount(rate(grown.writes)),
                     ShortBytes(rate(grown.write_bytes)), ShortCount(rate(grown.metadata)));
}

}  // namespace

std::string ShortCount(std::optional<double> value) {
  if (!value) {
    return "-";
  }
  constexpr const char* kUnits[] = {"k", "M", "G", "T"};
  return *value < 99'999.5 ? fmt::format("{:.0f}", *value) : Scaled(*value / 1000, 1000, kUnits);
}

std::string ShortBytes(std::optional<double> value) {
  if (!value) {
    return "-";
  }
  constexpr const char* kUnits[] = {"K", "M", "G", "T"};
  return *value == 0 ? "0" : Scaled(*value / 1024, 1024, kUnits);
}

std::string ShortTime(std::optional<uint64_t> nanoseconds) {
  if (!nanoseconds) {
    return "-";
  }
  const auto value = static_cast<double>(*nanoseconds);
  if (value < 999.5e6) {
    constexpr const char* kUnits[] = {"us", "ms"};
    return Scaled(value / 1000, 1000, kUnits);
  }
  return fmt::format("{:.{}f}s", value / 1e9, value < 9.95e9 ? 1 : 0);
}

std::string StatsHeader(const StatsSample& sample) {
  const std::span<const Column> columns = ColumnsOf(sample);
  std::string line;
  for (size_t i = 0; i < columns.size(); i++) {
    line += fmt::format("{:>{}}", columns[i].title, WidthOf(columns, i));
  }
  return GroupLine(columns) + "\n" + line + (sample.of_mount ? "  link" : "") + "\n";
}

std::string StatsLine(const StatsSample& before, const StatsSample& now) {
  const std::span<const Column> columns = ColumnsOf(now);
  const Interval interval(now.of_mount ? before.mount : before.server, now.of_mount ? now.mount : now.server,
                          Seconds(before, now));
  std::string line;
  for (size_t i = 0; i < columns.size(); i++) {
    line += fmt::format("{:>{}}", interval.Show(columns[i]), WidthOf(columns, i));
  }
  return line + (now.of_mount ? "  " + InAWord(ConnectionOf(now.mount.metrics)) : "") + "\n";
}

std::string SessionsHeader() {
  return fmt::format("{:>6}  {:<50}{:>7}{:>7}{:>7}{:>7}{:>7}{:>7}\n", "id", "session", "hits/s", "r/s", "bytes", "w/s",
                     "bytes", "m/s");
}

std::string SessionsLines(const StatsSample& before, const StatsSample& now) {
  std::map<uint64_t, SessionTraffic> known;
  for (const SessionStatus& session : before.sessions) {
    known[session.id] = session.traffic;
  }
  std::vector<std::tuple<uint64_t, uint64_t, std::string>> busy;  // requests, pages, the line
  size_t idle = 0;
  for (const SessionStatus& session : now.sessions) {
    const SessionTraffic grown = Grown(known[session.id], session.traffic);
    if (Requests(grown) == 0 && grown.hit_pages == 0) {
      idle++;
    } else {
      busy.emplace_back(Requests(grown), grown.hit_pages, SessionLine(session, grown, Seconds(before, now)));
    }
  }
  std::sort(busy.begin(), busy.end(), std::greater<>());
  std::string text;
  for (const auto& [requests, pages, line] : busy) {
    text += line;
  }
  return text + (idle > 0 ? fmt::format("{:>6}  idle\n", idle) : "");
}

}  // namespace termfs::mount

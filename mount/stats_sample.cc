// SPDX-License-Identifier: Apache-2.0
#include "mount/stats_sample.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>

#include "fs/client/admin.h"
#include "mount/command.h"
#include "mount/connection.h"
#include "mount/json.h"
#include "mount/mount_point.h"

namespace termfs::mount {
namespace {

// A column of the live view: a rate of the first side that the sample has, summed over the named counters.
struct Column {
  std::string_view title;
  std::string_view of_mount;   // counters of the mount, as the next; "" when it has none
  std::string_view of_server;  // counters of the server, separated by spaces
};

constexpr std::array<Column, 8> kColumns = {{
    {"ops/s", "fuse_requests_total", "fs_reads_total fs_writes_total fs_metadata_total"},
    {"hits/s", "read_hit_pages_total", "told_hit_pages_total"},
    {"bitmap/s", "absent_by_bitmap_pages_total", ""},
    {"magic/s", "absent_by_pattern_pages_total validation_misses_total", ""},
    {"rpc/s", "rpc_read_pages_total", "rpc_read_pages_total"},
    {"promo/s", "", "promotions_total"},
    {"evict/s", "", "evictions_total"},
    {"ssd-rd/s", "", "ssd_reads_total"},
}};

std::optional<uint64_t> Value(const Metrics& metrics, std::string_view name) {
  const auto found = metrics.find(std::string(name));
  return found == metrics.end() ? std::nullopt : std::optional(found->second);
}

// The growth of all the counters named, absent when none is there. A counter that fell was started anew.
std::optional<uint64_t> Growth(const Metrics& before, const Metrics& now, std::string_view names) {
  std::optional<uint64_t> sum;
  while (!names.empty()) {
    const size_t space = names.find(' ');
    const std::string_view name = names.substr(0, space);
    if (const auto value = Value(now, name)) {
      const uint64_t old = Value(before, name).value_or(0);
      sum = sum.value_or(0) + (*value >= old ? *value - old : *value);
    }
    names = space == std::string_view::npos ? std::string_view() : names.substr(space + 1);
  }
  return sum;
}

std::string FormatCount(std::optional<double> value) {
  if (!value) {
    return "-";
  }
  return *value < 99'999.5 ? fmt::format("{:.0f}", *value) : fmt::format("{:.0f}k", *value / 1000);
}

std::string FormatNanoseconds(std::optional<uint64_t> value) {
  if (!value || *value == 0) {
    return "-";
  }
  const auto nanoseconds = static_cast<double>(*value);
  if (nanoseconds < 1e6) {
    return fmt::format("{:.1f}us", nanoseconds / 1e3);
  }
  return nanoseconds < 1e9 ? fmt::format("{:.1f}ms", nanoseconds / 1e6) : fmt::format("{:.1f}s", nanoseconds / 1e9);
}

Metrics ToMap(const std::vector<MetricValue>& values) {
  Metrics metrics;
  for (const MetricValue& value : values) {
    metrics[value.name] = value.value;
  }
  return metrics;
}

void Members(JsonWriter& json, std::string_view name, const Metrics& metrics) {
  json.Key(name).BeginObject();
  for (const auto& [key, value] : metrics) {
    json.Member(key, value);
  }
  json.EndObject();
}

}  // namespace

Result<StatsSample> TakeSample(const std::string& source, const std::string& secret, Status& server_error) {
  StatsSample sample;
  fs::client::ServerAddress address;
  const bool remote = fs::client::MeansHost(source);
  Result<MountDescription> mount = remote ? Result<MountDescription>(Status::Error(ENOENT, "")) : DescribeMount(source);
  if (mount.ok()) {
    sample.of_mount = true;
    sample.mount = std::move(mount->metrics);
    sample.fuse = mount->fuse;
    sample.libfuse = mount->libfuse;
    ASSIGN_OR_RETURN(address, mount->server());
  } else if (mount.status().code() == EINVAL || mount.status().code() == ENOENT) {
    ASSIGN_OR_RETURN(address, ServedAddress(source, secret));
  } else {
    return std::move(mount).status();
  }
  Result<std::vector<MetricValue>> server = fs::client::GetMetrics(address);
  if (server.ok()) {
    sample.of_server = true;
    sample.server = ToMap(*server);
  } else if (!sample.of_mount) {
    return std::move(server).status();
  }
  server_error = server.status();
  sample.when = std::chrono::steady_clock::now();
  sample.unix_ms = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  return sample;
}

std::string StatsHeader() {
  std::string line;
  for (const Column& column : kColumns) {
    line += fmt::format("{:>9}", column.title);
  }
  return line + fmt::format("{:>9}{:>9}{:>14}{:>11}\n", "read-p50", "p99", "link", "fuse");
}

std::string StatsLine(const StatsSample& before, const StatsSample& now) {
  const double seconds = std::chrono::duration<double>(now.when - before.when).count();
  std::string line;
  for (const Column& column : kColumns) {
    std::optional<uint64_t> growth;
    if (now.of_mount && !column.of_mount.empty()) {
      growth = Growth(before.mount, now.mount, column.of_mount);
    } else if (now.of_server && !column.of_server.empty()) {
      growth = Growth(before.server, now.server, column.of_server);
    }
    line += fmt::format(
        "{:>9}",
        FormatCount(growth && seconds > 0 ? std::optional(static_cast<double>(*growth) / seconds) : std::nullopt));
  }
  const Metrics& latencies = now.of_mount ? now.mount : now.server;
  const std::string_view histogram = now.of_mount ? "fuse_read" : "rpc_read";
  for (const std::string_view percentile : {"_p50_ns", "_p99_ns"}) {
    line += fmt::format("{:>9}", FormatNanoseconds(Value(latencies, fmt::format("{}{}", histogram, percentile))));
  }
  return line + fmt::format("{:>14}{:>11}\n", now.of_mount ? InAWord(ConnectionOf(now.mount)) : "-",
                            now.fuse.empty() ? "-" : now.fuse);
}

std::string StatsJson(const StatsSample& sample) {
  JsonWriter json;
  json.BeginObject().Member("time_ms", sample.unix_ms);
  if (sample.of_mount) {
    json.Member("fuse", sample.fuse).Member("libfuse", sample.libfuse);
    AddMember(json, ConnectionOf(sample.mount));
    Members(json, "mount", sample.mount);
  }
  if (sample.of_server) {
    Members(json, "server", sample.server);
  }
  json.EndObject();
  return json.text() + "\n";
}

}  // namespace termfs::mount

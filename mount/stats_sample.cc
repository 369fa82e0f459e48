// SPDX-License-Identifier: Apache-2.0
#include "mount/stats_sample.h"

#include <unistd.h>

#include <string_view>
#include <utility>

#include "mount/command.h"
#include "mount/connection.h"
#include "mount/json.h"
#include "mount/mount_point.h"

namespace termfs::mount {
namespace {

Counted ToCounted(std::vector<MetricValue> values) {
  constexpr std::string_view kCount = "_count";
  Counted counted;
  for (MetricValue& value : values) {
    counted.metrics[value.name] = value.value;
    if (!value.buckets.empty() && value.name.ends_with(kCount)) {
      counted.histograms[value.name.substr(0, value.name.size() - kCount.size())] = std::move(value.buckets);
    }
  }
  return counted;
}

// Those of clients: the connection that asks is none of them.
Result<std::vector<fs::client::SessionStatus>> SessionsOf(const fs::client::ServerAddress& address) {
  ASSIGN_OR_RETURN(fs::client::VolumeStatus status, fs::client::GetStatus(address));
  std::erase_if(status.sessions, [](const auto& session) { return session.program == fs::client::kAdministrator; });
  return std::move(status.sessions);
}

Status AskServer(const StatsSource& source, const fs::client::ServerAddress& address, StatsSample& sample) {
  ASSIGN_OR_RETURN(auto metrics, fs::client::GetMetrics(address));
  if (source.sessions) {
    ASSIGN_OR_RETURN(sample.sessions, SessionsOf(address));
    sample.of_sessions = true;
  }
  sample.of_server = true;
  sample.server = ToCounted(std::move(metrics));
  return Status::Ok();
}

void AddCounted(JsonWriter& json, std::string_view name, const Counted& counted) {
  json.Key(name).BeginObject();
  for (const auto& [key, value] : counted.metrics) {
    json.Member(key, value);
  }
  json.EndObject();
  json.Key(std::string(name) + "_histograms").BeginObject();
  for (const auto& [key, buckets] : counted.histograms) {
    json.Key(key).BeginArray();
    for (const auto& [bucket, count] : buckets) {
      json.BeginArray().Number(Histogram::UpperBound(static_cast<int>(bucket))).Number(count).EndArray();
    }
    json.EndArray();
  }
  json.EndObject();
}

void AddSessions(JsonWriter& json, const std::vector<fs::client::SessionStatus>& sessions) {
  json.Key("sessions").BeginArray();
  for (const fs::client::SessionStatus& session : sessions) {
    json.BeginObject()
        .Member("id", session.id)
        .Member("program", session.program)
        .Member("from", session.from)
        .Member("uid", uint64_t{session.uid})
        .Member("pid", uint64_t{session.pid})
        .Member("seconds", session.seconds)
        .Member("reads_total", session.traffic.reads)
        .Member("read_bytes_total", session.traffic.read_bytes)
        .Member("hit_pages_total", session.traffic.hit_pages)
        .Member("writes_total", session.traffic.writes)
        .Member("write_bytes_total", session.traffic.write_bytes)
        .Member("metadata_total", session.traffic.metadata)
        .EndObject();
  }
  json.EndArray();
}

}  // namespace

Result<StatsSample> TakeSample(const StatsSource& source, Status& server_error) {
  StatsSample sample;
  fs::client::ServerAddress address;
  const bool remote = fs::client::MeansHost(source.place);
  Result<MountDescription> mount =
      remote ? Result<MountDescription>(Status::Error(ENOENT, "a host")) : DescribeMount(source.place);
  if (mount.ok()) {
    sample.of_mount = true;
    sample.mount = {.metrics = std::move(mount->metrics), .histograms = std::move(mount->histograms)};
    sample.fuse = mount->fuse;
    sample.libfuse = mount->libfuse;
    ASSIGN_OR_RETURN(address, mount->server());
  } else if (mount.status().code() == EINVAL || mount.status().code() == ENOENT) {
    ASSIGN_OR_RETURN(address, ServedAddress(source.place, source.secret));
  } else {
    return std::move(mount).status();
  }
  server_error = sample.of_mount && !source.server ? Status::Ok() : AskServer(source, address, sample);
  if (!server_error.ok() && (!sample.of_mount || source.sessions)) {
    return server_error;
  }
  sample.when = std::chrono::steady_clock::now();
  sample.unix_ms = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  return sample;
}

std::string StatsJson(const StatsSample& sample) {
  JsonWriter json;
  json.BeginObject().Member("time_ms", sample.unix_ms);
  if (sample.of_mount) {
    json.Member("fuse", sample.fuse).Member("libfuse", sample.libfuse);
    AddMember(json, ConnectionOf(sample.mount.metrics));
    AddCounted(json, "mount", sample.mount);
  }
  if (sample.of_server) {
    AddCounted(json, "server", sample.server);
  }
  if (sample.of_sessions) {
    AddSessions(json, sample.sessions);
  }
  json.EndObject();
  return json.text() + "\n";
}

}  // namespace termfs::mount

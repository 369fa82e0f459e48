// SPDX-License-Identifier: Apache-2.0
//
// An administrator needs the control channel only: no queue pair, no memory.
#include "fs/client/admin.h"

#include <chrono>

#include "fs/proto/codec.h"
#include "fs/proto/opcodes.h"
#include "tlib/client/control_client.h"
#include "tlib/client/segment_size.h"

namespace termfs::fs::client {

namespace {

constexpr std::chrono::seconds kPatience{10};
constexpr std::chrono::seconds kPatienceToChange{60};  // a new DRAM ratio is in force only when pages have moved

Result<std::vector<std::byte>> Ask(const tlib::ServerAddress& address, Opcode opcode, std::span<const std::byte> body) {
  // Small segments get through any path, and little is said.
  ASSIGN_OR_RETURN(const auto control,
                   tlib::client::ControlClient::Connect(address, tlib::client::SegmentSize::kSmall));
  const auto deadline = std::chrono::steady_clock::now() + (opcode == kAdminSet ? kPatienceToChange : kPatience);
  tlib::wire::HelloT hello;
  hello.version = tlib::kControlVersion;
  hello.program = kAdministrator;
  RETURN_IF_ERROR(control->Call<tlib::wire::WelcomeT>(std::move(hello), deadline).status());
  tlib::wire::AdminT request;
  request.opcode = opcode;
  const auto* bytes = reinterpret_cast<const uint8_t*>(body.data());
  request.body.assign(bytes, bytes + body.size());
  const auto reply = control->Call<tlib::wire::AdminReplyT>(std::move(request), deadline);
  // So that the server does not take it for lost; one that is gone itself does not mind.
  [[maybe_unused]] const Status said = control->Call<tlib::wire::DoneT>(tlib::wire::GoodbyeT(), deadline).status();
  RETURN_IF_ERROR(reply.status());
  const auto* answer = reinterpret_cast<const std::byte*>(reply->body.data());
  return std::vector<std::byte>(answer, answer + reply->body.size());
}

// Null: of a server that does not count it.
SessionTraffic FromWireTraffic(const wire::SessionTrafficT* traffic) {
  if (traffic == nullptr) {
    return {};
  }
  return {.reads = traffic->reads,
          .read_bytes = traffic->read_bytes,
          .hit_pages = traffic->hit_pages,
          .writes = traffic->writes,
          .write_bytes = traffic->write_bytes,
          .metadata = traffic->metadata};
}

SessionStatus FromWireStatus(const wire::SessionStatusT& s) {
  return {.id = s.id,
          .program = s.program,
          .transport = s.transport,
          .from = s.from,
          .bitmap = s.bitmap,
          .reads = s.reads,
          .uid = s.uid,
          .pid = s.pid,
          .queue_pairs = s.queue_pairs,
          .seconds = s.seconds,
          .traffic = FromWireTraffic(s.traffic.get())};
}

}  // namespace

Result<VolumeStatus> GetStatus(const tlib::ServerAddress& address) {
  ASSIGN_OR_RETURN(const auto answer, Ask(address, kAdminStatus, {}));
  ASSIGN_OR_RETURN(const auto s, Decode<wire::Status>(answer));
  VolumeStatus status{.uuid = s.uuid,
                      .version = s.version,
                      .format = s.format,
                      .kind = s.kind,
                      .transport = s.transport,
                      .health = s.health,
                      .pid = s.pid,
                      .uptime_seconds = s.uptime_seconds,
                      .dram_ratio = s.dram_ratio,
                      .tier_bytes = s.tier_bytes,
                      .tier_used_bytes = s.tier_used_bytes,
                      .dirty_bytes = s.dirty_bytes,
                      .metadata_memory_bytes = s.metadata_memory_bytes,
                      .metadata_used_bytes = s.metadata_used_bytes,
                      .metadata_table_bytes = s.metadata_table_bytes,
                      .changing = s.changing,
                      .change_failure = s.change_failure,
                      .space = {},
                      .capacity_target_bytes = 0,
                      .capacity_to_move_bytes = 0,
                      .capacity_changing = false,
                      .capacity_failure = {},
                      .sessions = {}};
  if (s.space != nullptr) {
    status.space = {.capacity_bytes = s.space->capacity,
                    .free_bytes = s.space->free,
                    .inodes_used = s.space->inodes_used,
                    .inodes_free = s.space->inodes_free};
    status.capacity_target_bytes = s.space->target;
    status.capacity_to_move_bytes = s.space->to_move;
    status.capacity_changing = s.space->changing;
    status.capacity_failure = s.space->failure;
  }
  for (const auto& session : s.sessions) {
    status.sessions.push_back(FromWireStatus(*session));
  }
  return status;
}

Result<std::vector<MetricValue>> GetMetrics(const tlib::ServerAddress& address) {
  ASSIGN_OR_RETURN(const auto answer, Ask(address, kAdminMetrics, {}));
  ASSIGN_OR_RETURN(const auto metrics, Decode<wire::Metrics>(answer));
  std::vector<MetricValue> values;
  values.reserve(metrics.metrics.size());
  for (const auto& metric : metrics.metrics) {
    MetricValue value{metric->name, metric->value};
    for (size_t i = 0; i + 1 < metric->buckets.size(); i += 2) {
      if (metric->buckets[i] < Histogram::kBuckets) {
        value.buckets[static_cast<uint32_t>(metric->buckets[i])] = metric->buckets[i + 1];
      }
    }
    values.push_back(std::move(value));
  }
  return values;
}

Result<std::vector<QuotaStatus>> ListQuotas(const tlib::ServerAddress& address) {
  ASSIGN_OR_RETURN(const auto answer, Ask(address, kAdminQuotas, {}));
  return ParseQuotas(answer);
}

Status ChangeSetting(const tlib::ServerAddress& address, const std::string& key, const std::string& value) {
  wire::SettingT setting;
  setting.key = key;
  setting.value = value;
  return Ask(address, kAdminSet, Encode<wire::Setting>(setting)).status();
}

}  // namespace termfs::fs::client

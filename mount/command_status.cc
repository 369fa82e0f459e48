// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <iterator>

#include "fs/client/admin.h"
#include "mount/command.h"
#include "mount/connection.h"
#include "mount/json.h"
#include "mount/mount_point.h"
#include "mount/size.h"

namespace termfs::mount {
namespace {

using fs::client::ServerAddress;
using fs::client::SessionStatus;
using fs::client::VolumeStatus;

constexpr std::chrono::seconds kMountPatience{2};
constexpr uint64_t kMinute = 60;
constexpr uint64_t kHour = 60 * kMinute;
constexpr uint64_t kDay = 24 * kHour;

std::string FormatTime(uint64_t seconds) {
  if (seconds < 2 * kMinute) {
    return fmt::format("{} s", seconds);
  }
  if (seconds < 2 * kHour) {
    return fmt::format("{} min", seconds / kMinute);
  }
  return seconds < 2 * kDay ? fmt::format("{} h", seconds / kHour) : fmt::format("{} days", seconds / kDay);
}

using Mounts = std::vector<std::pair<std::string, MountDescription>>;

// The mount on this host that the session is of; null when there is none.
const std::pair<std::string, MountDescription>* MountOf(const Mounts& mounts, const SessionStatus& session) {
  for (const auto& mount : mounts) {
    if (static_cast<uint32_t>(mount.second.pid) == session.pid) {
      return &mount;
    }
  }
  return nullptr;
}

std::string ForPeople(const std::string& address, const VolumeStatus& status, const Mounts& mounts) {
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "volume     {}  {} (format {})\n", address, status.uuid, status.format);
  fmt::format_to(out, "health     {}\n", status.health);
  fmt::format_to(out, "server     termfs {}{}, up {}\n", status.version,
                 status.pid == 0 ? "" : fmt::format(" (pid {})", status.pid), FormatTime(status.uptime_seconds));
  fmt::format_to(out, "transport  {}, memory region {}\n", status.transport, status.kind);
  fmt::format_to(out, "space      {} of {} free, {}\n", FormatSize(status.space.free_bytes),
                 FormatSize(status.space.capacity_bytes), FormatCount(status.space.inodes_used, "inode", "inodes"));
  if (status.capacity_changing) {
    fmt::format_to(out, "capacity   on its way to {}, {} to be moved\n", FormatSize(status.capacity_target_bytes),
                   FormatSize(status.capacity_to_move_bytes));
  } else if (!status.capacity_failure.empty()) {
    fmt::format_to(out, "capacity   the last change failed: {}\n", status.capacity_failure);
  }
  fmt::format_to(out, "DRAM tier  {} (ratio {}), {} used, {} dirty\n", FormatSize(status.tier_bytes), status.dram_ratio,
                 FormatSize(status.tier_used_bytes), FormatSize(status.dirty_bytes));
  if (status.metadata_memory_bytes != 0) {  // 0: a server that does not say
    fmt::format_to(out, "metadata   {} on the SSD, {} of at most {} in memory used\n",
                   FormatSize(status.metadata_table_bytes), FormatSize(status.metadata_used_bytes),
                   FormatSize(status.metadata_memory_bytes));
  }
  fmt::format_to(out, "sessions   {}\n", status.sessions.size());
  for (const SessionStatus& session : status.sessions) {
    const std::string from =
        session.from.empty() ? fmt::format("pid {}, uid {}", session.pid, session.uid) : "from " + session.from;
    const std::string reads = session.reads == "validated" ? "validated READs" : "bitmap " + session.bitmap;
    fmt::format_to(out, "  {:<4} {} ({}), {}, {}, {}, for {}\n", session.id, session.program, from, session.transport,
                   reads, FormatCount(session.queue_pairs, "queue pair", "queue pairs"), FormatTime(session.seconds));
    if (const auto* mount = MountOf(mounts, session); mount != nullptr) {
      fmt::format_to(out, "       on {}, fuse: {}, libfuse {}\n", mount->first, mount->second.fuse,
                     mount->second.libfuse);
    }
  }
  return text;
}

// The members of the object that describes the volume.
void AddMembers(JsonWriter& json, const VolumeStatus& status, const Mounts& mounts) {
  json.Member("uuid", status.uuid)
      .Member("health", status.health)
      .Member("version", status.version)
      .Member("pid", uint64_t{status.pid})
      .Member("format", uint64_t{status.format})
      .Member("kind", status.kind)
      .Member("transport", status.transport)
      .Member("uptime_seconds", status.uptime_seconds)
      .Member("dram_ratio", status.dram_ratio)
      .Member("tier_bytes", status.tier_bytes)
      .Member("tier_used_bytes", status.tier_used_bytes)
      .Member("dirty_bytes", status.dirty_bytes)
      .Member("metadata_memory_bytes", status.metadata_memory_bytes)
      .Member("metadata_used_bytes", status.metadata_used_bytes)
      .Member("metadata_table_bytes", status.metadata_table_bytes)
      .Member("capacity_bytes", status.space.capacity_bytes)
      .Member("capacity_target_bytes", status.capacity_target_bytes)
      .Member("capacity_to_move_bytes", status.capacity_to_move_bytes)
      .Member("capacity_changing", uint64_t{status.capacity_changing})
      .Member("capacity_failure", status.capacity_failure)
      .Member("free_bytes", status.space.free_bytes)
      .Member("inodes_used", status.space.inodes_used)
      .Member("inodes_free", status.space.inodes_free)
      .Key("sessions")
      .BeginArray();
  for (const SessionStatus& session : status.sessions) {
    json.BeginObject()
        .Member("id", session.id)
        .Member("program", session.program)
        .Member("transport", session.transport)
        .Member("bitmap", session.bitmap)
        .Member("reads", session.reads)
        .Member("uid", uint64_t{session.uid})
        .Member("from", session.from)
        .Member("pid", uint64_t{session.pid})
        .Member("queue_pairs", uint64_t{session.queue_pairs})
        .Member("seconds", session.seconds);
    if (const auto* mount = MountOf(mounts, session); mount != nullptr) {
      json.Member("mountpoint", mount->first)
          .Member("fuse", mount->second.fuse)
          .Member("libfuse", mount->second.libfuse);
    }
    json.EndObject();
  }
  json.EndArray();
}

// Asks the server. The connection that asks is none of those that are asked for.
Result<VolumeStatus> AskServer(const ServerAddress& address) {
  ASSIGN_OR_RETURN(VolumeStatus status, fs::client::GetStatus(address));
  std::erase_if(status.sessions, [](const SessionStatus& s) {
    return s.from.empty() ? s.pid == static_cast<uint32_t>(getpid()) : s.program == fs::client::kAdministrator;
  });
  return status;
}

int ShowVolume(const ServerAddress& address, bool as_json) {
  const Result<VolumeStatus> status = AskServer(address);
  if (!status.ok()) {
    return Failed(status.status());
  }
  const Result<Mounts> mounts = address.remote() ? Mounts() : DescribeMountsOf(address.directory, kMountPatience);
  if (!mounts.ok()) {
    return Failed(mounts.status());
  }
  if (!as_json) {
    return Print(ForPeople(ToString(address), *status, *mounts));
  }
  JsonWriter json;
  json.BeginObject();
  AddMembers(json, *status, *mounts);
  json.EndObject();
  return Print(json.text() + "\n");
}

// A mount can always be asked; its server perhaps not.
int ShowMount(const std::string& path, const MountDescription& mount, bool as_json) {
  const Connection connection = ConnectionOf(mount.metrics);
  const Result<ServerAddress> address = mount.server();
  const Result<VolumeStatus> status = address.ok() ? AskServer(*address) : address.status();
  const Mounts mounts = {{path, mount}};
  std::string text;
  if (as_json) {
    JsonWriter json;
    json.BeginObject().Key("mount").BeginObject();
    json.Member("mountpoint", path)
        .Member("pid", static_cast<uint64_t>(mount.pid))
        .Member("address", mount.address)
        .Member("transport", mount.transport)
        .Member("fuse", mount.fuse)
        .Member("libfuse", mount.libfuse);
    AddMember(json, connection);
    json.EndObject();
    if (status.ok()) {
      json.Key("server").BeginObject();
      AddMembers(json, *status, mounts);
      json.EndObject();
    }
    json.EndObject();
    text = json.text() + "\n";
  } else {
    text = fmt::format("mount      {} (pid {}), fuse: {}, libfuse {}\nconnection {}, {}\n", path, mount.pid, mount.fuse,
                       mount.libfuse, ForPeople(connection), mount.transport);
    text += status.ok() ? ForPeople(mount.address, *status, mounts) : "";
  }
  const int printed = Print(text);
  return status.ok() || printed != kExitOk ? printed : Failed(status.status());
}

}  // namespace

int RunStatus(const StatusArguments& arguments) {
  if (fs::client::MeansHost(arguments.address)) {
    const auto address = ServedAddress(arguments.address, arguments.secret);
    return address.ok() ? ShowVolume(*address, arguments.json) : BadUsage("status", address.status());
  }
  const Result<MountDescription> mount = DescribeMount(arguments.address);
  if (mount.ok()) {
    const Result<std::string> path = AbsolutePath(arguments.address);
    return path.ok() ? ShowMount(*path, *mount, arguments.json) : Failed(path.status());
  }
  if (mount.status().code() != EINVAL && mount.status().code() != ENOENT) {
    return Failed(mount.status());
  }
  const Result<std::string> directory = VolumePath(arguments.address);
  return directory.ok() ? ShowVolume(*directory, arguments.json) : Failed(directory.status());
}

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#include <array>
#include <chrono>
#include <iterator>
#include <limits>
#include <optional>
#include <thread>

#include "fs/client/admin.h"
#include "fs/client/quota.h"
#include "mount/command.h"
#include "mount/json.h"
#include "mount/printable.h"
#include "mount/quota_count.h"
#include "mount/size.h"

namespace termfs::mount {
namespace {

using fs::client::QuotaStatus;

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPeriod{100};     // between two looks whether all is counted
constexpr std::chrono::seconds kFailurePatience{10};  // with a count that fails
constexpr char kOrNone[] = "; 'none' removes the limit";

struct Limits {
  std::optional<uint64_t> bytes;
  std::optional<uint64_t> inodes;
};

Status ParseLimit(const std::string& text, Limits& limits) {
  const size_t equals = std::min(text.find('='), text.size());
  const std::string key = text.substr(0, equals);
  const std::string value = equals == text.size() ? "" : text.substr(equals + 1);
  if ((key != "bytes" && key != "inodes") || value.empty()) {
    return Status::Error(EINVAL, "'" + text + "': a limit is bytes=SIZE or inodes=N, such as bytes=10G");
  }
  auto& limit = key == "bytes" ? limits.bytes : limits.inodes;
  if (value == "none") {
    limit = 0;
    return Status::Ok();
  }
  Result<uint64_t> number = key == "bytes"
                                ? ParseSize(value)
                                : ParseCount(value, 1, static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (!number.ok()) {
    return Status::Error(EINVAL, key + ": " + std::string(number.status().message()) + kOrNone);
  }
  if (key == "bytes" && *number < 4096) {
    return Status::Error(EINVAL, std::string("bytes: a limit is at least 4096") + kOrNone);
  }
  limit = *number;
  return Status::Ok();
}

// What the system says of an attribute is not what it means for a quota.
Status Explain(const std::string& path) {
  switch (const int code = errno) {
    case ENODATA:
      return Status::Error(code, path + " is in no directory with a quota");
    case EOPNOTSUPP:
      return Status::Error(code, path + " is not in a termfs mount that knows quotas");
    case EPERM:
      return Status::Error(code, path + ": only root sets quotas");
    case EINVAL:
      return Status::Error(code, path + ": a directory above or below it has a quota, and quotas do not nest");
    default:
      return ErrnoStatus(path);
  }
}

// Other file systems may take an attribute of any name.
Status CheckMounted(const std::string& path) {
  constexpr decltype(statfs::f_type) kFuse = 0x65735546;
  struct statfs found {};
  if (statfs(path.c_str(), &found) != 0) {
    return ErrnoStatus(path);
  }
  return found.f_type == kFuse ? Status::Ok() : Status::Error(EINVAL, path + " is not in a termfs mount");
}

Result<QuotaStatus> QuotaOf(const std::string& path) {
  std::array<std::byte, 4096> value{};
  const ssize_t length = getxattr(path.c_str(), fs::kQuotaXattr, value.data(), value.size());
  if (length < 0) {
    return Explain(path);
  }
  return fs::client::ParseQuota(std::span(value).first(static_cast<size_t>(length)));
}

std::string OfLimit(const std::string& limit, bool limited) { return limited ? " of " + limit : ", no limit"; }

JsonWriter& AddMembers(JsonWriter& json, const QuotaStatus& quota) {
  return json.Member("root_inode", quota.root)
      .Member("bytes_limit", quota.bytes)
      .Member("bytes_used", quota.used_bytes)
      .Member("inodes_limit", quota.inodes)
      .Member("inodes_used", quota.used_inodes)
      .Member("counting", uint64_t{quota.counting})
      .Member("counting_failure", quota.failure);
}

std::string ListAsJson(const std::vector<QuotaStatus>& quotas) {
  JsonWriter json;
  json.BeginArray();
  for (const QuotaStatus& quota : quotas) {
    AddMembers(json.BeginObject().Member("path", quota.path), quota).EndObject();
  }
  json.EndArray();
  return json.text() + "\n";
}

std::string ListForPeople(const std::vector<QuotaStatus>& quotas) {
  std::string text = fmt::format("{:>10} {:>10} {:>5}{:>12} {:>12} {:>5}  {}\n", "space", "limit", "use", "inodes",
                                 "limit", "use", "path");
  const auto share = [](uint64_t used, uint64_t limit) {
    return limit == 0 ? "-" : fmt::format("{:.0f}%", 100.0 * static_cast<double>(used) / static_cast<double>(limit));
  };
  for (const QuotaStatus& quota : quotas) {
    text += fmt::format("{:>10} {:>10} {:>5}{:>12} {:>12} {:>5}  {}{}\n", FormatSize(quota.used_bytes),
                        quota.bytes == 0 ? "none" : FormatSize(quota.bytes), share(quota.used_bytes, quota.bytes),
                        quota.used_inodes, quota.inodes == 0 ? "none" : std::to_string(quota.inodes),
                        share(quota.used_inodes, quota.inodes),
                        quota.path.empty() ? "(removed, in use still)" : Printable(quota.path),
                        quota.counting ? " (being counted)" : "");
  }
  return text;
}

}  // namespace

Result<QuotaStatus> AwaitCount(const std::function<Result<QuotaStatus>()>& look, std::chrono::milliseconds patience) {
  std::optional<steady_clock::time_point> failing_since;
  while (true) {
    Result<QuotaStatus> quota = look();
    if (!quota.ok() || !quota->counting) {
      return quota;
    }
    const auto now = steady_clock::now();
    if (quota->failure.empty()) {
      failing_since.reset();
    } else if (now - failing_since.value_or(now) >= patience) {
      return Status::Error(EIO,
                           "the limits are in force, but what was there before cannot be counted: " + quota->failure +
                               "; the server tries it again, termfs quota get says when all is counted");
    } else if (!failing_since) {
      failing_since = now;
    }
    std::this_thread::sleep_for(kPeriod);
  }
}

int RunQuotaSet(const QuotaArguments& arguments) {
  Limits limits;
  for (const std::string& text : arguments.limits) {
    if (const Status parsed = ParseLimit(text, limits); !parsed.ok()) {
      return BadUsage("quota set", parsed);
    }
  }
  if (const Status mounted = CheckMounted(arguments.path); !mounted.ok()) {
    return Failed(mounted);
  }
  const std::vector<std::byte> value = fs::client::QuotaValue(limits.bytes, limits.inodes);
  if (setxattr(arguments.path.c_str(), fs::kQuotaXattr, value.data(), value.size(), 0) != 0) {
    return Failed(Explain(arguments.path));
  }
  const Result<QuotaStatus> left = AwaitCount([&] { return QuotaOf(arguments.path); }, kFailurePatience);
  if (!left.ok() && left.status().code() != ENODATA) {
    return Failed(left.status());
  }
  if (left.ok() && left->bytes == 0 && left->inodes == 0) {
    return Print(arguments.path +
                 " has no limit any more. As it is not empty, it is still counted: names do not leave it, and no "
                 "directory in it may have a quota, until 'none' is set while it is empty\n");
  }
  return kExitOk;
}

int RunQuotaList(const QuotaArguments& arguments) {
  const Result<fs::client::ServerAddress> address = ServedAddress(arguments.path, arguments.secret);
  if (!address.ok()) {
    return fs::client::MeansHost(arguments.path) ? BadUsage("quota list", address.status()) : Failed(address.status());
  }
  const Result<std::vector<QuotaStatus>> quotas = fs::client::ListQuotas(*address);
  if (!quotas.ok()) {
    return Failed(quotas.status());
  }
  return Print(arguments.json ? ListAsJson(*quotas) : ListForPeople(*quotas));
}

int RunQuotaGet(const QuotaArguments& arguments) {
  const Result<QuotaStatus> quota = QuotaOf(arguments.path);
  if (!quota.ok()) {
    return Failed(quota.status());
  }
  if (arguments.json) {
    JsonWriter json;
    AddMembers(json.BeginObject(), *quota).EndObject();
    return Print(json.text() + "\n");
  }
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "space   {}{}\n", FormatSize(quota->used_bytes),
                 OfLimit(FormatSize(quota->bytes), quota->bytes != 0));
  fmt::format_to(out, "inodes  {}{}\n", quota->used_inodes, OfLimit(std::to_string(quota->inodes), quota->inodes != 0));
  if (quota->counting) {
    fmt::format_to(out, "what was there before the quota is being counted{}\n",
                   quota->failure.empty() ? "" : ", which fails and is tried again: " + quota->failure);
  }
  return Print(text);
}

}  // namespace termfs::mount

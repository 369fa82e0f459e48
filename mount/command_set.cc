// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "fs/client/admin.h"
#include "mount/command.h"
#include "mount/size.h"

namespace termfs::mount {
namespace {

using Setting = std::pair<std::string, std::string>;

Result<Setting> ParseSetting(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return Status::Error(EINVAL, "'" + text + "': a setting is KEY=VALUE, such as dram-ratio=0.3");
  }
  Setting setting(text.substr(0, equals), text.substr(equals + 1));
  auto& [key, value] = setting;
  if (key == "capacity") {
    Result<uint64_t> bytes = ParseCapacity(value);
    if (!bytes.ok()) {
      return std::move(bytes).status().WithContext(key);
    }
    value = std::to_string(*bytes);
  } else if (key == "dram-ratio") {
    if (Result<double> ratio = ParseRatio(value); !ratio.ok()) {
      return std::move(ratio).status().WithContext(key);
    }
  } else if (key == "metadata-memory") {
    Result<uint64_t> bytes = ParseMetadataMemory(value);
    if (!bytes.ok()) {
      return std::move(bytes).status().WithContext(key);
    }
    value = std::to_string(*bytes);
  } else if (key == "promoter") {
    if (value != "heat" && value != "recent" && value != "static") {
      return Status::Error(EINVAL, "promoter: '" + value + "' is none of heat, recent, static");
    }
  } else if (key == "pattern") {
    if (value != "random") {
      return Status::Error(EINVAL, "pattern: '" + value + "' is not random, which makes up a new one");
    }
  } else {
    return Status::Error(
        EINVAL, "'" + key + "' is not a setting; those are capacity, dram-ratio, metadata-memory, promoter, pattern");
  }
  return setting;
}

// A smaller capacity takes its time, and the server goes on when nobody waits for it any more.
Status WaitForCapacity(const fs::client::ServerAddress& address, const std::string& wanted) {
  constexpr std::chrono::milliseconds kPeriod{100};
  const bool show = isatty(STDERR_FILENO) != 0;
  bool shown = false;
  while (true) {
    ASSIGN_OR_RETURN(const fs::client::VolumeStatus status, fs::client::GetStatus(address));
    const uint64_t capacity = status.space.capacity_bytes;
    const bool done = !status.capacity_changing;
    if (show && (!done || shown)) {
      std::fprintf(stderr, "\rcapacity %s, on its way to %s: %s to be moved   %s", FormatSize(capacity).c_str(),
                   FormatSize(status.capacity_target_bytes).c_str(), FormatSize(status.capacity_to_move_bytes).c_str(),
                   done ? "\n" : "");
      shown = true;
    }
    if (done) {
      if (std::to_string(capacity) == wanted) {
        return Status::Ok();
      }
      return status.capacity_failure.empty()
                 ? Status::Error(EIO, "the capacity is " + FormatSize(capacity) + ", as somebody else has set it")
                 : Status::Error(EIO, "the capacity stays as it is: " + status.capacity_failure);
    }
    std::this_thread::sleep_for(kPeriod);
  }
}

}  // namespace

// Everything is looked at before anything is changed.
int RunSet(const SetArguments& arguments) {
  std::vector<Setting> settings;
  for (const std::string& text : arguments.settings) {
    Result<Setting> setting = ParseSetting(text);
    if (!setting.ok()) {
      return BadUsage("set", setting.status());
    }
    const auto same = [&setting](const Setting& earlier) { return earlier.first == setting->first; };
    if (std::any_of(settings.begin(), settings.end(), same)) {
      return BadUsage("set", Status::Error(EINVAL, "'" + setting->first + "' is there twice"));
    }
    settings.push_back(std::move(*setting));
  }
  const auto address = ServedAddress(arguments.address, arguments.secret);
  if (!address.ok()) {
    return address.status().code() == EINVAL ? BadUsage("set", address.status()) : Failed(address.status());
  }
  for (const auto& [key, value] : settings) {
    Status changed = fs::client::ChangeSetting(*address, key, value);
    // A growth that takes longer than a call may has been begun, too.
    if (key == "capacity" && (changed.ok() || changed.code() == ETIMEDOUT)) {
      changed = WaitForCapacity(*address, value);
    }
    if (!changed.ok()) {
      return Failed(changed);
    }
  }
  return kExitOk;
}

}  // namespace termfs::mount

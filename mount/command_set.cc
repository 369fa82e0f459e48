// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <future>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/metrics.h"
#include "base/page.h"
#include "base/start_thread.h"
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

using fs::client::ServerAddress;
using fs::client::VolumeStatus;

// One line on a terminal, written again and again, of what takes longer than a second.
class ProgressLine {
 public:
  void Show(const std::function<std::string()>& text) {
    if (terminal_ && std::chrono::steady_clock::now() - begun_ >= kPatience) {
      std::fprintf(stderr, "\r%s   ", text().c_str());
      shown_ = true;
    }
  }
  void End() {
    if (std::exchange(shown_, false)) {
      std::fprintf(stderr, "\n");
    }
  }

 private:
  static constexpr std::chrono::seconds kPatience{1};
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  bool shown_ = false;
};

constexpr std::chrono::milliseconds kBetweenLooks{100};

uint64_t ValueOf(const std::vector<MetricValue>& metrics, std::string_view name) {
  const auto found = std::find_if(metrics.begin(), metrics.end(), [name](const auto& m) { return m.name == name; });
  return found != metrics.end() ? found->value : 0;
}

// How far a change is that the server has not answered yet; empty: it does not say.
std::string ProgressOf(const ServerAddress& address) {
  const auto status = fs::client::GetStatus(address);
  const auto metrics = fs::client::GetMetrics(address);
  if (!status.ok() || !metrics.ok()) {
    return "";
  }
  const std::string move =
      status->capacity_to_move_bytes == 0 ? "" : ", " + FormatSize(status->capacity_to_move_bytes) + " to be moved";
  return fmt::format("capacity {} of {}{}; DRAM tier {}, {} used, {} of memory ready",
                     FormatSize(status->space.capacity_bytes), FormatSize(status->capacity_target_bytes), move,
                     FormatSize(ValueOf(*metrics, "frames_budget") << kPageBits),
                     FormatSize(ValueOf(*metrics, "frames_used") << kPageBits),
                     FormatSize(ValueOf(*metrics, "frames_ready") << kPageBits));
}

// A smaller capacity takes its time, and the server goes on when nobody waits for it any more.
Status WaitForCapacity(const ServerAddress& address, const std::string& wanted, ProgressLine& line) {
  while (true) {
    ASSIGN_OR_RETURN(const VolumeStatus status, fs::client::GetStatus(address));
    if (!status.capacity_changing) {
      if (std::to_string(status.space.capacity_bytes) == wanted) {
        return Status::Ok();
      }
      return status.capacity_failure.empty()
                 ? Status::Error(EIO, "the capacity is " + FormatSize(status.space.capacity_bytes) +
                                          ", as somebody else has set it")
                 : Status::Error(EIO, "the capacity stays as it is: " + status.capacity_failure);
    }
    line.Show([&] { return ProgressOf(address); });
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

// A large tier gets its memory for longer than a call may take.
Status WaitForRatio(const ServerAddress& address, const std::string& wanted, ProgressLine& line) {
  ASSIGN_OR_RETURN(const double ratio, ParseRatio(wanted));
  while (true) {
    ASSIGN_OR_RETURN(const VolumeStatus status, fs::client::GetStatus(address));
    if (status.changing != "dram-ratio") {
      if (!status.change_failure.empty()) {
        return Status::Error(EIO, status.change_failure);
      }
      return status.dram_ratio == ratio
                 ? Status::Ok()
                 : Status::Error(EIO, fmt::format("dram-ratio is {}, as it has been set meanwhile", status.dram_ratio));
    }
    line.Show([&] { return ProgressOf(address); });
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

// The server answers when it is done; meanwhile it is asked how far it is.
Status Change(const ServerAddress& address, const Setting& setting, ProgressLine& line) {
  const std::string& key = setting.first;
  const std::string& value = setting.second;
  std::packaged_task<Status()> change([&] { return fs::client::ChangeSetting(address, key, value); });
  std::future<Status> answer = change.get_future();
  ASSIGN_OR_RETURN(std::thread thread, StartThread(std::move(change)));
  while (answer.wait_for(kBetweenLooks) != std::future_status::ready) {
    line.Show([&] { return ProgressOf(address); });
  }
  thread.join();
  Status changed = answer.get();
  // A growth that takes longer than a call may has been begun, too.
  if (key == "capacity" && (changed.ok() || changed.code() == ETIMEDOUT)) {
    return WaitForCapacity(address, value, line);
  }
  return key == "dram-ratio" && changed.code() == ETIMEDOUT ? WaitForRatio(address, value, line) : changed;
}

std::string Done(const Setting& setting, const VolumeStatus& before, const VolumeStatus& now) {
  const auto& [key, value] = setting;
  const std::string tier = FormatSize(now.tier_bytes) + " in memory at a time";
  if (key == "capacity") {
    return fmt::format("capacity {}, was {}; {}\n", FormatSize(now.space.capacity_bytes),
                       FormatSize(before.space.capacity_bytes), tier);
  }
  if (key == "dram-ratio") {
    return fmt::format("dram-ratio {}, was {}; {}\n", now.dram_ratio, before.dram_ratio, tier);
  }
  return key == "pattern" ? "pattern: a new one\n" : fmt::format("{} {}\n", key, value);
}

// And says what was done. An exit code.
int Apply(const ServerAddress& address, const Setting& setting) {
  const Result<VolumeStatus> before = fs::client::GetStatus(address);
  if (!before.ok()) {
    return Failed(before.status());
  }
  ProgressLine line;
  Status changed = Change(address, setting, line);
  line.End();
  if (!changed.ok()) {
    return Failed(changed);
  }
  const Result<VolumeStatus> now = fs::client::GetStatus(address);
  return now.ok() ? Print(Done(setting, *before, *now)) : Failed(now.status());
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
  for (const Setting& setting : settings) {
    if (const int code = Apply(*address, setting); code != kExitOk) {
      return code;
    }
  }
  return kExitOk;
}

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "fs/server/settings.h"
#include "fs/server/volume.h"
#include "mount/command.h"
#include "mount/size.h"

namespace termfs::mount {
namespace {

void ShowProgress(uint64_t done, uint64_t all) {
  const uint64_t percent =
      all == 0 ? 100 : static_cast<uint64_t>(100.0 * static_cast<double>(done) / static_cast<double>(all));
  std::fprintf(stderr, "\rpreparing %s of %s (%lu%%)%s", FormatSize(done).c_str(), FormatSize(all).c_str(),
               static_cast<unsigned long>(percent), done >= all ? "\n" : "");
}

// A file that is made for a device with a misspelt name would be in memory. Other file systems below /dev are as any.
Status CheckDevice(const std::string& path) {
  struct stat found {};
  struct stat parent {};
  struct stat dev {};
  const bool in_dev = path.starts_with("/dev/") && stat("/dev", &dev) == 0 &&
                      stat(path.substr(0, path.rfind('/')).c_str(), &parent) == 0 && parent.st_dev == dev.st_dev;
  if (!in_dev || (stat(path.c_str(), &found) == 0 && S_ISBLK(found.st_mode))) {
    return Status::Ok();
  }
  return Status::Error(
      ENOTBLK, "--device: there is no block device " + path + "; name a block device, or a file that is not in /dev");
}

}  // namespace

int RunFormat(const FormatArguments& arguments) {
  fs::server::FormatOptions options;
  const Result<uint64_t> capacity = ParseCapacity(arguments.capacity);
  if (!capacity.ok()) {
    return BadUsage("format", capacity.status().WithContext("--capacity"));
  }
  options.settings.capacity_bytes = *capacity;
  if (!arguments.dram_ratio.empty()) {
    const Result<double> ratio = ParseRatio(arguments.dram_ratio);
    if (!ratio.ok()) {
      return BadUsage("format", ratio.status().WithContext("--dram-ratio"));
    }
    options.settings.dram_ratio = *ratio;
  }
  if (!arguments.metadata_memory.empty()) {
    const Result<uint64_t> memory = ParseMetadataMemory(arguments.metadata_memory);
    if (!memory.ok()) {
      return BadUsage("format", memory.status().WithContext("--metadata-memory"));
    }
    options.settings.metadata_memory_bytes = *memory;
  }
  if (!arguments.device.empty()) {
    const Result<std::string> device = AbsolutePath(arguments.device);  // the server has another working directory
    if (!device.ok()) {
      return Failed(device.status());
    }
    if (const Status usable = CheckDevice(*device); !usable.ok()) {
      return Failed(usable);
    }
    options.settings.device = *device;
  }
  if (const Status allowed = fs::server::CheckSettings(options.settings); !allowed.ok()) {
    return BadUsage("format", allowed);
  }
  if (VolumePath(arguments.directory).ok()) {
    return Failed(Status::Error(EEXIST, arguments.directory + " is a termfs volume already; choose a directory that is "
                                                              "empty or does not exist"));
  }
  options.overwrite = arguments.force;
  if (isatty(STDERR_FILENO) != 0) {
    options.progress = &ShowProgress;
  }
  if (const Status formatted = fs::server::FormatVolume(arguments.directory, options); !formatted.ok()) {
    return Failed(formatted);
  }
  return Print(
      fmt::format("{}: a volume of {}, {} of it in memory at a time\n", arguments.directory, FormatSize(*capacity),
                  FormatSize(static_cast<uint64_t>(static_cast<double>(*capacity) * options.settings.dram_ratio))));
}

}  // namespace termfs::mount

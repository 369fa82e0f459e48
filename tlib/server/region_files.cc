// SPDX-License-Identifier: Apache-2.0
// The files of a region: made, looked at, opened and removed; and what can be said of its options without opening it.
#include <fcntl.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/size.h"
#include "base/unique_fd.h"
#include "tlib/server/aio_block_device.h"
#include "tlib/server/device_contents.h"
#include "tlib/server/device_file.h"
#include "tlib/server/kernel_block_device.h"
#include "tlib/server/region_label.h"
#include "tlib/server/region_on_device.h"
#include "tlib/server/written_log.h"

namespace termfs::tlib::server {
namespace {

using driver::RegionKind;

constexpr std::chrono::microseconds kMostOdpDelay{1'000'000};  // well within what a READ waits for its page

// What a block device holds is overwritten only where that was asked for; files are always new.
Status CheckOverwrite(const RegionOptions& options) {
  struct stat found {};
  if (options.overwrite || stat(options.device.c_str(), &found) != 0 || !S_ISBLK(found.st_mode)) {
    return Status::Ok();
  }
  ASSIGN_OR_RETURN(const std::string contents, DeviceContents(options.device));
  if (contents.empty()) {
    return Status::Ok();
  }
  return Status::Error(EEXIST, options.device + " holds " + contents + "; if that may be lost, add --force");
}

// A change of the size that a crash cut short has left the device larger than the volume says.
Status CutToSize(const RegionOptions& options, BlockDevice& device) {
  const UniqueFd fd(open(options.device.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoStatus("open " + options.device);
  }
  ASSIGN_OR_RETURN(const RegionLabel label, ReadRegionLabel(fd.get(), options.device));
  if (label.pages != options.pages) {
    LOG_INFO("{}: a change of the capacity was cut short; it is {}", options.device,
             ReadableSize(options.pages * kPageSize));
    RETURN_IF_ERROR(ChangeRegionLabel(options.device, {.pages = options.pages, .volume = options.volume}));
  }
  if (MapsDevice(options.kind) || device.size() <= options.pages * kPageSize) {
    return Status::Ok();
  }
  return device.Resize(options.pages * kPageSize);
}

// What is in the files of a new region.
Status WriteNew(const RegionOptions& options) {
  ASSIGN_OR_RETURN(DeviceFile file, OpenDeviceFile(options.written_log, OpenMode::kDirect));
  AioBlockDevice log(std::move(file));
  RETURN_IF_ERROR(WrittenLog::Format(log, options.pages));
  return WriteRegionLabel(options.device, {.pages = options.pages, .volume = options.volume});
}

}  // namespace

bool MapsDevice(RegionKind kind) { return kind == RegionKind::kRpc || kind == RegionKind::kOdp; }

Status CheckRegionOptions(const RegionOptions& options) {
  if (options.pages == 0 || options.pages >= UINT32_MAX || options.max_pages >= UINT32_MAX) {
    return Status::Error(EINVAL, "a region has between 1 and 2^32 - 2 pages");
  }
  if (options.odp_delay < std::chrono::microseconds::zero() || options.odp_delay > kMostOdpDelay) {
    return Status::Error(EINVAL, "the delay of an RNIC page fault must be between 0 and 1 s");
  }
  return Status::Ok();
}

Status CheckDeviceSize(const BlockDevice& device, const RegionOptions& options) {
  const uint64_t needed = options.pages * kPageSize;
  if (device.size() < needed) {
    return Status::Error(EUCLEAN, options.device + " has been cut short: " + ReadableSize(needed - device.size()) +
                                      " of the region's " + ReadableSize(needed) +
                                      " are missing; restore it from a backup");
  }
  return Status::Ok();
}

Status Region::Format(const RegionOptions& options, const Progress& progress) {
  RETURN_IF_ERROR(CheckRegionOptions(options));
  RETURN_IF_ERROR(CheckOverwrite(options));
  RETURN_IF_ERROR(MakeDeviceFile(options.device, kRegionStart + options.pages * kPageSize, progress));
  if (Status log = MakeDeviceFile(options.written_log, WrittenLog::BytesFor(options.pages), nullptr); !log.ok()) {
    UnmakeDeviceFile(options.device);
    return log;
  }
  Status written = WriteNew(options);
  if (!written.ok()) {
    Remove(options);
  }
  return written;
}

void Region::Remove(const RegionOptions& options) {
  UnmakeDeviceFile(options.device);
  UnmakeDeviceFile(options.written_log);
}

Status Region::Inspect(const RegionOptions& options) {
  RETURN_IF_ERROR(CheckRegionOptions(options));
  ASSIGN_OR_RETURN(const RegionDevices devices, OpenRegionDevices(options, DeviceUse::kLook));
  RETURN_IF_ERROR(CheckDeviceSize(*devices.pages, options));
  return WrittenLog::Open(*devices.log, options.pages).status();
}

Result<std::unique_ptr<Region>> Region::Open(const RegionOptions& options, RegionEnvironment environment) {
  ASSIGN_OR_RETURN(RegionDevices devices, OpenRegionDevices(options));
  RETURN_IF_ERROR(CutToSize(options, *devices.pages));
  devices.label = [path = options.device, volume = options.volume](uint64_t pages) {
    return ChangeRegionLabel(path, {.pages = pages, .volume = volume});
  };
  return OpenRegionOn(options, std::move(environment), std::move(devices));
}

bool BlocksWorkers(RegionKind kind) { return MapsDevice(kind) || kind == RegionKind::kRpcBuffer; }

Result<RegionDevices> OpenRegionDevices(const RegionOptions& options, DeviceUse use) {
  const bool buffered = BlocksWorkers(options.kind);
  RegionDevices devices;
  ASSIGN_OR_RETURN(DeviceFile file, OpenDeviceFile(options.device, buffered ? OpenMode::kBuffered : OpenMode::kDirect,
                                                   kRegionStart, use));
  RETURN_IF_ERROR(CheckRegionLabel(file.fd.get(), options.device, {.pages = options.pages, .volume = options.volume}));
  if (const Status filled = use == DeviceUse::kChange ? FillHoles(file) : Status::Ok(); !filled.ok()) {
    LOG_WARNING("{} has holes, so writes to it fail when its disk is full: {}", options.device, filled.ToString());
  }
  if (MapsDevice(options.kind) && use == DeviceUse::kChange) {
    ASSIGN_OR_RETURN(devices.pages, MmapBlockDevice::Create(std::move(file)));
  } else if (buffered) {
    devices.pages = std::make_unique<BufferedBlockDevice>(std::move(file));
  } else {
    devices.pages = std::make_unique<AioBlockDevice>(std::move(file));
  }
  ASSIGN_OR_RETURN(DeviceFile log, OpenDeviceFile(options.written_log, OpenMode::kDirect, 0, use));
  devices.log = std::make_unique<AioBlockDevice>(std::move(log));
  return devices;
}

}  // namespace termfs::tlib::server

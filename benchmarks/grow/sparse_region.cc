// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/grow/sparse_region.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "benchmarks/must.h"
#include "driver/softnic/softnic.h"
#include "tlib/server/aio_block_device.h"
#include "tlib/server/region_label.h"
#include "tlib/server/worker_set.h"
#include "tlib/server/written_log.h"

namespace termfs::benchmarks::grow {
namespace {

using tlib::server::WrittenLog;

void MakeFile(const std::string& path, uint64_t bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    Die(ErrnoStatus("make " + path));
  }
}

tlib::server::AioBlockDevice OpenLog(const tlib::server::RegionOptions& options) {
  return tlib::server::AioBlockDevice(
      Must(tlib::server::OpenDeviceFile(options.written_log, tlib::server::OpenMode::kDirect)));
}

}  // namespace

tlib::server::RegionOptions OptionsFor(const Settings& settings, uint64_t bytes, const std::string& directory,
                                       const std::string& memory_directory) {
  tlib::server::RegionOptions options;
  options.device = directory + "/region";
  options.written_log = directory + "/written";
  options.volume = "growth";
  options.pages = bytes / kPageSize;
  options.dram_ratio = static_cast<double>(settings.dram) / static_cast<double>(bytes);
  options.sample_period = settings.period;
  options.tier = {.directory = memory_directory + "/tier", .record = directory + "/record", .volume = "growth"};
  return options;
}

void MakeSparse(const tlib::server::RegionOptions& options) {
  MakeFile(options.device, tlib::server::kRegionStart + options.pages * kPageSize);
  MakeFile(options.written_log, WrittenLog::BytesFor(options.pages));
  tlib::server::AioBlockDevice log = OpenLog(options);
  Must(WrittenLog::Format(log, options.pages));
  Must(tlib::server::WriteRegionLabel(options.device, {.pages = options.pages, .volume = options.volume}));
}

void MarkAllWritten(const tlib::server::RegionOptions& options) {
  tlib::server::AioBlockDevice device = OpenLog(options);
  const auto log = Must(WrittenLog::Open(device, options.pages));
  for (uint64_t page = 0; page < options.pages; page++) {
    log->Set({page});
  }
  const auto nic = Must(driver::CreateSoftNic());
  const auto domain = Must(nic->CreateProtectionDomain());
  const auto workers = Must(tlib::server::WorkerSet::Start(*nic, *domain, 1));
  Must(workers->Run([&] { return log->Sync(); }));
  workers->Stop();
}

}  // namespace termfs::benchmarks::grow

// SPDX-License-Identifier: Apache-2.0
//
// memory_mount MOUNTPOINT [options]: mounts an empty MemoryFileSystem through the real front end, in the foreground.
// To measure or to debug the FUSE side alone.
#include <cstdio>

#include "base/log.h"
#include "mount/mount_service.h"
#include "tests/fakes/memory_file_system.h"

namespace {

constexpr uint64_t kCapacity = uint64_t{4} << 30;

termfs::Status Run(const std::string& mountpoint, const std::string& options) {
  using namespace termfs;
  mount::MountRequest request{.address = termfs::tlib::ServerAddress("memory"), .mountpoint = mountpoint, .config = {}};
  RETURN_IF_ERROR(mount::ApplyMountOptions(options, request.config));
  RETURN_IF_ERROR(mount::CheckMountPoint(mountpoint));
  RETURN_IF_ERROR(StartLog(LogLevel::kInfo));
  ASSIGN_OR_RETURN(const UniqueFd signals, mount::BlockEndSignals());
  mount::KernelCacheNotifier cache;
  fakes::MemoryVolume volume(kCapacity);
  fakes::MemoryFileSystem file_system(volume, &cache);
  mount::Readiness nobody;
  return mount::ServeFileSystem(file_system, cache, nullptr, request, signals, nobody);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: memory_mount MOUNTPOINT [options]\n");
    return 2;
  }
  const termfs::Status status = Run(argv[1], argc > 2 ? argv[2] : "");
  if (!status.ok()) {
    std::fprintf(stderr, "memory_mount: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/mount/mounted_memory.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#include "mount/mount_service.h"
#include "tests/fakes/memory_file_system.h"

namespace termfs::mount {
namespace {

constexpr uint64_t kCapacity = 64 << 20;

class Announce : public Readiness {
 public:
  explicit Announce(int fd) : fd_(fd) {}
  void Ok() override { TERMFS_CHECK(write(fd_, "+", 1) == 1); }

 private:
  const int fd_;
};

struct Mount {
  explicit Mount(fakes::MemoryVolume& volume) : file_system(volume, &cache) {}
  KernelCacheNotifier cache;
  fakes::MemoryFileSystem file_system;
  MountRequest request;
  Status end;
  std::thread thread;
};

// The child's life; its exit code.
int Host(const std::vector<std::string>& roots, const std::string& options, int announce_fd) {
  const Result<UniqueFd> signals = BlockEndSignals();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  fakes::MemoryVolume volume(kCapacity);
  Announce announce(announce_fd);
  std::vector<std::unique_ptr<Mount>> mounts;
  for (const std::string& root : roots) {
    auto& mount = *mounts.emplace_back(std::make_unique<Mount>(volume));
    mount.request.address =
        fs::client::ServerAddress("memory,of \\ a test");  // what must be escaped in a list of options
    mount.request.mountpoint = root;
    TERMFS_CHECK(signals.ok() && ApplyMountOptions(options, mount.request.config).ok());
  }
  for (auto& mount : mounts) {
    mount->thread = std::thread([&mount = *mount, &signals, &announce] {
      mount.end = ServeFileSystem(mount.file_system, mount.cache, nullptr, mount.request, *signals, announce);
    });
  }
  bool clean = true;
  for (auto& mount : mounts) {
    mount->thread.join();
    clean = clean && mount->end.ok() && mount->file_system.open_files() == 0;
    if (!clean) {
      std::fprintf(stderr, "mount: %s, %lu files open\n", mount->end.ToString().c_str(),
                   static_cast<unsigned long>(mount->file_system.open_files()));
    }
  }
  return clean ? 0 : 1;
}

}  // namespace

bool MountedMemory::Available() { return geteuid() == 0 && access("/dev/fuse", R_OK | W_OK) == 0; }

MountedMemory::MountedMemory(int mounts, const std::string& options) {
  for (int i = 0; i < mounts; i++) {
    char name[] = "/tmp/termfs-test-XXXXXX";
    TERMFS_CHECK(mkdtemp(name) != nullptr);
    roots_.emplace_back(name);
  }
  int ends[2];
  TERMFS_CHECK(pipe(ends) == 0);
  child_ = fork();
  TERMFS_CHECK(child_ >= 0);
  if (child_ == 0) {
    close(ends[0]);
    _exit(Host(roots_, options, ends[1]));
  }
  close(ends[1]);
  int announced = 0;
  for (char byte = 0; announced < mounts && read(ends[0], &byte, 1) == 1;) {
    announced++;
  }
  close(ends[0]);
  mounted_ = announced == mounts;
}

MountedMemory::~MountedMemory() {
  Stop();
  for (const std::string& root : roots_) {
    rmdir(root.c_str());
  }
}

uint64_t MountedMemory::Metric(const std::string& name) const {
  const Result<MountDescription> description = DescribeMount(roots_[0]);
  return description.ok() && description->metrics.contains(name) ? description->metrics.at(name) : UINT64_MAX;
}

bool MountedMemory::Stop() {
  if (child_ < 0) {
    return true;
  }
  kill(child_, SIGTERM);
  return WaitForEnd();
}

bool MountedMemory::WaitForEnd() {
  int status = 0;
  const bool ended = waitpid(child_, &status, 0) == child_;
  child_ = -1;
  return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace termfs::mount

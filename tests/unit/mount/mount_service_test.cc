// SPDX-License-Identifier: Apache-2.0
#include "mount/mount_service.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include "mount/mount_point.h"
#include "tests/fakes/memory_file_system.h"
#include "tests/unit/mount/mounted_memory.h"

namespace termfs::mount {
namespace {

constexpr uint64_t kSmallVolume = 16 << 20;

// Calls `opens` before it opens a lane: the first is the mount's own, before there is a mount; the others are those of
// the threads that serve it.
class LaneWatch : public fakes::MemoryFileSystem {
 public:
  LaneWatch(fakes::MemoryVolume& volume, fs::client::KernelCache* cache, std::function<void(int)> opens)
      : MemoryFileSystem(volume, cache), opens_(std::move(opens)) {}
  Result<std::unique_ptr<Lane>> OpenLane(size_t place_bytes) override {
    opens_(opened_++);
    return MemoryFileSystem::OpenLane(place_bytes);
  }

 private:
  const std::function<void(int)> opens_;
  int opened_ = 0;
};

class NotifiesItself : public Readiness {
 public:
  void Ok() override { kill(getpid(), SIGTERM); }
};

// In a process of its own, a mount that ends as soon as it serves; 0: it did both.
int Serve(const std::string& root, const std::function<void(KernelCacheNotifier&, int)>& opens) {
  const Result<UniqueFd> signals = BlockEndSignals();
  TERMFS_CHECK(signals.ok());
  KernelCacheNotifier cache;
  fakes::MemoryVolume volume(kSmallVolume);
  LaneWatch file_system(volume, &cache, [&](int which) { opens(cache, which); });
  MountRequest request{.address = fs::client::ServerAddress("memory"), .mountpoint = root, .config = MountConfig{}};
  TERMFS_CHECK(ApplyMountOptions("threads=2,fuse=device", request.config).ok());
  NotifiesItself readiness;
  return ServeFileSystem(file_system, cache, nullptr, request, *signals, readiness).ok() ? 0 : 1;
}

int ServeApart(const std::string& root, const std::function<void(KernelCacheNotifier&, int)>& opens) {
  const pid_t child = fork();
  if (child == 0) {
    _exit(Serve(root, opens));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class ServeFileSystemTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!MountedMemory::Available()) {
      GTEST_SKIP() << "needs root and /dev/fuse";
    }
    char name[] = "/tmp/termfs-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override {
    while (!root_.empty() && umount2(root_.c_str(), MNT_DETACH) == 0) {
    }
    rmdir(root_.c_str());
  }
  std::string root_;
};

TEST_F(ServeFileSystemTest, NothingIsServedThatCouldNotBeTakenBack) {
  constexpr int kTooEarly = 7;
  const int code = ServeApart(root_, [](KernelCacheNotifier& cache, int which) {
    cache.HasEpochs();
    if (which > 0 && !cache.AboutToGive(0, 0, Nanoseconds(0))) {
      _exit(kTooEarly);
    }
  });
  EXPECT_EQ(code, 0);
}

TEST_F(ServeFileSystemTest, WhatIsMountedOverItDuringTheStart_Stays) {
  const int code = ServeApart(root_, [this](KernelCacheNotifier&, int which) {
    if (which == 1) {
      TERMFS_CHECK(::mount("none", root_.c_str(), "tmpfs", 0, nullptr) == 0);
      std::ofstream(root_ + "/f") << "x";
    }
  });
  EXPECT_EQ(code, 1);
  EXPECT_EQ(*MountType(root_), "tmpfs");
  EXPECT_EQ(access((root_ + "/f").c_str(), F_OK), 0);
}

TEST_F(ServeFileSystemTest, AMountPointMayBeTheEmptyRootOfAnotherMount) {
  ASSERT_EQ(::mount("none", root_.c_str(), "tmpfs", 0, nullptr), 0);
  EXPECT_TRUE(CheckMountPoint(root_).ok());
  EXPECT_EQ(ServeApart(root_, [](KernelCacheNotifier&, int) {}), 0);
  EXPECT_EQ(*MountType(root_), "tmpfs");
  std::ofstream(root_ + "/f") << "x";
  EXPECT_EQ(CheckMountPoint(root_).code(), EBUSY);
}

}  // namespace
}  // namespace termfs::mount

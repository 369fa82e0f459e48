// SPDX-License-Identifier: Apache-2.0
#include "base/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace termfs {
namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

// A /proc and a /sys of a test's own.
class HostMemory : public testing::Test {
 protected:
  HostMemory() {
    std::string name = std::filesystem::temp_directory_path() / "termfs-host-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    Put("/proc/meminfo", "MemTotal:  1048576 kB\nMemFree:  1 kB\nMemAvailable:   524288 kB\nSwapTotal: 99999999 kB\n");
  }
  ~HostMemory() override { std::filesystem::remove_all(root_); }

  void Put(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // A group of version 1; bytes.
  void PutFirst(const std::string& group, uint64_t limit, uint64_t usage, uint64_t files) const {
    Put(group + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    Put(group + "/memory.usage_in_bytes", std::to_string(usage) + "\n");
    Put(group + "/memory.stat", "cache 1\ninactive_file 7\ntotal_inactive_file " + std::to_string(files / 2) +
                                    "\ntotal_active_file " + std::to_string(files / 2) + "\ntotal_unevictable 5\n");
  }
  void PutSecond(const std::string& group, const std::string& most, const std::string& high, uint64_t usage) const {
    Put(group + "/memory.max", most + "\n");
    Put(group + "/memory.high", high + "\n");
    Put(group + "/memory.current", std::to_string(usage) + "\n");
    Put(group + "/memory.stat", "anon 1\nfile 99999999\nshmem 1\ninactive_file 1048576\nactive_file 0\n");
  }
  std::vector<MemoryBound> Bounds() const { return MemoryBounds(root_); }

  std::string root_;
};

TEST_F(HostMemory, WithoutGroups_IsTheMachines) {
  const auto bounds = Bounds();
  ASSERT_EQ(bounds.size(), 1U);
  EXPECT_EQ(bounds[0].of, "the machine");
  EXPECT_EQ(bounds[0].total, 1024 * kMebibyte);
  EXPECT_EQ(bounds[0].available, 512 * kMebibyte);
}

TEST_F(HostMemory, Unknown_IsNoBound) {
  std::filesystem::remove_all(root_ + "/proc");
  EXPECT_TRUE(Bounds().empty());
  EXPECT_EQ(TightestMemory(Bounds()).available, UINT64_MAX);
}

TEST_F(HostMemory, Version1_EveryGroupUpTheTreeCounts) {
  Put("/proc/self/cgroup", "3:cpu,cpuacct:/elsewhere\n2:memory:/a/b/c\n1:name=systemd:/\n");
  Put("/proc/self/mountinfo",
      "25 20 0:22 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
      "26 20 0:23 / /sys/fs/cgroup/memory rw shared:7 - cgroup cgroup rw,memory\n");
  const std::string mount = "/sys/fs/cgroup/memory";
  PutFirst(mount, 9223372036854771712U, 1, 0);
  PutFirst(mount + "/a", 300 * kMebibyte, 250 * kMebibyte, 20 * kMebibyte);
  PutFirst(mount + "/a/b", 9223372036854771712U, 1, 0);
  PutFirst(mount + "/a/b/c", 200 * kMebibyte, 100 * kMebibyte, 0);
  const auto bounds = Bounds();
  ASSERT_EQ(bounds.size(), 3U);
  EXPECT_EQ(bounds[1].of, "the memory cgroup /a/b/c");
  EXPECT_EQ(bounds[1].available, 100 * kMebibyte);
  EXPECT_EQ(TightestMemory(bounds).of, "the memory cgroup /a");
  EXPECT_EQ(TightestMemory(bounds).available, 70 * kMebibyte) << "what files have can be dropped";
  EXPECT_EQ(TightestMemory(bounds).total, 300 * kMebibyte);
}

TEST_F(HostMemory, Version2_HighAndMaxBothCount) {
  Put("/proc/self/cgroup", "0::/x/y\n");
  Put("/proc/self/mountinfo", "26 20 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  PutSecond("/sys/fs/cgroup/x/y", "max", "max", 5);
  PutSecond("/sys/fs/cgroup/x", "419430400", "209715200", 100 * kMebibyte);
  const auto bounds = Bounds();
  ASSERT_EQ(bounds.size(), 2U);
  EXPECT_EQ(bounds[1].of, "the memory cgroup /x");
  EXPECT_EQ(bounds[1].total, 200 * kMebibyte);
  EXPECT_EQ(bounds[1].available, 101 * kMebibyte);
  PutSecond("/sys/fs/cgroup/x/y", "1048576", "max", 9999999);
  EXPECT_EQ(TightestMemory(Bounds()).available, 0U) << "more than its limit, as it may be for a moment";
}

// As a container sees it: its group is the root of what is mounted.
TEST_F(HostMemory, MountOfAGroup_IsThatGroup) {
  Put("/proc/self/mountinfo", "26 20 0:23 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  PutFirst("/sys/fs/cgroup/memory", 100 * kMebibyte, 60 * kMebibyte, 0);
  PutFirst("/sys/fs/cgroup/memory/sub", 50 * kMebibyte, 20 * kMebibyte, 0);
  for (const char* const group : {"/docker/abc", "/docker/abc/sub", "/../other", "/"}) {
    Put("/proc/self/cgroup", std::string("2:memory:") + group + "\n");
    const uint64_t available = TightestMemory(Bounds()).available;
    EXPECT_EQ(available, (std::string(group).ends_with("/sub") ? 30 : 40) * kMebibyte) << group;
  }
}

// What is left of its path without the mount's does not begin with a slash, and has none to cut it at.
TEST_F(HostMemory, GroupBesideTheMounts_IsTheMount) {
  Put("/proc/self/mountinfo", "26 20 0:23 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  PutFirst("/sys/fs/cgroup/memory", 100 * kMebibyte, 60 * kMebibyte, 0);
  for (const char* const group : {"/docker/abcd", "/docker/abcd/sub", "/docker/ab", "docker", ""}) {
    Put("/proc/self/cgroup", std::string("2:memory:") + group + "\n");
    const auto bounds = Bounds();
    ASSERT_EQ(bounds.size(), 2U) << group;
    EXPECT_EQ(bounds[1].of, "the memory cgroup /") << group;
    EXPECT_EQ(bounds[1].available, 40 * kMebibyte) << group;
  }
}

TEST_F(HostMemory, Nonsense_IsNoBound) {
  Put("/proc/self/cgroup", "memory\n2:memory\n:::\n2:memory:/a\n");
  Put("/proc/self/mountinfo", "nothing\n - \n26 20 - cgroup\n1 2 3 / /m rw - cgroup cgroup rw,memory\n");
  Put("/m/a/memory.limit_in_bytes", "many\n");
  EXPECT_EQ(Bounds().size(), 1U);
}

TEST(HostMemoryHere, IsThere) {
  const MemoryBound here = TightestMemory(MemoryBounds());
  EXPECT_GT(here.total, 16 * kMebibyte);
  EXPECT_LE(here.available, here.total);
}

}  // namespace
}  // namespace termfs

// SPDX-License-Identifier: Apache-2.0
//
// Kernels that cache what they are granted, and what they may show, while several clients change it at random.
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "base/random.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

namespace {

// A kernel in a few lines: uses attributes and names for as long as it may, and has nothing to tell old replies by but
// what Lane::keep says at the moment it takes them.
class Kernel final : public client::KernelCache {
 public:
  bool InvalidateInode(uint64_t ino, uint64_t, uint64_t) override {
    Drop(ino);
    return true;
  }
  void InvalidateAttributes(uint64_t ino, std::chrono::steady_clock::time_point) override { Drop(ino); }
  [[nodiscard]] bool InvalidateEntry(uint64_t parent, std::string_view name) override {
    Drop(parent, name);
    return true;
  }
  void Drop(uint64_t ino) {
    MutexLock lock(mutex_);
    mtimes_.erase(ino);
  }
  void Drop(uint64_t parent, std::string_view name) {
    MutexLock lock(mutex_);
    names_.erase({parent, std::string(name)});
  }
  void ServerLost() override {}

  // 0: no such name.
  uint64_t Find(Mount& mount, uint64_t parent, const std::string& name) {
    {
      MutexLock lock(mutex_);
      if (const auto known = names_.find({parent, name}); known != names_.end()) {
        ++hits_;
        return known->second;
      }
    }
    const uint64_t ino = mount.InodeOf(name, parent);
    MutexLock lock(mutex_);
    if (mount.lane->keep(nullptr).entry > 0) {
      names_[{parent, name}] = ino;
    }
    return ino;
  }
  int64_t Mtime(Mount& mount, uint64_t ino) {
    {
      MutexLock lock(mutex_);
      if (const auto known = mtimes_.find(ino); known != mtimes_.end()) {
        ++hits_;
        return known->second;
      }
    }
    const int64_t mtime = mount.Stat(ino).mtime;
    MutexLock lock(mutex_);
    if (mount.lane->keep(nullptr).attributes > 0) {
      mtimes_[ino] = mtime;
    }
    return mtime;
  }
  uint64_t hits() {
    MutexLock lock(mutex_);
    return hits_;
  }

 private:
  Mutex mutex_;
  uint64_t hits_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, int64_t> mtimes_ GUARDED_BY(mutex_);
  std::map<std::pair<uint64_t, std::string>, uint64_t> names_ GUARDED_BY(mutex_);
};

constexpr size_t kFiles = 6;
constexpr int kSteps = 1500;
constexpr int64_t kLater = 4'000'000'000'000'000'000;  // than any file was made; nanoseconds

// What every reader knows to have been returned: the last mtime of a file, and whether a name is there (even: yes,
// nothing under way; odd: somebody is changing it).
struct Truth {
  std::array<uint64_t, kFiles> inodes{};
  std::array<std::atomic<int64_t>, kFiles> mtimes{};
  std::array<std::atomic<uint64_t>, kFiles> steps{};
  std::array<std::atomic<uint64_t>, kFiles> named{};  // the inode, 0 for none
};

void Change(Mount& mount, Kernel& kernel, Truth& truth, size_t i, int64_t time, Random& random) {
  client::SetAttributes what;
  what.mtime = time;
  EXPECT_TRUE(mount.fs->Set(*mount.lane, truth.inodes[i], what, nullptr).ok());
  kernel.Drop(truth.inodes[i]);  // as a kernel does for what it changes itself
  truth.mtimes[i] = time;
  const std::string name = "n" + std::to_string(i);
  ++truth.steps[i];
  if (truth.named[i] != 0) {
    EXPECT_TRUE(mount.fs->Unlink(*mount.lane, kRootInode, name).ok());
    kernel.Drop(kRootInode, name);
    truth.named[i] = 0;
  } else if (random.Below(2) == 0) {
    EXPECT_TRUE(mount.fs->Link(*mount.lane, truth.inodes[i], kRootInode, name).ok());
    kernel.Drop(kRootInode, name);
    truth.named[i] = truth.inodes[i];
  } else {
    const auto made = mount.fs->MakeNode(*mount.lane, {0, 0}, kRootInode, name, S_IFREG | 0644, 0);
    EXPECT_TRUE(made.ok());
    kernel.Drop(kRootInode, name);
    truth.named[i] = made.ok() ? made->ino : 0;
  }
  ++truth.steps[i];
}

void Look(Mount& mount, Kernel& kernel, const Truth& truth, size_t i) {
  const int64_t at_least = truth.mtimes[i];
  ASSERT_GE(kernel.Mtime(mount, truth.inodes[i]), at_least) << "file " << i;
  const uint64_t before = truth.steps[i];
  const uint64_t expected = truth.named[i];
  const uint64_t found = kernel.Find(mount, kRootInode, "n" + std::to_string(i));
  if (before % 2 == 0 && truth.steps[i] == before) {
    ASSERT_EQ(found, expected) << "name " << i;
  }
}

}  // namespace

// Each of three clients changes files and names of its own, and looks at everybody's: what a call returned is seen by
// every look that begins later.
TEST(Grants, RandomOperations_AreSeenOnceTheyHaveReturned) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  MemoryVolume volume(uint64_t{16} << 20);
  Truth truth;
  {
    Mount setup(volume);
    for (size_t i = 0; i < kFiles; ++i) {
      setup.Close(setup.Create("f" + std::to_string(i)));
      truth.inodes[i] = setup.InodeOf("f" + std::to_string(i));
    }
  }
  std::atomic<uint64_t> hits{0};
  std::vector<std::thread> clients;
  constexpr size_t kClients = 3;
  for (size_t me = 0; me < kClients; ++me) {
    clients.emplace_back([&, me] {
      Kernel kernel;
      Mount mount(volume, &kernel);
      Random random(seed + me);
      for (int step = 1; step <= kSteps; ++step) {
        if (random.Below(10) == 0) {
          Change(mount, kernel, truth, me + kClients * random.Below(kFiles / kClients), kLater + step, random);
        } else {
          Look(mount, kernel, truth, random.Below(kFiles));
        }
      }
      hits += kernel.hits();
    });
  }
  for (std::thread& client : clients) {
    client.join();
  }
  EXPECT_GT(hits, 0u);
}

}  // namespace termfs::fs

// SPDX-License-Identifier: Apache-2.0
//
// What a truncation cuts off within a page never comes back, and what is synced afterwards stays, whatever is lost.
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "tests/unit/eventually.h"
#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

constexpr uint64_t kVolumeOfCuts = uint64_t{16} << 20;

class Cuts : public testing::Test {
 protected:
  Cuts() { file = mount.Create("f"); }
  ~Cuts() override { mount.Close(file); }

  void Write(uint64_t offset, const std::string& bytes) { ASSERT_TRUE(mount.Write(file, offset, bytes).ok()); }
  void Sync() { ASSERT_TRUE(mount.fs->Sync(*mount.lane, file, false).ok()); }
  void Cut(uint64_t size) { ASSERT_TRUE(mount.Resize(mount.InodeOf("f"), size, file).ok()); }
  // As after power loss: the metadata are there, and of the data what was flushed.
  void LoseMemory() {
    volume.Kill();
    volume.LoseMemory();
    volume.Restart();
    (void)mount.fs->Sync(*mount.lane, file, false);  // it says that writes were lost
  }
  bool IsCut() {
    const auto attributes = volume.names().GetAttr(mount.InodeOf("f"));
    return attributes.ok() && attributes->cut;
  }
  std::string Read(uint64_t size) { return mount.Read(file, 0, size); }

  MemoryVolume volume{kVolumeOfCuts};
  Mount mount{volume};
  OpenFile* file;
};

const std::string kOld(5000, 'x');

}  // namespace

TEST_F(Cuts, MemoryIsLost_AfterGrowth_NothingComesBack) {
  Write(0, kOld);
  Sync();
  Cut(100);
  Write(3000, "new");
  EXPECT_EQ(Read(3003), kOld.substr(0, 100) + std::string(2900, '\0') + "new");
  LoseMemory();
  const std::string found = Read(3003);
  EXPECT_EQ(found.substr(0, 3000), kOld.substr(0, 100) + std::string(2900, '\0'));
  EXPECT_EQ(std::count(found.begin() + 100, found.end(), 'x'), 0);
}

TEST_F(Cuts, MemoryIsLost_AfterGrowthByTruncation_NothingComesBack) {
  Write(0, kOld);
  Sync();
  Cut(100);
  Cut(4000);
  LoseMemory();
  EXPECT_EQ(Read(4000), kOld.substr(0, 100) + std::string(3900, '\0'));
}

TEST_F(Cuts, MemoryIsLost_BeforeGrowth_NothingComesBackLater) {
  Write(0, kOld);
  Sync();
  Cut(100);
  LoseMemory();
  Cut(4000);
  LoseMemory();
  EXPECT_EQ(Read(4000), kOld.substr(0, 100) + std::string(3900, '\0'));
}

TEST_F(Cuts, Synced_StaysWhenMemoryIsLost) {
  Write(0, kOld);
  Sync();
  Cut(100);
  Write(100, "new");
  EXPECT_TRUE(IsCut());
  Sync();
  EXPECT_FALSE(IsCut());
  LoseMemory();
  EXPECT_EQ(Read(200), kOld.substr(0, 100) + "new");
}

TEST_F(Cuts, CutAgainFurtherOn_WhatIsBetweenIsSynced) {
  Write(0, kOld);
  Sync();
  Cut(100);
  Write(100, std::string(2900, 'y'));
  Cut(2000);
  Sync();
  LoseMemory();
  EXPECT_EQ(Read(5000), kOld.substr(0, 100) + std::string(1900, 'y'));
}

TEST_F(Cuts, InTwoPages_NeitherComesBack) {
  const std::string old(3 * kPageSize, 'x');
  Write(0, old);
  Sync();
  Cut(100);
  Cut(3 * kPageSize);
  Write(2 * kPageSize, std::string(kPageSize, 'y'));
  Sync();
  Cut(50);
  Cut(3 * kPageSize);
  Cut(2 * kPageSize + 7);
  Cut(3 * kPageSize);
  LoseMemory();
  EXPECT_EQ(Read(3 * kPageSize), std::string(50, 'x') + std::string(3 * kPageSize - 50, '\0'));
}

TEST_F(Cuts, MemoryIsKept_SoIsWhatWasWritten) {
  Write(0, kOld);
  Sync();
  Cut(100);
  Write(100, "new");
  volume.KillAndRestart();
  EXPECT_EQ(Read(200), kOld.substr(0, 100) + "new");
  Sync();
  LoseMemory();
  EXPECT_EQ(Read(200), kOld.substr(0, 100) + "new");
}

// What is old enough to be on the SSD anyway is not zeroed by a later loss.
TEST_F(Cuts, InTime_TheReclaimerFlushesThePage) {
  Write(0, kOld);
  Sync();
  Cut(100);
  Write(100, "new");
  EXPECT_TRUE(Eventually([&] { return !IsCut(); }));
  LoseMemory();
  EXPECT_EQ(Read(200), kOld.substr(0, 100) + "new");
}

TEST_F(Cuts, TheFileIsGone_AndTheListIsEmpty) {
  Write(0, kOld);
  Cut(100);
  EXPECT_TRUE(IsCut());
  mount.Close(file);
  ASSERT_TRUE(mount.Remove("f").ok());
  EXPECT_TRUE(Eventually([&] {
    const auto cuts = volume.names().ListCuts(0, 10);
    return cuts.ok() && cuts->empty();
  }));
  file = mount.Create("f");
}

// Each byte is one of those that it was since it was synced; after a cut these are the zeros and what came later.
class RandomCuts : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomCuts, testing::Range(1, 9));

TEST_P(RandomCuts, ShowNothingThatWasCutOff) {
  constexpr uint64_t kMost = 2 * kPageSize + 1000;
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const auto below = [&](uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random); };
  MemoryVolume volume(kVolumeOfCuts);
  Mount mount(volume);
  OpenFile* const file = mount.Create("f");
  const uint64_t ino = mount.InodeOf("f");
  std::string shown;
  std::vector<std::set<char>> may_be(kMost, {'\0'});
  char next = 0;
  for (int step = 0; step < 300; ++step) {
    switch (below(6)) {
      case 0:
      case 1: {
        const uint64_t offset = below(kMost - 1);
        const uint64_t length = 1 + below(std::min<uint64_t>(kMost - offset, 600));
        next = static_cast<char>(next % 120 + 1);
        ASSERT_TRUE(mount.Write(file, offset, std::string(length, next)).ok());
        shown.resize(std::max<uint64_t>(shown.size(), offset + length));
        for (uint64_t i = offset; i < offset + length; ++i) {
          shown[i] = next;
          may_be[i].insert(next);
        }
        break;
      }
      case 2:
      case 3: {
        const uint64_t size = below(kMost);
        ASSERT_TRUE(mount.Resize(ino, size, file).ok());
        for (uint64_t i = size; i < kMost; ++i) {
          may_be[i] = {'\0'};
        }
        shown.resize(size);
        break;
      }
      case 4:
        ASSERT_TRUE(mount.fs->Sync(*mount.lane, file, false).ok());
        for (uint64_t i = 0; i < shown.size(); ++i) {
          may_be[i] = {shown[i]};
        }
        break;
      default:
        volume.Kill();
        const bool lost = below(2) == 0;
        if (lost) {
          volume.LoseMemory();
        }
        volume.Restart();
        const std::string found = mount.Read(file, 0, kMost);
        ASSERT_EQ(found.size(), shown.size()) << step;
        for (uint64_t i = 0; i < found.size(); ++i) {
          ASSERT_TRUE(lost ? may_be[i].contains(found[i]) : found[i] == shown[i])
              << "step " << step << ", byte " << i << " is " << int{found[i]} << ", was " << int{shown[i]};
          may_be[i] = lost ? std::set<char>{found[i]} : may_be[i];
        }
        shown = found;
        (void)mount.fs->Sync(*mount.lane, file, false);  // it may say that writes were lost
        for (uint64_t i = 0; i < shown.size(); ++i) {
          may_be[i] = {shown[i]};
        }
    }
  }
  mount.Close(file);
}

}  // namespace termfs::fs

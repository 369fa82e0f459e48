// SPDX-License-Identifier: Apache-2.0
#include "fs/server/contended_directories.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/fs/memory_volume.h"

namespace termfs::fs {

using server::ContendedDirectories;
using std::chrono::milliseconds;

namespace {

class ContendedDirectoriesTest : public testing::Test {
 protected:
  static constexpr uint64_t kDirectory = 5;
  static constexpr uint64_t kWriter = 1;
  static constexpr uint64_t kLister = 2;

  // So many changes, one each `interval`, of which `waited` is for recalls.
  void Change(unsigned changes, milliseconds waited, milliseconds interval, uint64_t writer = kWriter) {
    for (unsigned i = 0; i < changes; ++i) {
      directories_.NoteRecall(kDirectory, writer, now_, now_ + waited);
      now_ = now_ + interval;
    }
  }
  bool IsContended(uint64_t session = kLister) const { return directories_.IsContended(kDirectory, session, now_); }

  ContendedDirectories directories_;
  BootTime now_{std::chrono::hours(1)};
};

}  // namespace

TEST_F(ContendedDirectoriesTest, IsContended_ByManyRecallsThatTakeTheTimeOfChanges) {
  Change(ContendedDirectories::kLeastRecalls - 1, milliseconds(1), milliseconds(2));
  EXPECT_FALSE(IsContended());
  Change(1, milliseconds(1), milliseconds(2));
  EXPECT_TRUE(IsContended());
  EXPECT_FALSE(IsContended(kWriter)) << "nothing is recalled from the one that makes the changes";
  EXPECT_FALSE(directories_.IsContended(kDirectory + 1, kLister, now_));
}

TEST_F(ContendedDirectoriesTest, IsContended_NotByRecallsThatTakeLittleOfTheTime) {
  Change(200, milliseconds(1), milliseconds(40));
  EXPECT_FALSE(IsContended());
}

TEST_F(ContendedDirectoriesTest, IsContended_NotByFewRecallsHoweverSlow) {
  Change(40, milliseconds(300), milliseconds(300));
  EXPECT_FALSE(IsContended());
}

TEST_F(ContendedDirectoriesTest, IsContended_ForAllWhenSeveralChangeIt) {
  Change(4, milliseconds(1), milliseconds(2), kWriter);
  Change(4, milliseconds(1), milliseconds(2), kLister);
  EXPECT_TRUE(IsContended(kWriter));
  EXPECT_TRUE(IsContended(kLister));
}

TEST_F(ContendedDirectoriesTest, IsContended_EndsAndBeginsAgain) {
  Change(100, milliseconds(1), milliseconds(2));
  EXPECT_TRUE(IsContended());
  now_ = now_ + ContendedDirectories::kHold;
  EXPECT_FALSE(IsContended());
  Change(ContendedDirectories::kLeastRecalls, milliseconds(1), milliseconds(2));
  EXPECT_TRUE(IsContended());
  now_ = now_ + ContendedDirectories::kHold;
  EXPECT_TRUE(IsContended()) << "for longer, as it comes again and again";
  now_ = now_ + ContendedDirectories::kHold + 2 * ContendedDirectories::kLongestHold;
  EXPECT_FALSE(IsContended());
  Change(ContendedDirectories::kLeastRecalls, milliseconds(1), milliseconds(2));
  now_ = now_ + ContendedDirectories::kHold;
  EXPECT_FALSE(IsContended());
}

// What a listing shows is not granted while another mount removes names, each of which would have to be recalled.
TEST(Contended, Listing_IsGrantedNothingWhileOthersRemoveNames) {
  // Whose kernel takes a while to drop a name.
  class Slow final : public client::KernelCache {
   public:
    bool InvalidateInode(uint64_t, uint64_t, uint64_t) override { return true; }
    void InvalidateAttributes(uint64_t, std::chrono::steady_clock::time_point) override {}
    [[nodiscard]] bool InvalidateEntry(uint64_t, std::string_view) override {
      ++entries_;
      const auto end = std::chrono::steady_clock::now() + milliseconds(5);
      while (std::chrono::steady_clock::now() < end) {
        std::this_thread::yield();
      }
      return true;
    }
    void ServerLost() override {}
    std::atomic<int> entries_{0};
  };
  MemoryVolume volume(uint64_t{16} << 20);
  Slow slow;
  client::KernelCache* const none = nullptr;
  Mount writer(volume, none);
  Mount lister(volume, &slow);
  constexpr int kNames = 100;
  for (int i = 0; i < kNames; ++i) {
    ASSERT_TRUE(writer.fs->MakeNode(*writer.lane, {0, 0}, kRootInode, std::to_string(i), 0644, 0).ok());
  }
  const auto list = [&] {
    const auto listed = lister.fs->ReadDirectory(*lister.lane, kRootInode, 0, 1 << 16, true);
    EXPECT_TRUE(listed.ok());
    return listed.ok() ? *listed : std::vector<DirectoryEntry>();
  };
  EXPECT_EQ(list().size(), size_t{kNames} + 2);
  EXPECT_GT(lister.lane->keep(nullptr).entry, 0.0);
  int removed = 0;
  for (; removed < kNames / 2; ++removed) {
    ASSERT_TRUE(writer.fs->Unlink(*writer.lane, kRootInode, std::to_string(removed)).ok());
  }
  const auto listed = list();
  EXPECT_EQ(listed.size(), static_cast<size_t>(kNames - removed) + 2);
  EXPECT_EQ(lister.lane->keep(nullptr).entry, 0.0);
  for (const DirectoryEntry& entry : listed) {
    EXPECT_EQ(entry.attributes.ino == entry.ino, entry.name == "." || entry.name == "..") << entry.name;
  }
  // A look-up shows all of it, and is granted.
  const auto found = lister.fs->Lookup(*lister.lane, kRootInode, std::to_string(removed));
  ASSERT_TRUE(found.ok());
  EXPECT_GT(lister.lane->keep(&*found).entry, 0.0);
  EXPECT_TRUE(lister.fs->GetAttributes(*lister.lane, kRootInode).ok());
  EXPECT_EQ(lister.lane->keep(nullptr).attributes, 0.0) << "the next change would recall them";
}

}  // namespace termfs::fs

// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>

#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::IsEmpty;

class ReadDirTest : public VolumeTest {
 protected:
  using VolumeTest::VolumeTest;

  // Reads to the end in portions; `between` runs after each.
  std::map<std::string, int> ReadAll(InodeNumber dir, size_t limit, const std::function<void()>& between = {}) {
    std::map<std::string, int> seen;
    uint64_t cursor = 0;
    while (true) {
      const auto entries = ns().ReadDir(dir, cursor, limit);
      EXPECT_TRUE(entries.ok());
      if (!entries.ok() || entries->empty()) {
        return seen;
      }
      EXPECT_LE(entries->size(), limit);
      for (const DirectoryEntry& entry : *entries) {
        EXPECT_GT(entry.cursor, std::max<uint64_t>(cursor, 2));
        EXPECT_LT(entry.cursor, uint64_t{1} << 63);
        cursor = entry.cursor;
        ++seen[entry.name];
      }
      if (between) {
        between();
      }
    }
  }
};

TEST_F(ReadDirTest, Entries_HaveNameInodeAndType) {
  const InodeNumber dir = MakeDir(kRootInode, "d");
  const InodeNumber link = Make(kRootInode, "l", S_IFLNK | 0777);
  const auto entries = ns().ReadDirPlus(kRootInode, 0, 10);
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 2u);
  for (const DirectoryEntryPlus& plus : *entries) {
    EXPECT_EQ(plus.entry.ino, plus.entry.name == "d" ? dir : link);
    EXPECT_EQ(plus.entry.type, plus.entry.name == "d" ? FileType::kDirectory : FileType::kSymlink);
    EXPECT_EQ(plus.attributes, Get(plus.entry.ino));
  }
  for (const uint64_t cursor : {1, 2}) {
    EXPECT_EQ(ns().ReadDir(kRootInode, cursor, 10)->size(), 2u);
  }
}

TEST_F(ReadDirTest, Errors) {
  const InodeNumber file = Make(kRootInode, "f");
  EXPECT_EQ(ns().ReadDir(file, 0, 10).status().code(), ENOTDIR);
  EXPECT_EQ(ns().ReadDir(99, 0, 10).status().code(), ESTALE);
  EXPECT_EQ(ns().ReadDir(kRootInode, 0, 0).status().code(), EINVAL);
  EXPECT_THAT(*ns().ReadDir(kRootInode, ~uint64_t{0}, 10), IsEmpty());
}

TEST_F(ReadDirTest, HundredThousand_EachOnceWhileOthersComeAndGo) {
  constexpr int kEntries = 100'000;
  const InodeNumber dir = MakeDir(kRootInode, "d");
  const InodeNumber file = Make(kRootInode, "f");
  for (int i = 0; i < kEntries; ++i) {
    // Hard links would run into their limit: a new inode for each.
    Make(dir, (i % 2 == 0 ? "keep" : "lose") + std::to_string(i));
  }
  int removed = 1;
  int added = 0;
  const auto seen = ReadAll(dir, 700, [&] {
    for (int i = 0; i < 100 && removed < kEntries; ++i, removed += 2) {
      ASSERT_TRUE(ns().Unlink(dir, "lose" + std::to_string(removed), kNotOpen, Tick()).ok());
      ASSERT_TRUE(ns().Link(file, dir, "new" + std::to_string(added++), Tick()).ok());
    }
  });
  int kept = 0;
  for (const auto& [name, count] : seen) {
    EXPECT_EQ(count, 1) << name;
    kept += name.starts_with("keep") ? 1 : 0;
  }
  EXPECT_EQ(kept, kEntries / 2);
  EXPECT_GT(added, 5000);
}

class CollidingReadDirTest : public ReadDirTest {
 protected:
  static FormatOptions Options() {
    FormatOptions options = SmallVolume();
    options.name_hash_bits = 2;
    return options;
  }
  CollidingReadDirTest() : ReadDirTest(Options()) {}
};

TEST_F(CollidingReadDirTest, EqualHashes_EachOnceWhileOthersComeAndGo) {
  for (int i = 0; i < 200; ++i) {
    Make(kRootInode, "keep" + std::to_string(i));
    Make(kRootInode, "lose" + std::to_string(i));
  }
  for (const size_t limit : {1, 7, 300}) {
    int n = 0;
    const auto seen = ReadAll(kRootInode, limit, [&] {
      const std::string name = "lose" + std::to_string(n++ % 200);
      if (At(kRootInode, name) != 0) {
        ASSERT_TRUE(ns().Unlink(kRootInode, name, kNotOpen, Tick()).ok());
      } else {
        Make(kRootInode, name);
      }
    });
    int kept = 0;
    for (const auto& [name, count] : seen) {
      kept += name.starts_with("keep") ? count : 0;
    }
    EXPECT_EQ(kept, 200) << "limit " << limit;
  }
}

TEST_F(CollidingReadDirTest, TooManyEqualHashes_IsCleanlyRefused) {
  int code = 0;
  for (int i = 0; i < 800 && code == 0; ++i) {
    code = ns().Create(kRootInode, std::to_string(i), {}, {}, Tick()).status().code();
  }
  EXPECT_EQ(code, ENOSPC);
}

}  // namespace
}  // namespace termfs::metadata

// SPDX-License-Identifier: Apache-2.0
#include "fs/server/kept_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace termfs::fs::server {
namespace {

class KeptMemory : public testing::Test {
 protected:
  KeptMemory() : paths_(MakeDirectory()) {}
  ~KeptMemory() override { std::filesystem::remove_all(paths_.root); }
  static std::string MakeDirectory() {
    std::string path = testing::TempDir() + "keptXXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    return path;
  }
  uint64_t Note(uint64_t epoch, uint64_t memory) {
    const auto since = NoteMemory(paths_, epoch, memory);
    EXPECT_TRUE(since.ok()) << since.status().ToString();
    return since.ok() ? *since : 0;
  }

  const VolumePaths paths_;
};

}  // namespace

TEST_F(KeptMemory, FirstStart_KnowsOfNothingBefore) { EXPECT_EQ(Note(1, 77), 1u); }

TEST_F(KeptMemory, TakenOver_NothingIsLost) {
  EXPECT_EQ(Note(1, 77), 1u);
  EXPECT_EQ(Note(2, 77), 1u);
  EXPECT_EQ(Note(3, 77), 1u);
}

TEST_F(KeptMemory, Another_IsALoss) {
  EXPECT_EQ(Note(1, 77), 1u);
  EXPECT_EQ(Note(2, 88), 2u);
  EXPECT_EQ(Note(3, 88), 2u) << "also for who comes back only now";
  EXPECT_EQ(Note(5, 99), 5u);
}

TEST_F(KeptMemory, CleanStop_NothingIsLost) {
  const uint64_t since = Note(1, 77);
  ASSERT_TRUE(NoteCleanStop(paths_, since).ok());
  EXPECT_EQ(Note(2, 88), 1u);
  EXPECT_EQ(Note(3, 88), 1u);
  EXPECT_EQ(Note(4, 99), 4u) << "a clean stop counts once";
}

TEST_F(KeptMemory, DamagedFile_IsALoss) {
  EXPECT_EQ(Note(1, 77), 1u);
  for (const char* text : {"", "1", "x 77", "1 77 9", "9 77"}) {
    std::ofstream(paths_.kept) << text;
    EXPECT_EQ(Note(4, 77), 4u) << text;
  }
}

}  // namespace termfs::fs::server

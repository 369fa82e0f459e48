// SPDX-License-Identifier: Apache-2.0
//
// Copies of ranges within the server.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>

#include "base/page.h"
#include "base/random.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/file_cases.h"

namespace termfs::fs {

using client::OpenFile;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

std::string Noise(size_t length, uint64_t seed) {
  Random random(seed);
  std::string text(length, '\0');
  for (char& c : text) {
    c = static_cast<char>('a' + random.Below(26));
  }
  return text;
}

Result<uint64_t> Copy(Mount& mount, OpenFile* from, uint64_t from_offset, OpenFile* to, uint64_t to_offset,
                      uint64_t length) {
  return mount.fs->Copy(*mount.lane,
                        {.from = from, .from_offset = from_offset, .to = to, .to_offset = to_offset, .length = length});
}

std::string ReadAll(Mount& mount, OpenFile* file) {
  std::string text;
  for (std::string part; !(part = mount.Read(file, text.size(), kMiB)).empty();) {
    text += part;
  }
  return text;
}

}  // namespace

TEST_P(Files, Copy_IsByteForByteAtAnyOffsets) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* from = a.Create("from");
  OpenFile* to = a.Create("to");
  OpenFile* seen = b.Open("to");
  const std::string source = Noise(700'000, 1);
  std::string target = Noise(300'000, 2);
  ASSERT_TRUE(a.Write(from, 0, source).ok());
  ASSERT_TRUE(a.Write(to, 0, target).ok());
  EXPECT_EQ(ReadAll(b, seen), target);
  Random random(3);
  for (int round = 0; round < 60; ++round) {
    const uint64_t from_offset = random.Below(source.size());
    const uint64_t to_offset = random.Below(target.size() + 5000);
    const uint64_t length = 1 + random.Below(round % 2 == 0 ? 9000 : 400'000);
    const uint64_t expected = std::min<uint64_t>(length, source.size() - from_offset);
    const auto copied = Copy(a, from, from_offset, to, to_offset, length);
    ASSERT_TRUE(copied.ok()) << copied.status().ToString();
    ASSERT_EQ(*copied, expected);
    target.resize(std::max<size_t>(target.size(), to_offset + expected));
    target.replace(to_offset, expected, source, from_offset, expected);
    ASSERT_EQ(ReadAll(b, seen), target) << "round " << round;
    ASSERT_EQ(b.Stat(b.InodeOf("to")).size, target.size());
  }
  EXPECT_EQ(ReadAll(a, to), target);
  EXPECT_EQ(ReadAll(a, from), source);
  a.Close(from);
  a.Close(to);
  b.Close(seen);
}

TEST_P(Files, Copy_PassesThroughNoClient) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* from = a.Create("from");
  OpenFile* to = a.Create("to");
  ASSERT_TRUE(a.Write(from, 0, Noise(kMiB, 1)).ok());
  ASSERT_TRUE(a.fs->Flush(*a.lane, from, 0).ok());
  const uint64_t written = a.Metric("fs_write_bytes_total");
  const uint64_t read = a.Metric("fs_read_bytes_total");
  ASSERT_EQ(*Copy(a, from, 0, to, 0, kAll), kMiB);
  EXPECT_EQ(a.Metric("fs_write_bytes_total"), written);
  EXPECT_EQ(a.Metric("fs_read_bytes_total"), read);
  EXPECT_EQ(a.Metric("fs_copied_bytes_total"), kMiB);
  a.Close(from);
  a.Close(to);
}

// More than one request does.
TEST_P(Files, Copy_GoesOnUntilAllIsCopied) {
  const auto volume = Make(64 * kMiB);
  Mount a(*volume);
  OpenFile* from = a.Create("from");
  OpenFile* to = a.Create("to");
  const std::string source = Noise(20 * kMiB + 4321, 1);
  for (size_t at = 0; at < source.size(); at += kMiB) {
    ASSERT_TRUE(a.Write(from, at, std::string_view(source).substr(at, kMiB)).ok());
  }
  EXPECT_EQ(*Copy(a, from, 100, to, 7, kAll), source.size() - 100);
  EXPECT_TRUE(ReadAll(a, to) == std::string(7, '\0') + source.substr(100));
  a.Close(from);
  a.Close(to);
}

TEST_P(Files, Copy_EndsAtTheEndOfTheSource) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* from = a.Create("from");
  OpenFile* to = a.Create("to");
  ASSERT_TRUE(a.Write(from, 0, "0123456789").ok());
  EXPECT_EQ(*Copy(a, from, 4, to, 0, 100), 6u);
  EXPECT_EQ(a.Read(to, 0, 100), "456789");
  const Attributes before = a.Stat(a.InodeOf("to"));
  EXPECT_EQ(*Copy(a, from, 10, to, 100, 100), 0u);
  EXPECT_EQ(*Copy(a, from, kAll, to, 100, 100), 0u);
  EXPECT_EQ(*Copy(a, from, 0, to, 100, 0), 0u);
  const Attributes after = a.Stat(a.InodeOf("to"));
  EXPECT_EQ(after.size, before.size);
  EXPECT_EQ(after.mtime, before.mtime) << "nothing was written";
  a.Close(from);
  a.Close(to);
}

TEST_P(Files, Copy_WithinOneFile) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* file = a.Create("f");
  const std::string text = Noise(10'000, 1);
  ASSERT_TRUE(a.Write(file, 0, text).ok());
  EXPECT_EQ(Copy(a, file, 0, file, 5000, 6000).status().code(), EINVAL);
  EXPECT_EQ(Copy(a, file, 5000, file, 0, kAll).value(), 5000u) << "up to the end they do not overlap";
  EXPECT_EQ(Copy(a, file, 0, file, 0, 1).status().code(), EINVAL);
  EXPECT_EQ(Copy(a, file, 0, file, 10'000, kAll).value(), 10'000u) << "the end that was, not the one that it makes";
  EXPECT_EQ(ReadAll(a, file), text.substr(5000) + text.substr(5000) + text.substr(5000) + text.substr(5000));
  a.Close(file);
}

TEST_P(Files, Copy_HolesStayHoles) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* from = a.Create("from");
  ASSERT_TRUE(a.Write(from, 3 * kMiB, "data").ok());
  ASSERT_TRUE(a.Resize(a.InodeOf("from"), 40 * kMiB, from).ok());
  OpenFile* to = a.Create("to");
  EXPECT_EQ(*Copy(a, from, 0, to, 0, kAll), 40 * kMiB);
  EXPECT_EQ(a.Stat(a.InodeOf("to")).size, 40 * kMiB);
  EXPECT_EQ(a.Stat(a.InodeOf("to")).blocks, kPageSize / 512);
  EXPECT_EQ(a.fs->Seek(*a.lane, to, 0, SEEK_DATA).value(), 3 * kMiB);
  EXPECT_EQ(a.Read(to, 3 * kMiB - 2, 8), std::string("\0\0data\0\0", 8));
  // Over data they are zeros.
  OpenFile* full = a.Create("full");
  ASSERT_TRUE(a.Write(full, 0, std::string(100'000, 'x')).ok());
  EXPECT_EQ(*Copy(a, from, 5, full, 10, 70'000), 70'000u);
  EXPECT_EQ(ReadAll(a, full), std::string(10, 'x') + std::string(70'000, '\0') + std::string(29'990, 'x'));
  a.Close(from);
  a.Close(to);
  a.Close(full);
}

TEST_P(Files, Copy_MovesTheTimesOfTheTarget) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* from = a.Create("from");
  OpenFile* to = a.Create("to");
  ASSERT_TRUE(a.Write(from, 0, "source").ok());
  ASSERT_TRUE(a.Write(to, 0, "target").ok());
  const Attributes source = b.Stat(b.InodeOf("from"));
  const Attributes before = b.Stat(b.InodeOf("to"));
  EXPECT_EQ(*Copy(a, from, 0, to, 0, 6), 6u);
  const Attributes after = b.Stat(b.InodeOf("to"));
  EXPECT_GT(after.mtime, before.mtime);
  EXPECT_EQ(after.ctime, after.mtime);
  EXPECT_EQ(b.Stat(b.InodeOf("from")).mtime, source.mtime);
  a.Close(from);
  a.Close(to);
}

TEST_P(Files, Copy_ClearsSetIdBitsWhenToldTo) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* from = a.Create("from");
  OpenFile* to = a.Create("to");
  ASSERT_TRUE(a.Write(from, 0, "source").ok());
  const uint64_t ino = a.InodeOf("to");
  client::SetAttributes set;
  set.mode = 06775;
  ASSERT_TRUE(a.fs->Set(*a.lane, ino, set, nullptr).ok());
  client::FileCopy copy{.from = from, .from_offset = 6, .to = to, .to_offset = 0, .length = 6};
  ASSERT_TRUE(a.fs->Copy(*a.lane, copy).ok());
  copy.from_offset = 0;
  ASSERT_TRUE(a.fs->Copy(*a.lane, copy).ok());
  EXPECT_EQ(a.Stat(ino).mode & 07777, 06775u);
  copy.clears_privileges = true;
  ASSERT_TRUE(a.fs->Copy(*a.lane, copy).ok());
  EXPECT_EQ(a.Stat(ino).mode & 07777, 0775u);
  a.Close(from);
  a.Close(to);
}

TEST_P(Files, Copy_RefusesWhatLinuxRefuses) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* from = a.Create("from");
  ASSERT_TRUE(a.Write(from, 0, "source").ok());
  OpenFile* appends = a.Create("appends", O_RDWR | O_APPEND);
  OpenFile* to = a.Create("to");
  EXPECT_EQ(Copy(a, from, 0, appends, 0, 6).status().code(), EBADF);
  const auto no_longer = a.fs->Copy(*a.lane, {.from = from,
                                              .from_offset = 0,
                                              .to = appends,
                                              .to_offset = 0,
                                              .length = 6,
                                              .clears_privileges = false,
                                              .append = false});
  EXPECT_EQ(*no_longer, 6u);
  EXPECT_EQ(Copy(a, from, 0, to, (uint64_t{1} << 60) - 1, 6).status().code(), EFBIG);
  EXPECT_EQ(Copy(a, from, 0, to, kAll, 6).status().code(), EFBIG);
  EXPECT_EQ(*Copy(a, from, 0, to, (uint64_t{1} << 60) - 3, 6), 2u) << "as far as the largest file goes";
  a.Close(from);
  a.Close(appends);
  a.Close(to);
}

TEST_P(Files, Copy_WithoutSpaceIsShortThenFails) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* from = a.Create("from");
  const std::string source = Noise(20 * kMiB, 1);
  for (size_t at = 0; at < source.size(); at += kMiB) {
    ASSERT_TRUE(a.Write(from, at, std::string_view(source).substr(at, kMiB)).ok());
  }
  OpenFile* to = a.Create("to");
  uint64_t done = 0;
  Result<uint64_t> copied = uint64_t{0};
  while ((copied = Copy(a, from, done, to, done, kAll)).ok() && *copied > 0) {
    done += *copied;
  }
  EXPECT_EQ(copied.status().code(), ENOSPC);
  EXPECT_GE(done, 2 * kMiB);
  EXPECT_LT(done, source.size());
  EXPECT_EQ(a.Stat(a.InodeOf("to")).size, done);
  EXPECT_TRUE(ReadAll(a, to) == source.substr(0, done));
  a.Close(from);
  a.Close(to);
}

// What is copied next to the end of a file is not seen when that grows over it.
TEST_P(Files, Copy_LeavesZerosBehindTheEnd) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* from = a.Create("from");
  OpenFile* to = a.Create("to");
  ASSERT_TRUE(a.Write(from, 0, Noise(9000, 1)).ok());
  EXPECT_EQ(*Copy(a, from, 0, to, 0, 5000), 5000u);
  ASSERT_TRUE(a.Resize(a.InodeOf("to"), 10'000, to).ok());
  EXPECT_EQ(a.Read(to, 5000, 10'000), std::string(5000, '\0'));
  a.Close(from);
  a.Close(to);
}

TEST_P(Files, Copy_TellsTheKernelsThatCachePages) {
  const auto volume = Make();
  Mount a(*volume);
  RecordingCache cache;
  Mount b(*volume, &cache);
  OpenFile* from = a.Create("from");
  OpenFile* to = a.Create("to");
  ASSERT_TRUE(a.Write(from, 0, "source").ok());
  OpenFile* seen = b.Open("to");
  ASSERT_TRUE(b.CachePages(seen).ok());
  EXPECT_EQ(*Copy(a, from, 1, to, 5000, 4), 4u);
  EXPECT_EQ(cache.last_ino, b.InodeOf("to"));
  a.Close(from);
  a.Close(to);
  b.Close(seen);
}

}  // namespace termfs::fs

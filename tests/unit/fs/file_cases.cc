// SPDX-License-Identifier: Apache-2.0
//
// The bytes of files: written, read, cut, and seen by other clients.
#include "tests/unit/fs/file_cases.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "base/page.h"
#include "tests/unit/eventually.h"

namespace termfs::fs {

using client::OpenFile;

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST_P(Files, ReadWrite_RoundTripsAcrossPagesAndHoles) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* file = a.Create("f");
  const std::string data(10000, 'x');
  ASSERT_TRUE(a.Write(file, 100, data).ok());
  EXPECT_EQ(a.Read(file, 0, 20000), std::string(100, '\0') + data);
  ASSERT_TRUE(a.Write(file, 100000, "end").ok());
  EXPECT_EQ(a.Read(file, 99990, 100), std::string(10, '\0') + "end");
  EXPECT_EQ(a.Read(file, 50000, 10), std::string(10, '\0'));
  EXPECT_EQ(a.Read(file, 100003, 10), "");
  EXPECT_EQ(a.Stat(a.InodeOf("f")).size, 100003u);
  a.Close(file);
}

TEST_P(Files, Read_SecondOneNeedsNoServer) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, std::string(8192, 'x')).ok());
  a.Close(file);
  file = a.Open("f", O_RDONLY);
  EXPECT_EQ(a.Read(file, 0, 10), "xxxxxxxxxx");
  EXPECT_EQ(a.Metric("fs_server_reads_total"), 1u) << "it moves the access time";
  EXPECT_EQ(a.Read(file, 5000, 10), "xxxxxxxxxx");
  a.Close(file);
  file = a.Open("f", O_RDONLY);
  EXPECT_EQ(a.Read(file, 0, 10), "xxxxxxxxxx");
  EXPECT_EQ(a.Metric("fs_server_reads_total"), 1u) << "open brings the map";
  a.Close(file);
}

TEST_P(Files, Write_SeenByOtherClientAtOnce) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* fa = a.Create("f");
  OpenFile* fb = b.Open("f");
  for (int i = 1; i <= 50; ++i) {
    const std::string data(static_cast<size_t>(i) * 777, static_cast<char>('a' + i % 26));
    ASSERT_TRUE((i % 2 ? a : b).Write(i % 2 ? fa : fb, 0, data).ok());
    EXPECT_EQ(b.Read(fb, 0, 100000), data);
    EXPECT_EQ(a.Read(fa, 0, 100000), data);
    EXPECT_EQ(b.Stat(b.InodeOf("f")).size, data.size());
  }
  a.Close(fa);
  b.Close(fb);
}

TEST_P(Files, Write_IntoHoleRevokesCachedHole) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* fa = a.Create("f");
  ASSERT_TRUE(a.Resize(a.InodeOf("f"), kMiB, fa).ok());
  OpenFile* fb = b.Open("f");
  EXPECT_EQ(b.Read(fb, 8192, 4), std::string(4, '\0'));
  EXPECT_EQ(b.Read(fb, 8192, 4), std::string(4, '\0'));
  ASSERT_TRUE(a.Write(fa, 8192, "data").ok());
  EXPECT_EQ(b.Read(fb, 8192, 4), "data");
  a.Close(fa);
  b.Close(fb);
}

TEST_P(Files, Truncate_DownAndUpShowsZeros) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* fa = a.Create("f");
  ASSERT_TRUE(a.Write(fa, 0, std::string(20000, 'x')).ok());
  OpenFile* fb = b.Open("f");
  EXPECT_EQ(b.Read(fb, 4990, 20), std::string(20, 'x'));
  ASSERT_TRUE(a.Resize(a.InodeOf("f"), 5000, fa).ok());
  EXPECT_EQ(b.Read(fb, 4990, 20), std::string(10, 'x'));
  ASSERT_TRUE(b.Resize(b.InodeOf("f"), 20000).ok());
  EXPECT_EQ(a.Read(fa, 4990, 20), std::string(10, 'x') + std::string(10, '\0'));
  EXPECT_EQ(a.Read(fa, 12000, 5), std::string(5, '\0'));
  a.Close(fa);
  b.Close(fb);
}

TEST_P(Files, Truncate_ReusedPagesNeverShowOldBytes) {
  const auto volume = Make(16 * kMiB);
  Mount a(*volume);
  Mount b(*volume);
  const std::string secret(4 * kMiB, 'S');
  for (int round = 0; round < 8; ++round) {  // more than the volume holds, so pages come round
    OpenFile* old = a.Create("old" + std::to_string(round));
    ASSERT_TRUE(a.Write(old, 0, secret).ok());
    OpenFile* reader = b.Open("old" + std::to_string(round), O_RDONLY);
    EXPECT_EQ(b.Read(reader, kMiB, 4), "SSSS");
    if (round % 2 == 0) {
      ASSERT_TRUE(a.Resize(a.InodeOf("old" + std::to_string(round)), 0, old).ok());
    }
    a.Close(old);
    ASSERT_TRUE(a.Remove("old" + std::to_string(round)).ok());
    if (round % 2 == 0) {
      EXPECT_EQ(b.Read(reader, kMiB, 4), "");
    } else {
      EXPECT_EQ(b.Read(reader, kMiB, 4), "SSSS") << "unlinked, but open";
    }
    OpenFile* fresh = b.Create("new" + std::to_string(round));
    for (uint64_t page = 0; page < 512; ++page) {  // single bytes, so the rest of each page shows what was there
      ASSERT_TRUE(b.Write(fresh, page * kPageSize + 7, "n").ok());
    }
    const std::string read = b.Read(fresh, 0, kMiB) + b.Read(fresh, kMiB, kMiB);
    EXPECT_EQ(read.find('S'), std::string::npos);
    b.Close(reader);
    b.Close(fresh);
    ASSERT_TRUE(b.Remove("new" + std::to_string(round)).ok());
  }
}

TEST_P(Files, Space_EnospcIsCleanAndSpaceReturns) {
  const auto volume = Make(16 * kMiB);
  Mount a(*volume);
  const std::string chunk(kMiB, 'x');
  for (int round = 0; round < 3; ++round) {
    OpenFile* file = a.Create("big");
    Status status;
    uint64_t written = 0;
    while ((status = a.Write(file, written, chunk)).ok()) {
      written += chunk.size();
      ASSERT_LE(written, 16 * kMiB);
    }
    EXPECT_EQ(status.code(), ENOSPC) << status.ToString();
    EXPECT_GE(written, 14 * kMiB) << "round " << round;
    EXPECT_EQ(a.Stat(a.InodeOf("big")).size, written);
    EXPECT_EQ(a.Read(file, written - 3, 10), "xxx");
    a.Close(file);
    ASSERT_TRUE(a.Remove("big").ok());
  }
  OpenFile* file = a.Create("small");
  EXPECT_TRUE(a.Write(file, 0, chunk).ok());
  EXPECT_EQ(a.fs->Allocate(*a.lane, file, 0, 0, 64 * kMiB).code(), ENOSPC);
  EXPECT_EQ(a.Stat(a.InodeOf("small")).size, kMiB);
  a.Close(file);
}

TEST_P(Files, Append_OfTwoClientsLosesNothing) {
  const auto volume = Make();
  Mount setup(*volume);
  setup.Close(setup.Create("log"));
  constexpr int kLines = 300;
  const auto writer = [&](char who) {
    Mount mount(*volume);
    OpenFile* file = mount.Open("log", O_WRONLY | O_APPEND);
    for (int i = 0; i < kLines; ++i) {
      ASSERT_TRUE(mount.Write(file, 0, std::string(99, who) + "\n").ok());
    }
    mount.Close(file);
  };
  std::thread first(writer, 'a');
  std::thread second(writer, 'b');
  first.join();
  second.join();
  OpenFile* file = setup.Open("log", O_RDONLY);
  const std::string log = setup.Read(file, 0, kMiB);
  ASSERT_EQ(log.size(), 2u * kLines * 100);
  std::array<int, 2> counts{};
  for (size_t at = 0; at < log.size(); at += 100) {
    ASSERT_EQ(log.substr(at, 100), std::string(99, log[at]) + "\n");
    ++counts[static_cast<size_t>(log[at] - 'a')];
  }
  EXPECT_EQ(counts[0], kLines);
  EXPECT_EQ(counts[1], kLines);
  setup.Close(file);
}

TEST_P(Files, Open_TruncateEmptiesForEverybody) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* fa = a.Create("f");
  ASSERT_TRUE(a.Write(fa, 0, "content").ok());
  EXPECT_EQ(a.Read(fa, 0, 10), "content");
  OpenFile* fb = b.Open("f", O_WRONLY | O_TRUNC);
  EXPECT_EQ(a.Read(fa, 0, 10), "");
  EXPECT_EQ(a.Stat(a.InodeOf("f")).blocks, 0u);
  a.Close(fa);
  b.Close(fb);
}

TEST_P(Files, Growth_SpaceAheadIsTrimmedAtClose) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* file = a.Create("f");
  for (uint64_t at = 0; at < 3 * kMiB; at += 65536) {
    ASSERT_TRUE(a.Write(file, at, std::string(65536, 'x')).ok());
  }
  EXPECT_EQ(a.Stat(a.InodeOf("f")).size, 3 * kMiB);
  a.Close(file);  // which the server hears of, and does, when it gets to it
  EXPECT_TRUE(Eventually([&] { return a.Stat(a.InodeOf("f")).blocks == 3 * kMiB / 512; }));
}

TEST_P(Files, Growth_SpaceAheadIsNeitherCountedNorData) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* file = a.Create("f");
  const auto blocks = [&](Mount& mount) { return mount.Stat(mount.InodeOf("f")).blocks * 512; };
  for (uint64_t at = 0; at < kMiB; at += 65536) {
    ASSERT_TRUE(a.Write(file, at, std::string(65536, 'x')).ok());
    EXPECT_EQ(blocks(a), at + 65536);
    EXPECT_EQ(blocks(b), at + 65536);
  }
  ASSERT_TRUE(a.Write(file, 64 * kMiB, std::string(65536, 'y')).ok());  // leaps over what was allocated ahead
  EXPECT_EQ(*a.fs->Seek(*a.lane, file, 0, SEEK_HOLE), kMiB);
  EXPECT_EQ(*a.fs->Seek(*a.lane, file, kMiB, SEEK_DATA), 64 * kMiB);
  EXPECT_EQ(blocks(b), kMiB + 65536);
  EXPECT_EQ(a.Read(file, kMiB, 10), std::string(10, '\0'));
  EXPECT_EQ(a.Read(file, 64 * kMiB, 2), "yy");
  a.Close(file);
  EXPECT_TRUE(Eventually([&] { return blocks(b) == kMiB + 65536; }));
}

TEST_P(Files, Growth_SpaceAheadIsNotWhatFallocateAskedFor) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* file = a.Create("f");
  const auto blocks = [&] { return a.Stat(a.InodeOf("f")).blocks * 512; };
  const auto grow = [&](uint64_t begin) {
    for (uint64_t at = begin; at < begin + kMiB; at += 65536) {
      ASSERT_TRUE(a.Write(file, at, std::string(65536, 'x')).ok());
    }
  };
  const auto allocate = [&](int mode, uint64_t offset, uint64_t length) {
    return a.fs->Allocate(*a.lane, file, mode, offset, length).code();
  };
  grow(0);
  EXPECT_EQ(allocate(FALLOC_FL_KEEP_SIZE, 4096, 4096), 0) << "of what is there already";
  EXPECT_EQ(blocks(), kMiB);
  grow(kMiB);
  EXPECT_EQ(allocate(FALLOC_FL_KEEP_SIZE, 3 * kMiB, kMiB), 0);
  EXPECT_EQ(blocks(), 3 * kMiB) << "space behind the end, which was asked for, counts";
  EXPECT_EQ(allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * kMiB, kMiB), 0);
  EXPECT_EQ(blocks(), 2 * kMiB);
  grow(2 * kMiB);
  EXPECT_EQ(allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * kMiB + 65536, 65536), 0);
  EXPECT_EQ(blocks(), 3 * kMiB) << "a hole in what was allocated ahead";
  grow(3 * kMiB);
  EXPECT_EQ(allocate(0, 8 * kMiB, kMiB), 0);
  EXPECT_EQ(blocks(), 5 * kMiB);
  EXPECT_EQ(*a.fs->Seek(*a.lane, file, 0, SEEK_HOLE), 4 * kMiB);
  EXPECT_EQ(*a.fs->Seek(*a.lane, file, 4 * kMiB, SEEK_DATA), 8 * kMiB) << "what was asked for counts as data";
  a.Close(file);
  EXPECT_TRUE(Eventually([&] { return blocks() == 5 * kMiB; }));
}

TEST_P(Files, Growth_CopyOfAHoleLeapsOverSpaceAhead) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* holes = a.Create("holes");
  ASSERT_TRUE(a.Write(holes, 8 * kMiB, "x").ok());
  OpenFile* file = a.Create("f");
  for (uint64_t at = 0; at < kMiB; at += 65536) {
    ASSERT_TRUE(a.Write(file, at, std::string(65536, 'x')).ok());
  }
  ASSERT_EQ(*a.fs->Copy(*a.lane, {.from = holes, .from_offset = 0, .to = file, .to_offset = kMiB, .length = 4 * kMiB}),
            4 * kMiB);
  EXPECT_EQ(*a.fs->Seek(*a.lane, file, 0, SEEK_HOLE), kMiB);
  EXPECT_EQ(a.Stat(a.InodeOf("f")).blocks * 512, kMiB);
  a.Close(holes);
  a.Close(file);
}

TEST_P(Files, Fallocate_PunchZeroSeek) {
  const auto volume = Make();
  Mount a(*volume);
  Mount b(*volume);
  OpenFile* fa = a.Create("f");
  OpenFile* fb = b.Open("f");
  const auto allocate = [&](int mode, uint64_t offset, uint64_t length) {
    return a.fs->Allocate(*a.lane, fa, mode, offset, length).code();
  };
  ASSERT_TRUE(a.Write(fa, 0, std::string(40960, 'x')).ok());
  EXPECT_EQ(b.Read(fb, 8000, 4), "xxxx");
  EXPECT_EQ(allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 6000, 20000), 0);
  EXPECT_EQ(b.Read(fb, 5998, 4), std::string("xx\0\0", 4));
  EXPECT_EQ(b.Read(fb, 25998, 4), std::string("\0\0xx", 4));
  EXPECT_EQ(*a.fs->Seek(*a.lane, fa, 0, SEEK_HOLE), 8192u);
  EXPECT_EQ(*a.fs->Seek(*a.lane, fa, 9000, SEEK_DATA), 24576u);
  EXPECT_EQ(*a.fs->Seek(*a.lane, fa, 30000, SEEK_HOLE), 40960u);
  EXPECT_EQ(a.fs->Seek(*a.lane, fa, 40960, SEEK_DATA).status().code(), ENXIO);
  EXPECT_EQ(allocate(FALLOC_FL_ZERO_RANGE, 30000, 20000), 0);
  EXPECT_EQ(b.Read(fb, 29998, 30000), "xx" + std::string(20000, '\0'));
  EXPECT_EQ(allocate(FALLOC_FL_KEEP_SIZE, 0, kMiB), 0);
  EXPECT_EQ(a.Stat(a.InodeOf("f")).size, 50000u);
  EXPECT_EQ(a.Stat(a.InodeOf("f")).blocks, kMiB / 512);
  EXPECT_EQ(allocate(0, 0, 60000), 0);
  EXPECT_EQ(b.Read(fb, 49999, 20000), std::string(10001, '\0'));
  EXPECT_EQ(allocate(FALLOC_FL_COLLAPSE_RANGE, 0, 4096), EOPNOTSUPP);
  EXPECT_EQ(allocate(FALLOC_FL_INSERT_RANGE, 0, 4096), EOPNOTSUPP);
  EXPECT_EQ(allocate(0, 0, 0), EINVAL);
  EXPECT_EQ(allocate(0, uint64_t{1} << 62, 10), EFBIG);
  a.Close(fa);
  EXPECT_EQ(b.Stat(b.InodeOf("f")).blocks, kMiB / 512) << "what was asked for stays after the last writer's close";
  b.Close(fb);
  EXPECT_EQ(b.Stat(b.InodeOf("f")).blocks, kMiB / 512);
}

TEST_P(Files, Limits_TooLarge) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* file = a.Create("f");
  EXPECT_EQ(a.Write(file, uint64_t{1} << 62, "x").code(), EFBIG);
  EXPECT_EQ(a.Write(file, UINT64_MAX, "x").code(), EFBIG);
  EXPECT_EQ(a.Resize(a.InodeOf("f"), UINT64_MAX, file).code(), EFBIG);
  EXPECT_TRUE(a.Resize(a.InodeOf("f"), (uint64_t{1} << 60) - 1, file).ok());
  EXPECT_TRUE(a.Write(file, (uint64_t{1} << 60) - 2, "x").ok());
  EXPECT_EQ(a.Read(file, (uint64_t{1} << 60) - 3, 10), std::string("\0x", 2));
  EXPECT_EQ(a.Read(file, UINT64_MAX, 10), "");
  a.Close(file);
}

TEST_P(Files, Sync_ReturnsAfterEverything) {
  const auto volume = Make();
  Mount a(*volume);
  OpenFile* file = a.Create("f");
  ASSERT_TRUE(a.Write(file, 0, std::string(100000, 'x')).ok());
  EXPECT_TRUE(a.fs->Sync(*a.lane, file, false).ok());
  EXPECT_TRUE(a.fs->Sync(*a.lane, file, true).ok());
  EXPECT_TRUE(a.fs->SyncDirectory(*a.lane, kRootInode).ok());
  a.Close(file);
}

TEST_P(Files, Restart_KeepsEverything) {
  const auto volume = Make();
  std::string data(3 * kMiB, '\0');
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<char>('A' + (i / 4096 + i) % 53);
  }
  {
    Mount a(*volume);
    OpenFile* file = a.Create("f");
    ASSERT_TRUE(a.Write(file, 12345, data).ok());
    ASSERT_TRUE(a.fs->MakeDirectory(*a.lane, {0, 0}, kRootInode, "d", 0700).ok());
    a.Close(file);
  }
  volume->Restart();
  {
    Mount a(*volume);
    EXPECT_NE(a.InodeOf("d"), 0u);
    OpenFile* file = a.Open("f", O_RDWR);
    std::string read;
    for (uint64_t at = 12345; at < 12345 + data.size(); at += kMiB) {
      read += a.Read(file, at, kMiB);
    }
    EXPECT_TRUE(read == data);
    ASSERT_TRUE(a.Write(file, 12345 + data.size(), "more").ok());
    EXPECT_EQ(a.Read(file, 12345 + data.size() - 1, 10), data.substr(data.size() - 1) + "more");
    a.Close(file);
  }
  EXPECT_TRUE(volume->Check().empty());
}

TEST_P(Files, KernelCache_IsInvalidatedBeforeWriteReturns) {
  const auto volume = Make();
  RecordingCache cache_a;
  RecordingCache cache_b;
  Mount a(*volume, &cache_a);
  Mount b(*volume, &cache_b);
  OpenFile* fa = a.Create("f");
  ASSERT_TRUE(a.Write(fa, 0, "alone").ok());
  EXPECT_EQ(cache_b.calls, 0u) << "it has nothing open";
  OpenFile* fb = b.Open("f");
  ASSERT_TRUE(a.Write(fa, 1, "both").ok());
  EXPECT_EQ(cache_b.calls, 0u) << "nothing of it is cached";
  ASSERT_TRUE(b.CachePages(fb).ok());
  EXPECT_EQ(b.Read(fb, 0, 5), "aboth");
  ASSERT_TRUE(a.Write(fa, 2, "both").ok());
  EXPECT_EQ(cache_b.calls, 1u);
  EXPECT_EQ(cache_b.last_ino, a.InodeOf("f"));
  ASSERT_TRUE(b.CachePages(fb).ok());
  ASSERT_TRUE(a.Resize(a.InodeOf("f"), 1, fa).ok());
  EXPECT_EQ(cache_b.calls, 2u);
  EXPECT_EQ(cache_a.calls, 0u) << "the writer's own kernel knows";
  a.Close(fa);
  b.Close(fb);
}

TEST_P(Files, ConcurrentGrowthAndReads_NeverShowTornOrStaleTails) {
  const auto volume = Make();
  Mount setup(*volume);
  setup.Close(setup.Create("f"));
  std::atomic<uint64_t> acknowledged{0};
  std::atomic<bool> done{false};
  std::thread writer([&] {
    Mount mount(*volume);
    OpenFile* file = mount.Open("f", O_WRONLY | O_APPEND);
    for (int i = 0; i < 400; ++i) {
      ASSERT_TRUE(mount.Write(file, 0, std::string(1000, 'w')).ok());
      acknowledged = (static_cast<uint64_t>(i) + 1) * 1000;
    }
    mount.Close(file);
    done = true;
  });
  Mount reader(*volume);
  OpenFile* file = reader.Open("f", O_RDONLY);
  while (!done) {
    const uint64_t at_least = acknowledged;
    const std::string read = reader.Read(file, 0, kMiB);
    EXPECT_GE(read.size(), at_least);
    EXPECT_EQ(read.find_first_not_of('w'), std::string::npos);
  }
  writer.join();
  reader.Close(file);
}

}  // namespace termfs::fs

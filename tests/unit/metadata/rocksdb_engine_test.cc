// SPDX-License-Identifier: Apache-2.0
//
// What a store with many records reads and holds in memory: counted, not timed.
#include "metadata/rocksdb_engine.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "base/random.h"
#include "base/unique_fd.h"
#include "metadata/keys.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

uint64_t Metric(KeyValueStore& store, std::string_view name) {
  for (const MetricValue& metric : store.Metrics()) {
    if (metric.name == name) {
      return metric.value;
    }
  }
  ADD_FAILURE() << "there is no " << name;
  return 0;
}

std::unique_ptr<KeyValueStore> Open(const std::string& path, uint64_t memory_bytes) {
  RocksDbOptions options;
  options.create_if_missing = true;
  options.memory_bytes = memory_bytes;
  auto store = OpenRocksDb(path, options);
  EXPECT_TRUE(store.ok()) << store.status().ToString();
  return store.ok() ? std::move(*store) : nullptr;
}

// They read, too.
void AwaitCompactions(KeyValueStore& store) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  for (int quiet = 0; quiet < 5; quiet = Metric(store, "metadata_compactions") == 0 ? quiet + 1 : 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), limit);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// A store of kFiles names, with a filter and an index that are larger than what a look-up may read.
class ManyRecords : public ::testing::Test {
 protected:
  static constexpr uint64_t kFiles = 200'000;
  static constexpr uint64_t kMostBytes = 32 << 10;  // of one cold look-up

  static uint64_t HashOf(uint64_t file) { return file * 0x9e3779b97f4a7c15ULL >> 9; }
  static std::string KeyOf(uint64_t file) { return DentryKey(2, HashOf(file), "file"); }

  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory;
    auto store = Open(directory_->path(), 256 * kMiB);
    Random random(1);
    for (uint64_t file = 0; file < kFiles;) {
      const auto transaction = store->Begin();
      for (const uint64_t end = file + 1000; file < end; ++file) {
        std::string value(16, '\0');
        for (char& c : value) {
          c = static_cast<char>(random());
        }
        ASSERT_TRUE(transaction->Put(KeyOf(file), value).ok());
      }
      ASSERT_TRUE(transaction->Commit().ok());
    }
    // Each start adds a table, and four are merged. Of those that are not, filters and indexes are read at the start.
    for (int i = 0; i < 4; ++i) {
      store.reset();
      store = Open(directory_->path(), 256 * kMiB);
      AwaitCompactions(*store);
    }
    store.reset();
  }
  static void TearDownTestSuite() { delete directory_; }

  // With everything in tables and nothing cached.
  static std::unique_ptr<KeyValueStore> Cold(uint64_t memory_bytes = 256 * kMiB) {
    AwaitCompactions(*Open(directory_->path(), memory_bytes));
    return Open(directory_->path(), memory_bytes);
  }
  // The same, in which nothing is read but what the test reads: no compaction.
  static std::unique_ptr<KeyValueStore> ColdToRead() {
    Cold().reset();
    auto store = OpenRocksDb(directory_->path(), {.read_only = true});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return std::move(*store);
  }

  static TemporaryDirectory* directory_;
};

TemporaryDirectory* ManyRecords::directory_ = nullptr;

TEST_F(ManyRecords, ColdLookUp_ReadsLittle) {
  const auto store = ColdToRead();
  uint64_t most = 0;
  Random random(2);
  for (int i = 0; i < 100; ++i) {
    const uint64_t before = Metric(*store, "metadata_read_bytes_total");
    const auto found = store->Snapshot()->Get(KeyOf(random.Below(kFiles)));
    ASSERT_TRUE(found.ok() && found->has_value());
    most = std::max(most, Metric(*store, "metadata_read_bytes_total") - before);
  }
  EXPECT_LE(most, kMostBytes);
  EXPECT_GT(most, 0u);
}

// Takes the tables of a store out of the kernel's page cache; false: the file system does not do that, or cannot tell.
bool ForgetPages(const std::string& path) {
  bool forgotten = true;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().extension() == ".sst") {
      const UniqueFd fd(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
      char byte = 0;
      const iovec into{.iov_base = &byte, .iov_len = 1};
      forgotten = forgotten && fdatasync(fd.get()) == 0 && posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) == 0 &&
                  preadv2(fd.get(), &into, 1, 0, RWF_NOWAIT) < 0 && errno == EAGAIN;
    }
  }
  return forgotten;
}

TEST_F(ManyRecords, MemorySnapshot_ReadsWhatTheKernelHas) {
  auto store = Cold();
  if (!ForgetPages(directory_->path())) {
    GTEST_SKIP() << "pages stay in memory here";
  }
  EXPECT_EQ(store->MemorySnapshot()->Get(KeyOf(7)).status().code(), EAGAIN);
  ASSERT_TRUE(store->Snapshot()->Get(KeyOf(7)).ok());
  store.reset();
  const auto cold = Cold();  // the kernel has the pages that were read now, the store does not
  const auto found = cold->MemorySnapshot()->Get(KeyOf(7));
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_TRUE(found->has_value());
}

// A new name: what a Create asks for.
TEST_F(ManyRecords, ScanForANameThatIsNotThere_ReadsNoRecords) {
  const auto store = ColdToRead();
  const uint64_t before = Metric(*store, "metadata_read_bytes_total");
  const auto scan_all = [&] {
    for (uint64_t file = kFiles; file < kFiles + 2000; ++file) {
      const uint64_t hash = HashOf(file);
      const auto found = store->Snapshot()->Scan(DentryKey(2, hash, ""), DentryKey(2, hash + 1, ""), 8);
      ASSERT_TRUE(found.ok() && found->empty());
    }
  };
  scan_all();  // filters are in memory from here on
  // Blocks of records have some 50 of them: those that hold the places of 2,000 names are most of all.
  EXPECT_LE(Metric(*store, "metadata_read_bytes_total") - before, kFiles * 64 / 8);
}

TEST_F(ManyRecords, SetMemory_HoldsForWhatIsCached) {
  const auto store = Cold(64 * kMiB);
  ASSERT_TRUE(ForEach(*store->Snapshot(), "D", "E", [](const KeyValue&) { return Status::Ok(); }).ok());
  EXPECT_GT(Metric(*store, "metadata_memory_used_bytes"), 4 * kMiB);
  ASSERT_TRUE(store->SetMemory(4 * kMiB).ok());
  EXPECT_EQ(Metric(*store, "metadata_memory_bytes"), 4 * kMiB);
  EXPECT_LE(Metric(*store, "metadata_memory_used_bytes"), 4 * kMiB);
}

TEST(RocksDbMemory, WhatIsWritten_StaysWithinIt) {
  const TemporaryDirectory directory;
  constexpr uint64_t kMemory = 32 * kMiB;
  const auto store = Open(directory.path(), kMemory);
  for (uint64_t i = 0; i < 48; ++i) {
    ASSERT_TRUE(Retry(*store, [&](Transaction& t) { return t.Put(InodeKey(i), std::string(kMiB, 'v')); }).ok());
    EXPECT_LE(Metric(*store, "metadata_memtable_bytes"), kMemory / 2);
    EXPECT_LE(Metric(*store, "metadata_memory_used_bytes"), kMemory + kMiB);
  }
}

// Filters spare look-ups of what is not there, and never hide what is.
TEST(RocksDbScan, FindsTheSameInTables) {
  const TemporaryDirectory directory;
  std::map<std::string, std::string> expected;
  Random random(4);
  const auto any_key = [&random] {
    const uint64_t ino = random.Below(40);
    switch (random.Below(4)) {
      case 0:
        return DentryKey(ino, random.Below(20), std::string(1 + random.Below(2), 'n'));
      case 1:
        return ExtentKey(ino, random.Below(10));
      case 2:
        return XattrKey(ino, std::string(random.Below(3), 'x'));
      default:
        return InodeKey(ino);
    }
  };
  for (int table = 0; table < 4; ++table) {
    const auto store = Open(directory.path(), 32 * kMiB);  // which puts into a table what is in the log
    for (int i = 0; i < 300; ++i) {
      const std::string key = any_key();
      ASSERT_TRUE(Retry(*store, [&](Transaction& t) { return t.Put(key, std::to_string(table)); }).ok());
      expected[key] = std::to_string(table);
    }
  }
  const auto store = Open(directory.path(), 32 * kMiB);
  for (int i = 0; i < 20'000; ++i) {
    std::string begin = any_key();
    std::string end = any_key();
    if (random.Below(2) == 0) {  // all that begins like one
      begin = begin.substr(0, 1 + random.Below(begin.size()));
      end = begin;
      ++end.back();
    }
    const auto order = random.Below(2) == 0 ? ScanOrder::kAscending : ScanOrder::kDescending;
    const auto found = store->Snapshot()->Scan(begin, end, 1000, order);
    ASSERT_TRUE(found.ok());
    std::map<std::string, std::string> within;
    for (auto at = expected.lower_bound(begin); at != expected.end() && at->first < end; ++at) {
      within.insert(*at);
    }
    ASSERT_EQ(found->size(), within.size());
    for (const KeyValue& pair : *found) {
      ASSERT_EQ(within.count(pair.key), 1u);
      ASSERT_EQ(within.at(pair.key), pair.value);
    }
  }
}

bool IsNarrow(const std::string& begin, const std::string& end, bool ascending = true) {
  rocksdb::ReadOptions options;
  NarrowScan(begin, end, ascending, options);
  return !options.total_order_seek;
}

TEST(RocksDbScan, IsNarrowWhereAllKeysBeginAlike) {
  EXPECT_TRUE(IsNarrow(DentryKey(2, 7, ""), DentryKey(2, 8, "")));
  EXPECT_TRUE(IsNarrow(DentryKey(2, 7, "a"), DentryKey(2, 7, "b")));
  EXPECT_TRUE(IsNarrow(DentryKey(2, 0xff, ""), DentryKey(2, 0x100, "")));
  EXPECT_TRUE(IsNarrow(XattrKey(2, ""), XattrKey(3, "")));
  EXPECT_TRUE(IsNarrow(ExtentKey(2, 5), ExtentKey(2, 9)));
  EXPECT_FALSE(IsNarrow(DentryKey(2, 7, ""), DentryKey(2, 9, "")));
  EXPECT_FALSE(IsNarrow(DentryKey(2, 7, "a"), DentryKey(3, 0, "")));
  EXPECT_FALSE(IsNarrow(ExtentKey(2, 0), ExtentKey(4, 0)));
  EXPECT_FALSE(IsNarrow(InodeKey(2), InodeKey(3)));
  EXPECT_FALSE(IsNarrow("D", "E"));
  EXPECT_FALSE(IsNarrow("", "E"));
  EXPECT_FALSE(IsNarrow(ExtentKey(2, 5), ExtentKey(2, 9), /*ascending=*/false));
}

}  // namespace
}  // namespace termfs::metadata

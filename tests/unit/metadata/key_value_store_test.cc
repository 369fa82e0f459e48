// SPDX-License-Identifier: Apache-2.0
//
// What every KeyValueStore must do, run over all of them.
#include "metadata/key_value_store.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "metadata/torn_logs.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

enum class Kind { kMemory, kRocksDb };

class KeyValueStoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  KeyValueStoreTest() { Open(); }

  void Open() {
    if (GetParam() == Kind::kMemory) {
      store_ = NewMemoryStore();
      return;
    }
    store_.reset();
    RocksDbOptions options;
    options.create_if_missing = true;
    options.lock_timeout = std::chrono::milliseconds(1);
    auto opened = OpenRocksDb(directory_.path(), options);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    store_ = std::move(opened).value();
  }
  KeyValueStore& store() { return *store_; }

  void Put(std::string_view key, std::string_view value) {
    ASSERT_TRUE(Retry(store(), [&](Transaction& t) { return t.Put(key, value); }).ok());
  }
  static std::string Value(Reader& reader, std::string_view key) {
    const auto value = reader.Get(key);
    return value.ok() ? value->value_or("(none)") : value.status().ToString();
  }
  static std::vector<std::string> Keys(Reader& reader, std::string_view begin, std::string_view end, size_t limit,
                                       ScanOrder order = ScanOrder::kAscending) {
    std::vector<std::string> keys;
    const auto pairs = reader.Scan(begin, end, limit, order);
    EXPECT_TRUE(pairs.ok());
    for (const KeyValue& pair : *pairs) {
      keys.push_back(pair.key);
    }
    return keys;
  }
  // Whether both transactions, open at once, commit; a conflict may show in any call.
  bool BothCommit(const std::function<Status(Transaction&)>& first, const std::function<Status(Transaction&)>& second) {
    const auto one = store().Begin();
    const auto two = store().Begin();
    EXPECT_TRUE(first(*one).ok());
    Status status = second(*two);
    const Status committed = one->Commit();
    EXPECT_TRUE(committed.ok()) << committed.ToString();
    if (status.ok()) {
      status = two->Commit();
    }
    EXPECT_TRUE(status.ok() || status.code() == EAGAIN) << status.ToString();
    return status.ok();
  }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<KeyValueStore> store_;
};

TEST_P(KeyValueStoreTest, Commit_MakesWritesVisible) {
  const auto t = store().Begin();
  ASSERT_TRUE(t->Put("a", "1").ok());
  EXPECT_EQ(Value(*t, "a"), "1");
  EXPECT_EQ(Value(*store().Snapshot(), "a"), "(none)");
  ASSERT_TRUE(t->Commit().ok());
  EXPECT_EQ(Value(*store().Snapshot(), "a"), "1");
}

TEST_P(KeyValueStoreTest, Transaction_DestroyedWithoutCommitLeavesNothing) {
  { ASSERT_TRUE(store().Begin()->Put("a", "1").ok()); }
  EXPECT_EQ(Value(*store().Snapshot(), "a"), "(none)");
  Put("a", "2");
  EXPECT_EQ(Value(*store().Snapshot(), "a"), "2");
}

TEST_P(KeyValueStoreTest, Keys_MayHoldAnyByteAndSortUnsigned) {
  const std::string zero("a\0b", 3);
  Put("a\xff", "1");
  Put(zero, "2");
  Put("a", "");
  EXPECT_THAT(Keys(*store().Snapshot(), "a", "b", 10), ElementsAre("a", zero, "a\xff"));
  EXPECT_EQ(Value(*store().Snapshot(), "a"), "");
}

TEST_P(KeyValueStoreTest, MemorySnapshot_SaysTheSameOrNothing) {
  Put("a", "1");
  const auto before = store().MemorySnapshot();
  Put("a", "2");
  Put("b", "3");
  EXPECT_EQ(Value(*before, "a"), "1");
  EXPECT_EQ(Value(*before, "b"), "(none)");
  const auto after = store().MemorySnapshot();
  for (const auto& [key, value] : {std::pair{"a", "2"}, {"b", "3"}, {"c", "(none)"}}) {
    const auto got = after->Get(key);
    ASSERT_TRUE(got.ok() || got.status().code() == EAGAIN);
    EXPECT_TRUE(!got.ok() || got->value_or("(none)") == value) << key;
  }
}

TEST_P(KeyValueStoreTest, Snapshot_StaysAtItsInstant) {
  Put("a", "1");
  Put("b", "1");
  const auto before = store().Snapshot();
  Put("a", "2");
  ASSERT_TRUE(Retry(store(), [](Transaction& t) { return t.Delete("b"); }).ok());
  EXPECT_EQ(Value(*before, "a"), "1");
  EXPECT_THAT(Keys(*before, "a", "z", 10), ElementsAre("a", "b"));
  EXPECT_THAT(Keys(*store().Snapshot(), "a", "z", 10), ElementsAre("a"));
}

TEST_P(KeyValueStoreTest, Scan_RespectsBoundsLimitAndOrder) {
  for (const char* key : {"a", "b", "c", "d"}) {
    Put(key, key);
  }
  const auto reader = store().Snapshot();
  EXPECT_THAT(Keys(*reader, "b", "d", 10), ElementsAre("b", "c"));
  EXPECT_THAT(Keys(*reader, "a", "z", 2), ElementsAre("a", "b"));
  EXPECT_THAT(Keys(*reader, "a", "d", 2, ScanOrder::kDescending), ElementsAre("c", "b"));
  EXPECT_THAT(Keys(*reader, "bb", "c", 2, ScanOrder::kDescending), IsEmpty());
  EXPECT_THAT(Keys(*reader, "d", "b", 2), IsEmpty());
  EXPECT_THAT(Keys(*reader, "a", "z", 0), IsEmpty());
}

TEST_P(KeyValueStoreTest, Scan_InTransactionMergesItsOwnWrites) {
  for (const char* key : {"a", "b", "d"}) {
    Put(key, "old");
  }
  const auto t = store().Begin();
  ASSERT_TRUE(t->Put("c", "new").ok());
  ASSERT_TRUE(t->Delete("b").ok());
  ASSERT_TRUE(t->Put("d", "new").ok());
  ASSERT_TRUE(t->Put("z", "new").ok());
  EXPECT_THAT(Keys(*t, "a", "z", 10), ElementsAre("a", "c", "d"));
  EXPECT_THAT(Keys(*t, "a", "z", 2, ScanOrder::kDescending), ElementsAre("d", "c"));
  const auto pairs = t->Scan("d", "e", 1);
  ASSERT_TRUE(pairs.ok());
  EXPECT_EQ(pairs->at(0).value, "new");
}

TEST_P(KeyValueStoreTest, Conflict_TwoWritersOfAKey) {
  EXPECT_FALSE(
      BothCommit([](Transaction& t) { return t.Put("a", "1"); }, [](Transaction& t) { return t.Put("a", "2"); }));
  EXPECT_EQ(Value(*store().Snapshot(), "a"), "1");
}

TEST_P(KeyValueStoreTest, Conflict_TwoClaimsOfAnAbsentKey) {
  EXPECT_FALSE(BothCommit([](Transaction& t) { return t.GetForUpdate("a").status(); },
                          [](Transaction& t) { return t.GetForUpdate("a").status(); }));
}

TEST_P(KeyValueStoreTest, Conflict_NoneBetweenDifferentKeysOrPlainReads) {
  EXPECT_TRUE(BothCommit([](Transaction& t) { return t.Put("a", "1"); },
                         [](Transaction& t) {
                           RETURN_IF_ERROR(t.Get("a").status());
                           return t.Put("b", "2");
                         }));
}

TEST_P(KeyValueStoreTest, Retry_CountsRightUnderContention) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  Put("n", "0");
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const Status status = Retry(store(), [](Transaction& t) -> Status {
          ASSIGN_OR_RETURN(const auto value, t.GetForUpdate("n"));
          return t.Put("n", std::to_string(std::stoi(value.value_or("0")) + 1));
        });
        failures += status.ok() ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  // Waiting ends after a millisecond in this test, so that some may give up; none may be lost or doubled.
  EXPECT_EQ(Value(*store().Snapshot(), "n"), std::to_string(kThreads * kRounds - failures));
}

TEST_P(KeyValueStoreTest, Retry_GivesUpOnEndlessConflictsAndPassesErrorsOn) {
  int attempts = 0;
  const auto conflict = [&](Transaction&) {
    ++attempts;
    return Status::Error(EAGAIN, "conflict");
  };
  EXPECT_EQ(Retry(store(), conflict).code(), EBUSY);
  EXPECT_EQ(attempts, kMaxAttempts);
  EXPECT_EQ(Retry(store(), [](Transaction&) { return Status::Error(ENOSPC, "full"); }).code(), ENOSPC);
}

TEST_P(KeyValueStoreTest, Reopen_FindsWhatWasCommitted) {
  if (GetParam() == Kind::kMemory) {
    GTEST_SKIP() << "a store in memory keeps nothing";
  }
  Put("a", "1");
  ASSERT_TRUE(store().SyncWal().ok());
  Open();
  EXPECT_EQ(Value(*store().Snapshot(), "a"), "1");
}

INSTANTIATE_TEST_SUITE_P(All, KeyValueStoreTest, ::testing::Values(Kind::kMemory, Kind::kRocksDb),
                         [](const auto& kind) { return kind.param == Kind::kMemory ? "Memory" : "RocksDb"; });

TEST(RocksDbStore, Open_MissingDirectoryIsEnoent) {
  const TemporaryDirectory directory;
  EXPECT_EQ(OpenRocksDb(directory.path() + "/none").status().code(), ENOENT);
}

TEST(RocksDbStore, Open_TwiceIsEbusy) {
  const TemporaryDirectory directory;
  RocksDbOptions options;
  options.create_if_missing = true;
  const auto first = OpenRocksDb(directory.path(), options);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(OpenRocksDb(directory.path(), options).status().code(), EBUSY);
}

// What a killed process leaves: a log that nobody has closed.
class RocksDbLog : public ::testing::Test {
 protected:
  static constexpr int kRecords = 400;

  void SetUp() override {
    const TemporaryDirectory origin;
    RocksDbOptions options;
    options.create_if_missing = true;
    auto store = OpenRocksDb(origin.path(), options);
    ASSERT_TRUE(store.ok());
    for (int i = 0; i < kRecords; i++) {
      ASSERT_TRUE(
          Retry(**store, [&](Transaction& t) { return t.Put(std::to_string(1000 + i), std::string(300, 'v')); }).ok());
    }
    std::filesystem::copy(origin.path(), path());
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      if (entry.path().extension() == ".log" && (log_.empty() || entry.file_size() > Read(log_).size())) {
        log_ = entry.path();
      }
    }
    ASSERT_GT(Read(log_).size(), 100'000u);
  }
  std::string path() const { return directory_.path() + "/meta"; }

  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void Write(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  std::map<std::string, std::string> Everything() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      files[entry.path()] = Read(entry.path());
    }
    return files;
  }
  size_t RecordsOf(const RocksDbOptions& options) {
    const auto store = OpenRocksDb(path(), options);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? (*store)->Snapshot()->Scan("1", "2", 2 * kRecords)->size() : 0;
  }
  void Damage(size_t at, size_t bytes) {
    std::string log = Read(log_);
    log.replace(at, bytes, bytes, '\0');
    Write(log_, log);
  }

  const TemporaryDirectory directory_;
  std::string log_;
};

TEST_F(RocksDbLog, TornAtItsEnd_IsCutBackToWholeRecords) {
  const std::string log = Read(log_);
  Write(log_, log.substr(0, log.size() - 100));
  EXPECT_TRUE(FindDamagedLogs(path())->empty());
  EXPECT_EQ(RecordsOf({.read_only = true}), kRecords - 1u);
  EXPECT_EQ(RecordsOf({}), kRecords - 1u);
}

TEST_F(RocksDbLog, DamagedBeforeWholeRecords_IsRefusedAndNothingIsChanged) {
  for (const auto& [at, bytes] : {std::pair<size_t, size_t>{50'000, 8}, {200, 200}, {40'000, 40'000}}) {
    const std::string whole = Read(log_);
    Damage(at, bytes);
    const auto before = Everything();
    const auto damaged = FindDamagedLogs(path());
    ASSERT_EQ(damaged->size(), 1u);
    EXPECT_LE(damaged->front().whole, at);
    EXPECT_EQ(damaged->front().whole + damaged->front().behind, whole.size());
    EXPECT_EQ(OpenRocksDb(path()).status().code(), EBADMSG);
    EXPECT_LT(RecordsOf({.read_only = true}), size_t{kRecords});
    EXPECT_EQ(Everything(), before);
    Write(log_, whole);
  }
  EXPECT_EQ(RecordsOf({}), size_t{kRecords});
}

TEST_F(RocksDbLog, DamagedBeforeWholeRecords_IsSetAsideOnDemand) {
  Damage(50'000, 8);
  const std::string log = Read(log_);
  const size_t whole = FindDamagedLogs(path())->front().whole;
  const size_t left = RecordsOf({.cut_damaged_logs = true});
  EXPECT_GT(left, 0u);
  EXPECT_LT(left, size_t{kRecords});
  EXPECT_EQ(Read(log_ + ".cut-off"), log.substr(whole));
  EXPECT_EQ(RecordsOf({}), left);
}

TEST_F(RocksDbLog, WhatFollowsATornLog_IsKeptAside) {
  const std::string log = Read(log_);
  const std::string next = path() + "/999999.log";
  Write(next, log);
  Write(log_, log.substr(0, log.size() - 100));
  EXPECT_GE(*CutTornLogs(path(), Damage::kRefuse), 2u);
  EXPECT_EQ(Read(next), "");
  EXPECT_EQ(Read(next + ".cut-off"), log);
}

TEST_F(RocksDbLog, ReadOnly_ChangesNothing) {
  const auto before = Everything();
  EXPECT_EQ(RecordsOf({.read_only = true}), size_t{kRecords});
  const auto store = OpenRocksDb(path(), {.read_only = true});
  EXPECT_EQ(Retry(**store, [](Transaction& t) { return t.Put("a", "b"); }).code(), EROFS);
  EXPECT_EQ(Everything(), before);
}

}  // namespace
}  // namespace termfs::metadata

// SPDX-License-Identifier: Apache-2.0
//
// What an earlier server left dirty, and everything after a flush that failed, is flushed in steps, from which on it is
// settled.
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "fs/server/reclaimer.h"
#include "metadata/memory_store.h"
#include "tests/unit/eventually.h"

namespace termfs::fs::server {
namespace {

using testing::ElementsAre;
using testing::Pair;
using tlib::server::PageRange;

constexpr uint64_t kStep = 65536;  // pages
constexpr uint64_t kPages = 3 * kStep + 100;

Status NotHere() { return Status::Error(ENOSYS, "only flushes are here"); }

// A server that flushes, as a region with so many pages as the namespace has.
class FlushRecorder final : public tlib::server::Server, private tlib::server::RegionIo {
 public:
  using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;  // first page, pages

  explicit FlushRecorder(metadata::Namespace& names) : names_(names) {}

  // What the flush with that number, from 0 on, does instead. Before there are any.
  void At(size_t number, std::function<Status()> instead) { instead_[number] = std::move(instead); }
  Ranges flushed() {
    MutexLock lock(mutex_);
    return flushed_;
  }

  tlib::server::RegionIo& region() override { return *this; }
  Status RunInCoroutine(std::function<Status()> task) override { return task(); }
  Status Flush(std::span<const PageRange> ranges) override {
    size_t number = 0;
    {
      MutexLock lock(mutex_);
      number = flushed_.size();
      for (const PageRange& range : ranges) {
        flushed_.emplace_back(range.first.value, range.count);
      }
    }
    const uint64_t pages = names_.superblock().capacity_pages;
    for (const PageRange& range : ranges) {
      if (range.first.value > pages || range.count > pages - range.first.value) {
        return Status::Error(EINVAL, "flush pages beyond the region");
      }
    }
    const auto found = instead_.find(number);
    return found != instead_.end() ? found->second() : Status::Ok();
  }

  Status Stop() override { return Status::Ok(); }
  uint64_t memory() const override { return 1; }
  void Spawn(std::function<void()>) override {}
  Result<std::vector<std::byte>> CallClient(tlib::server::SessionId, uint16_t, std::span<const std::byte>,
                                            std::chrono::milliseconds) override {
    return NotHere();
  }
  void Expel(tlib::server::SessionId, const std::string&) override {}
  void Lose(tlib::server::SessionId, const std::string&) override {}
  std::vector<tlib::server::SessionInfo> Sessions() const override { return {}; }
  Status SetDramRatio(double) override { return NotHere(); }
  Status Grow(uint64_t) override { return NotHere(); }
  Status CheckShrink() const override { return NotHere(); }
  Status Shrink(uint64_t) override { return NotHere(); }
  Status SetFrameChoice(tlib::server::FrameChoice) override { return NotHere(); }
  Status SetPattern(const driver::Pattern&) override { return NotHere(); }
  std::vector<MetricValue> Metrics() const override { return {}; }
  Status Read(RegionOffset, std::span<std::byte>) override { return NotHere(); }
  Status Write(RegionOffset, std::span<const std::byte>) override { return NotHere(); }
  Status WriteFrom(tlib::server::Call&, RegionOffset, uint32_t, uint32_t, const std::function<Status()>&) override {
    return NotHere();
  }
  Status ReadTo(tlib::server::Call&, RegionOffset, uint32_t, uint32_t) override { return NotHere(); }
  Status Zero(std::span<const PageRange>) override { return NotHere(); }
  uint64_t failed_flushes() const override { return 0; }

 private:
  metadata::Namespace& names_;
  std::map<size_t, std::function<Status()>> instead_;
  Mutex mutex_;
  Ranges flushed_ GUARDED_BY(mutex_);
};

class SettlingTest : public testing::Test {
 protected:
  ~SettlingTest() override { reclaimer_.Stop(); }

  static std::unique_ptr<metadata::Namespace> MakeNames(metadata::KeyValueStore& store) {
    metadata::FormatOptions options;
    options.capacity_pages = kPages;
    EXPECT_TRUE(metadata::Namespace::Format(store, options).ok());
    return metadata::Namespace::Open(store).value();
  }
  void Start() { reclaimer_.Start(server_); }
  bool Settles() {
    return Eventually([this] { return reclaimer_.settled(); }, std::chrono::seconds(20));
  }

  const std::unique_ptr<metadata::KeyValueStore> store_ = metadata::NewMemoryStore();
  const std::unique_ptr<metadata::Namespace> names_ = MakeNames(*store_);
  FlushRecorder server_{*names_};
  InodeTable inodes_;
  Clients clients_{*names_, std::chrono::seconds(1)};
  std::atomic<int> passes_{0};
  ReplacedInodes replaced_{std::chrono::seconds(1), 100, 100};
  Reclaimer reclaimer_{*names_, inodes_, clients_, replaced_, [](uint64_t) {}, [this] { ++passes_; }};
};

TEST_F(SettlingTest, EachStepIsFollowedByWhatElseThereIsToDo) {
  std::vector<int> passes;
  for (size_t number = 0; number < 4; ++number) {
    server_.At(number, [&] {
      passes.push_back(passes_);
      EXPECT_FALSE(reclaimer_.settled());
      return Status::Ok();
    });
  }
  EXPECT_FALSE(reclaimer_.settled());
  Start();
  ASSERT_TRUE(Settles());
  EXPECT_THAT(server_.flushed(),
              ElementsAre(Pair(0, kStep), Pair(kStep, kStep), Pair(2 * kStep, kStep), Pair(3 * kStep, 100)));
  EXPECT_THAT(passes, ElementsAre(1, 2, 3, 4));
}

TEST_F(SettlingTest, AStepThatFails_IsTakenAgain) {
  server_.At(1, [] { return Status::Error(EIO, "injected"); });
  Start();
  ASSERT_TRUE(Settles());
  EXPECT_THAT(server_.flushed(), ElementsAre(Pair(0, kStep), Pair(kStep, kStep), Pair(kStep, kStep),
                                             Pair(2 * kStep, kStep), Pair(3 * kStep, 100)));
}

TEST_F(SettlingTest, WhoUnsettlesDuringAStep_HasAllFlushedSince) {
  server_.At(3, [this] {
    reclaimer_.Unsettle();
    return Status::Ok();
  });
  server_.At(4, [this] {
    EXPECT_FALSE(reclaimer_.settled());
    return Status::Ok();
  });
  Start();
  ASSERT_TRUE(Settles());
  EXPECT_THAT(server_.flushed(),
              ElementsAre(Pair(0, kStep), Pair(kStep, kStep), Pair(2 * kStep, kStep), Pair(3 * kStep, 100),
                          Pair(0, kStep), Pair(kStep, kStep), Pair(2 * kStep, kStep), Pair(3 * kStep, 100)));
}

TEST_F(SettlingTest, WhoUnsettlesLater_HasAllFlushedSince) {
  Start();
  ASSERT_TRUE(Settles());
  reclaimer_.Unsettle();
  EXPECT_FALSE(reclaimer_.settled());
  ASSERT_TRUE(Settles());
  EXPECT_EQ(server_.flushed().size(), 8u);
}

TEST_F(SettlingTest, ARegionThatBecomesSmallerDuringAStep_SettlesAllTheSame) {
  server_.At(2, [this] {
    EXPECT_TRUE(names_->Confine(kStep + 10).ok());
    EXPECT_TRUE(names_->Shrink(kStep + 10).ok());
    return Status::Ok();
  });
  Start();
  ASSERT_TRUE(Settles());
  EXPECT_THAT(server_.flushed(),
              ElementsAre(Pair(0, kStep), Pair(kStep, kStep), Pair(2 * kStep, kStep), Pair(kStep + 10, 0)));
}

}  // namespace
}  // namespace termfs::fs::server

// SPDX-License-Identifier: Apache-2.0
//
// A server of a region is killed at every named point of the storage, many times over, and the next one is asked for
// everything that was acknowledged. The rounds follow upon one another on the same devices, and a third of them ends
// with a loss of power: the tmpfs is gone, and the SSD loses what was not flushed.
//
//   killed:      each byte is what the last write that returned left, or, within the write that did not, its value
//   power loss:  each byte is what was flushed last or something written to it since; zero, if zeroed and not written
//   always:      never what the medium held before (another file's bytes)
#include <gtest/gtest.h>

#include <array>
#include <bitset>
#include <filesystem>
#include <memory>
#include <set>

#include "driver/softnic/softnic.h"
#include "tests/crash/killed_process.h"
#include "tests/fakes/crash_block_device.h"
#include "tests/fakes/crash_nic.h"
#include "tests/fakes/shared_block_device.h"
#include "tests/unit/tlib/server_storage/task_fixture.h"
#include "tlib/server/region_on_device.h"
#include "tlib/server/written_log.h"

namespace termfs::tlib::server {
namespace {

using driver::RegionKind;

constexpr uint64_t kOwners = 4;
constexpr uint64_t kEach = 24;  // pages
constexpr uint64_t kPages = kOwners * kEach;
constexpr uint64_t kOwnBytes = kEach * kPageSize;
constexpr std::byte kOldBytes{0xa5};
constexpr uint64_t kValues = 32;  // bytes that are written are below

// What one task has done to its pages, where the next process finds it.
struct OwnerLog {
  enum class Doing : uint8_t { kNothing, kWriting, kZeroing };
  Doing doing = Doing::kNothing;
  bool power_lost = false;  // and nobody has looked since
  uint64_t at = 0;
  uint64_t length = 0;
  std::byte value{0};
  std::array<std::byte, kOwnBytes> current{};  // as of the last acknowledged operation
  std::array<uint32_t, kOwnBytes> allowed{};   // after power loss: bit n for value n
};
struct Log {
  std::array<OwnerLog, kOwners> owners{};
  uint64_t acknowledged = 0;
};

class Owner {
 public:
  Owner(Region& region, uint64_t index, Log& log, uint64_t seed)
      : region_(region), first_(index * kEach), own_(log.owners[index]), log_(log), random_(seed) {}

  enum class Work : uint8_t { kMixed, kFlushAll, kWriteAndFlushAll, kNothing };
  std::string Do(Work work) {
    switch (work) {
      case Work::kNothing:
        break;
      case Work::kMixed:
        return Run(30);
      case Work::kWriteAndFlushAll:
        Write();
        Write();
        [[fallthrough]];
      case Work::kFlushAll:
        FlushFrom(0, kEach);
    }
    return wrong_;
  }

  std::string Run(int steps) {
    for (int i = 0; i < steps && wrong_.empty(); i++) {
      const uint64_t what = random_.Below(12);
      if (what < 7) {
        Write();
      } else if (what < 9) {
        Flush();
      } else if (what < 10) {
        Zero();
      } else {
        Read();
      }
    }
    return wrong_;
  }

  // After a kill or a loss of power; from here on what was found is the truth.
  std::string Verify() {
    std::vector<std::byte> found(kOwnBytes);
    if (const Status status = region_.Read({first_ * kPageSize}, found); !status.ok()) {
      return status.ToString();
    }
    for (uint64_t i = 0; i < kOwnBytes; i++) {
      const auto value = static_cast<uint64_t>(found[i]);
      const bool in_pending = own_.doing != OwnerLog::Doing::kNothing && i >= own_.at && i < own_.at + own_.length;
      const bool pending_value = in_pending && found[i] == own_.value;
      const bool kept = found[i] == own_.current[i] || pending_value;
      const bool synced = value < kValues && (own_.allowed[i] >> value & 1) != 0;
      if (own_.power_lost ? !synced : !kept) {
        return "page " + std::to_string(first_ + i / kPageSize) + " byte " + std::to_string(i % kPageSize) + " is " +
               std::to_string(value) + ", was " + std::to_string(static_cast<int>(own_.current[i])) +
               (in_pending ? ", being changed to " + std::to_string(static_cast<int>(own_.value)) : "") +
               (own_.power_lost ? "; allowed after power loss: " + std::to_string(own_.allowed[i]) : "");
      }
      own_.current[i] = found[i];
      if (own_.power_lost) {
        own_.allowed[i] = 1U << value;
      }
    }
    own_.doing = OwnerLog::Doing::kNothing;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    own_.power_lost = false;
    return {};
  }

 private:
  void Begin(OwnerLog::Doing doing, uint64_t at, uint64_t length, std::byte value) {
    own_.at = at;
    own_.length = length;
    own_.value = value;
    for (uint64_t i = at; i < at + length; i++) {
      own_.allowed[i] |= 1U << static_cast<uint32_t>(value);
    }
    std::atomic_signal_fence(std::memory_order_seq_cst);
    own_.doing = doing;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  void End() {
    std::fill_n(own_.current.begin() + static_cast<ptrdiff_t>(own_.at), own_.length, own_.value);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    own_.doing = OwnerLog::Doing::kNothing;
    std::atomic_ref(log_.acknowledged).fetch_add(1, std::memory_order_relaxed);
  }

  void Write() {
    uint64_t at = random_.Below(kOwnBytes);
    uint64_t length = 1 + random_.Below(std::min<uint64_t>(kOwnBytes - at, random_.Below(2) == 0 ? 600 : 20000));
    if (random_.Below(3) == 0) {  // whole pages
      at = RoundDownToPage(at);
      length = std::min(RoundUpToPage(length), kOwnBytes - at);
    }
    const auto value = static_cast<std::byte>(1 + random_.Below(kValues - 2));
    Begin(OwnerLog::Doing::kWriting, at, length, value);
    const std::vector<std::byte> bytes(length, value);
    Expect(region_.Write({first_ * kPageSize + at}, bytes));
    End();
  }

  void Zero() {
    const uint64_t first = random_.Below(kEach);
    const PageRange range{.first = {first_ + first}, .count = 1 + random_.Below(std::min<uint64_t>(4, kEach - first))};
    Begin(OwnerLog::Doing::kZeroing, first * kPageSize, range.count * kPageSize, std::byte{0});
    Expect(region_.Zero({&range, 1}));
    End();
    Settle(first, range.count);
  }

  void Flush() {
    const uint64_t first = random_.Below(kEach);
    FlushFrom(first, 1 + random_.Below(kEach - first));
  }

  void FlushFrom(uint64_t first, uint64_t count) {
    const PageRange range{.first = {first_ + first}, .count = count};
    Expect(region_.Flush({&range, 1}));
    Settle(first, count);
  }

  // Only what is there now survives a loss of power.
  void Settle(uint64_t first, uint64_t count) {
    for (uint64_t i = first * kPageSize; i < (first + count) * kPageSize; i++) {
      own_.allowed[i] = 1U << static_cast<uint32_t>(own_.current[i]);
    }
  }

  void Read() {
    const uint64_t at = random_.Below(kOwnBytes);
    std::vector<std::byte> found(1 + random_.Below(std::min<uint64_t>(kOwnBytes - at, 30000)));
    Expect(region_.Read({first_ * kPageSize + at}, found));
    if (!std::equal(found.begin(), found.end(), own_.current.begin() + static_cast<ptrdiff_t>(at))) {
      wrong_ = "a read while everything runs is wrong, page " + std::to_string(first_ + at / kPageSize);
    }
  }

  void Expect(const Status& status) {
    if (!status.ok()) {
      wrong_ = status.ToString();
    }
  }

  Region& region_;
  const uint64_t first_;
  OwnerLog& own_;
  Log& log_;
  Random random_;
  std::string wrong_;
};

struct Round {
  std::string point;
  uint64_t count = 0;
  uint64_t seed = 0;
  RegionKind kind = RegionKind::kTerm;
  double ratio = 0.5;
  Owner::Work first_owner = Owner::Work::kMixed;
  Owner::Work other_owners = Owner::Work::kMixed;
  bool stop_at_end = false;
  bool power_loss = false;  // after it
};

class KilledRegion {
 public:
  KilledRegion() : pages_(kPages * kPageSize, kOldBytes), log_medium_(WrittenLog::BytesFor(kPages), kOldBytes) {
    SharedBlockDevice device(log_medium_);
    TERMFS_CHECK(WrittenLog::Format(device, kPages).ok());
    std::string name = "/dev/shm/termfs-crash-XXXXXX";
    TERMFS_CHECK(mkdtemp(name.data()) != nullptr);
    directory_ = name;
    for (OwnerLog& owner : log_->owners) {
      owner.allowed.fill(1);
    }
  }
  ~KilledRegion() { std::filesystem::remove_all(directory_); }

  HowItEnded Run(const Round& round) {
    const HowItEnded ended = RunInProcess([&] { return Serve(round); });
    if (round.power_loss && ended != HowItEnded::kFailed) {
      Random random(round.seed);
      pages_.LosePower(random);
      log_medium_.LosePower(random);
      std::filesystem::remove_all(tier());
      for (OwnerLog& owner : log_->owners) {
        owner.power_lost = true;
      }
    }
    return ended;
  }
  uint64_t acknowledged() { return log_->acknowledged; }

 private:
  std::string tier() const { return directory_ + "/tier"; }

  // In a process of its own.
  std::string Serve(const Round& round) {
    CrashPoints points(round.point, round.count);
    auto soft = driver::CreateSoftNic();
    if (!soft.ok()) {
      return soft.status().ToString();
    }
    driver::CrashNic nic(**soft, points);
    auto domain = nic.CreateProtectionDomain();
    TaskRunner runner;
    MetricsRegistry metrics;
    RegionOptions options;
    options.kind = round.kind;
    options.device = "the test's";
    options.pages = kPages;
    options.dram_ratio = round.ratio;
    options.choice = FrameChoice::kRecent;
    options.sample_period = std::chrono::milliseconds(5);
    options.tier = {.directory = tier(), .own_tmpfs = false, .record = directory_ + "/record", .volume = "a volume"};
    auto opened = OpenRegionOn(
        options, {.nic = nic, .domain = **domain, .metrics = metrics, .spawn = runner.spawner()},
        {.pages = std::make_unique<CrashBlockDevice>(std::make_unique<SharedBlockDevice>(pages_), points, "pages"),
         .log = std::make_unique<CrashBlockDevice>(std::make_unique<SharedBlockDevice>(log_medium_), points, "log")});
    if (!opened.ok()) {
      return "open: " + opened.status().ToString();
    }
    const std::string wrong = Use(round, **opened, runner);
    if (!wrong.empty()) {
      EndWith(round.point + ":" + std::to_string(round.count) + " seed " + std::to_string(round.seed) + ": " + wrong);
    }
    if (round.stop_at_end) {
      Status stopped;
      runner.Run([&] { stopped = (*opened)->Stop(); });
      EndWith(stopped.ok() ? "" : stopped.ToString());
    }
    EndWith("");
  }

  std::string Use(const Round& round, Region& region, TaskRunner& runner) {
    std::array<std::string, kOwners + 1> wrong;
    runner.Run([&] {
      if (const Status started = region.Start(nullptr); !started.ok()) {
        wrong[0] = "start: " + started.ToString();
      }
    });
    if (wrong[0].empty()) {
      if (const Status kept = region.Keep(); !kept.ok()) {
        wrong[0] = "keep: " + kept.ToString();
      }
    }
    if (!wrong[0].empty()) {
      return wrong[0];
    }
    std::vector<std::unique_ptr<Owner>> owners;
    std::vector<std::function<void()>> verify, work;
    for (uint64_t i = 0; i < kOwners; i++) {
      owners.push_back(std::make_unique<Owner>(region, i, *log_, round.seed * kOwners + i));
      verify.push_back([&, i] { wrong[i] = owners[i]->Verify(); });
      work.push_back([&, i] { wrong[i] = owners[i]->Do(i == 0 ? round.first_owner : round.other_owners); });
    }
    if (round.kind == RegionKind::kTerm && round.seed % 3 == 0 && round.other_owners == Owner::Work::kMixed) {
      work.push_back([&] {
        for (const double ratio : {0.7, 0.2, round.ratio}) {
          if (const Status set = region.SetDramRatio(ratio); !set.ok()) {
            wrong[kOwners] = set.ToString();
          }
        }
      });
    }
    runner.RunAll(std::move(verify));
    if (First(wrong).empty()) {
      runner.RunAll(std::move(work));
    }
    return First(wrong);
  }

  static std::string First(const std::array<std::string, kOwners + 1>& wrong) {
    for (const std::string& text : wrong) {
      if (!text.empty()) {
        return text;
      }
    }
    return {};
  }

  SharedMedium pages_;
  SharedMedium log_medium_;
  Shared<Log> log_;
  std::string directory_;
};

constexpr std::array<const char*, 25> kPoints = {
    "pages.read",    "pages.was_read",  "pages.write",     "pages.written",  "pages.flush",
    "pages.flushed", "log.read",        "log.was_read",    "log.write",      "log.written",
    "log.flush",     "log.flushed",     "nic.publish",     "nic.published",  "nic.begin_write",
    "nic.hide",      "nic.begun_write", "nic.hidden",      "nic.commit",     "nic.committed",
    "nic.decommit",  "nic.register",    "nic.decommitted", "nic.registered", "nic.frames"};

// Each point dies at its first passings, and at later ones, further and further apart.
void KillEverywhere(RegionKind kind, double ratio, std::initializer_list<uint64_t> counts, uint64_t seed) {
  KilledRegion region;
  std::set<std::pair<std::string, uint64_t>> died_at;
  for (uint64_t length = 0; length < CrashTestLength(); length++) {
    for (const uint64_t count : counts) {
      for (const char* const point : kPoints) {
        seed++;
        const Round round{.point = point,
                          .count = count + length * 7,
                          .seed = seed,
                          .kind = kind,
                          .ratio = ratio,
                          .stop_at_end = seed % 2 == 0,
                          .power_loss = seed % 3 == 0};
        const HowItEnded ended = region.Run(round);
        ASSERT_NE(ended, HowItEnded::kFailed) << point << ":" << round.count << " seed " << seed;
        if (ended == HowItEnded::kKilled) {
          died_at.insert({round.point, round.count});
        }
      }
    }
  }
  ASSERT_NE(region.Run({.point = "", .count = 0, .seed = seed + 1, .kind = kind, .ratio = ratio}), HowItEnded::kFailed);
  std::set<std::string> names;
  for (const auto& [name, count] : died_at) {
    names.insert(name);
  }
  testing::Test::RecordProperty("deaths", static_cast<int>(died_at.size()));
  testing::Test::RecordProperty("acknowledged", static_cast<int>(region.acknowledged()));
  std::printf("died at %zu pairs of %zu points, %lu operations acknowledged\n", died_at.size(), names.size(),
              static_cast<unsigned long>(region.acknowledged()));
  EXPECT_GE(died_at.size(), kPoints.size()) << "the points are not passed any more";
}

TEST(RegionKill, SmallTier_KeepsWhatReturned) {
  KillEverywhere(RegionKind::kTerm, 0.15, {1, 2, 3, 5, 9, 16, 30}, 1000);
}
TEST(RegionKill, LargeTier_KeepsWhatReturned) { KillEverywhere(RegionKind::kTerm, 0.8, {1, 2, 4, 7, 13, 40}, 2000); }
// The process dies when its bytes have reached the SSD and may be in its cache only. For the next one the pages are
// clean; asked to flush, it has nothing to write, and what it says must be true all the same.
TEST(RegionKill, BeforeTheFlush_TheNextServerFlushes) {
  using Work = Owner::Work;
  KilledRegion region;
  const auto run = [&](const char* point, uint64_t seed, Work first, Work others, bool power_loss) {
    return region.Run({.point = point,
                       .count = point[0] == 0 ? 0U : 1U,
                       .seed = seed,
                       .ratio = 0.8,
                       .first_owner = first,
                       .other_owners = others,
                       .power_loss = power_loss});
  };
  int deaths = 0;
  for (uint64_t seed = 5000; seed < 5012; seed++) {
    ASSERT_EQ(run("", seed, Work::kFlushAll, Work::kFlushAll, false), HowItEnded::kByItself) << seed;
    const HowItEnded ended = run("pages.flush", seed, Work::kWriteAndFlushAll, Work::kNothing, false);
    ASSERT_NE(ended, HowItEnded::kFailed) << seed;
    deaths += ended == HowItEnded::kKilled ? 1 : 0;
    ASSERT_EQ(run("", seed, Work::kFlushAll, Work::kNothing, true), HowItEnded::kByItself) << seed;
  }
  EXPECT_EQ(run("", 5012, Work::kMixed, Work::kMixed, false), HowItEnded::kByItself);
  EXPECT_GE(deaths, 6) << "the point is not passed any more";
}
TEST(RegionKill, WholeRegionInMemory_KeepsWhatReturned) { KillEverywhere(RegionKind::kPin, 1.0, {1, 3, 10}, 3000); }
TEST(RegionKill, NoTier_KeepsWhatReturned) { KillEverywhere(RegionKind::kRpcDirect, 0.0, {1, 2, 6, 15}, 4000); }

}  // namespace
}  // namespace termfs::tlib::server

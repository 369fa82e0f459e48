// SPDX-License-Identifier: Apache-2.0
//
// Power loss: the device drops what was not flushed, sector by sector as the seed decides. Afterwards each byte is what
// was flushed last or something written to it since; what was zeroed and never written is zero; never what the medium
// held before (another file's bytes).
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <bitset>
#include <thread>

#include "tests/unit/tlib/server_storage/region_fixture.h"

namespace termfs::tlib::server {
namespace {

using driver::RegionKind;

// What a byte may be after a crash; bit 0 of a value is the value itself.
using Allowed = std::bitset<32>;

// One task's pages, and what each of their bytes may be.
class CrashOwner {
 public:
  CrashOwner(Region& region, uint64_t first, uint64_t count, uint64_t seed)
      : region_(region), first_(first), count_(count), random_(seed), allowed_(count * kPageSize) {
    for (Allowed& allowed : allowed_) {
      allowed.set(0);
    }
    current_.assign(count * kPageSize, std::byte{0});
  }

  // Until the device is gone, or `steps` are done.
  void Run(int steps) {
    for (int i = 0; i < steps; i++) {
      const uint64_t what = random_.Below(10);
      const bool alive = what < 7 ? Write() : what < 9 ? Flush() : Zero();
      if (!alive) {
        return;
      }
    }
  }

  void Check(std::span<const std::byte> found) const {
    for (uint64_t i = 0; i < found.size(); i++) {
      const auto value = static_cast<size_t>(found[i]);
      if (value >= 32 || !allowed_[i].test(value)) {
        ADD_FAILURE() << "byte " << i << " of page " << first_ << " on is " << value << ", which it never was";
        return;
      }
    }
  }
  uint64_t first() const { return first_; }
  uint64_t count() const { return count_; }

 private:
  bool Write() {
    const uint64_t at = random_.Below(count_ * kPageSize);
    const uint64_t most = count_ * kPageSize - at;
    uint64_t length = 1 + random_.Below(std::min<uint64_t>(most, random_.Below(2) == 0 ? 600 : 20000));
    const auto value = static_cast<std::byte>(1 + random_.Below(30));
    const std::vector<std::byte> bytes(length, value);
    for (uint64_t i = at; i < at + length; i++) {
      allowed_[i].set(static_cast<size_t>(value));
    }
    if (!region_.Write({first_ * kPageSize + at}, bytes).ok()) {
      return false;
    }
    std::copy(bytes.begin(), bytes.end(), current_.begin() + static_cast<ptrdiff_t>(at));
    return true;
  }

  bool Flush() {
    const uint64_t first = random_.Below(count_);
    const PageRange range{.first = {first_ + first}, .count = 1 + random_.Below(count_ - first)};
    if (!region_.Flush({&range, 1}).ok()) {
      return false;
    }
    Settle(first, range.count);
    return true;
  }

  bool Zero() {
    const uint64_t first = random_.Below(count_);
    const PageRange range{.first = {first_ + first}, .count = 1 + random_.Below(std::min<uint64_t>(4, count_ - first))};
    for (uint64_t i = first * kPageSize; i < (first + range.count) * kPageSize; i++) {
      allowed_[i].set(0);
    }
    if (!region_.Zero({&range, 1}).ok()) {
      return false;
    }
    std::fill_n(current_.begin() + static_cast<ptrdiff_t>(first * kPageSize), range.count * kPageSize, std::byte{0});
    Settle(first, range.count);
    return true;
  }

  // Only what is there now survives.
  void Settle(uint64_t first, uint64_t count) {
    for (uint64_t i = first * kPageSize; i < (first + count) * kPageSize; i++) {
      allowed_[i].reset();
      allowed_[i].set(static_cast<size_t>(current_[i]));
    }
  }

  Region& region_;
  const uint64_t first_;
  const uint64_t count_;
  Random random_;
  std::vector<Allowed> allowed_;
  std::vector<std::byte> current_;
};

void CheckCrash(RegionKind kind, double ratio, uint64_t seed, const std::shared_ptr<TaskRunner>& runner) {
  constexpr uint64_t kOwners = 4;
  constexpr uint64_t kEach = 24;
  RegionFixture fixture({.pages = kOwners * kEach, .dram_ratio = ratio, .kind = kind, .choice = FrameChoice::kRecent},
                        runner);
  Random random(seed);
  std::vector<std::unique_ptr<CrashOwner>> owners;
  std::vector<std::function<void()>> tasks;
  for (uint64_t i = 0; i < kOwners; i++) {
    owners.push_back(std::make_unique<CrashOwner>(fixture.region(), i * kEach, kEach, seed * 10 + i));
    tasks.push_back([owner = owners.back().get()] { owner->Run(200); });
  }
  const uint64_t crash_at = random.Below(300);
  tasks.push_back([&] {
    for (uint64_t i = 0; i < crash_at; i++) {
      Task::Yield();
    }
    fixture.log_device().Crash(random);
    fixture.device().Crash(random);
  });
  runner->RunAll(std::move(tasks));
  fixture.CrashAndReopen(seed);
  fixture.Run([&](Region& region) {
    for (const auto& owner : owners) {
      std::vector<std::byte> found(owner->count() * kPageSize);
      const Status status = region.Read({owner->first() * kPageSize}, found);
      EXPECT_TRUE(status.ok()) << status.ToString();
      owner->Check(found);
    }
  });
}

TEST(RegionCrash, PowerLossAtAnyMoment_KeepsWhatWasFlushedAndNothingForeign) {
  const auto runner = std::make_shared<TaskRunner>();
  for (const auto& [kind, ratio] : {std::pair{RegionKind::kTerm, 0.1}, std::pair{RegionKind::kTerm, 0.5},
                                    std::pair{RegionKind::kPin, 1.0}, std::pair{RegionKind::kRpcDirect, 0.0}}) {
    const bool ok = rc::check([&, kind = kind, ratio = ratio] {
      CheckCrash(kind, ratio, *rc::gen::arbitrary<uint32_t>(), runner);
      RC_ASSERT(!testing::Test::HasFailure());
    });
    EXPECT_TRUE(ok);
  }
}

}  // namespace
}  // namespace termfs::tlib::server

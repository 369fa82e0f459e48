// SPDX-License-Identifier: Apache-2.0
//
// Whatever clients write is read back, by any client, under every kind of region, DRAM ratio and way to know the absent
// pages, while pages come and go: against a plain byte array. The region is cut into stripes; each thread owns those
// that it writes and reads.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <atomic>
#include <thread>

#include "tests/unit/tlib/volume_fixture.h"

namespace termfs::tlib {
namespace {

using client::BitmapMode;
using client::ReadRequest;
using driver::RegionKind;
using std::chrono::milliseconds;

constexpr uint64_t kPages = 512;
constexpr uint64_t kThreads = 3;
constexpr uint64_t kStripePages = 16;  // thread t owns stripes t, t + kThreads, ...
constexpr uint64_t kBytes = kPages * kPageSize;

struct Scenario {
  RegionKind kind = RegionKind::kTerm;
  BitmapMode bitmap = BitmapMode::kLive;
  double ratio = 0.5;
  uint64_t seed = 1;
  int operations = 150;  // of each thread
};

std::ostream& operator<<(std::ostream& out, const Scenario& scenario) {
  return out << driver::ToString(scenario.kind) << ", bitmap mode " << static_cast<int>(scenario.bitmap) << ", ratio "
             << scenario.ratio << ", seed " << scenario.seed;
}

// One thread with a session of its own.
class Actor {
 public:
  Actor(const Scenario& scenario, uint64_t number, std::vector<std::byte>& model)
      : scenario_(scenario), number_(number), random_(scenario.seed * 100 + number), model_(model) {}

  std::string Run(const std::string& path) {
    const Status connected = client_.Connect(
        path, {.bitmap = scenario_.bitmap, .pull_period = milliseconds(5), .heat_period = milliseconds(5)});
    if (!connected.ok()) {
      return connected.ToString();
    }
    std::string error;
    for (int i = 0; i < scenario_.operations && error.empty(); i++) {
      error = random_.Below(3) == 0 ? Write() : Read();
    }
    return error;
  }

 private:
  // A range within one of our stripes, of any alignment.
  RegionOffset Draw(uint32_t* length) {
    const uint64_t stripes = kPages / kStripePages / kThreads;
    const uint64_t first = (random_.Below(stripes) * kThreads + number_) * kStripePages * kPageSize;
    const uint64_t stripe_bytes = kStripePages * kPageSize;
    uint64_t offset = random_.Below(stripe_bytes);
    switch (random_.Below(4)) {
      case 0:
        *length = 1 + static_cast<uint32_t>(random_.Below(100));
        break;
      case 1:
        offset = RoundDownToPage(offset);
        *length = static_cast<uint32_t>(kPageSize);
        break;
      case 2:
        *length = 1 + static_cast<uint32_t>(random_.Below(3 * kPageSize));
        break;
      default:
        *length = 1 + static_cast<uint32_t>(random_.Below(stripe_bytes));
    }
    *length = static_cast<uint32_t>(std::min<uint64_t>(*length, stripe_bytes - offset));
    return {first + offset};
  }

  // Random bytes, or bytes that are what an absent page looks like: a page of some line, which may be the pattern.
  void Fill(std::span<std::byte> to, uint64_t offset) {
    if (random_.Below(3) == 0 && has_pattern) {
      for (size_t i = 0; i < to.size(); i++) {
        to[i] = pattern.line[(offset + i) % pattern.line.size()];
      }
      return;
    }
    for (std::byte& byte : to) {
      byte = static_cast<std::byte>(random_());
    }
  }

  std::string Write() {
    uint32_t length = 0;
    const RegionOffset offset = Draw(&length);
    const auto buffer = client_.channel->buffer().first(length);
    Fill(buffer, offset.value);
    const Status written = client_.channel->Write(offset, buffer);
    if (!written.ok()) {
      return "write: " + written.ToString();
    }
    std::memcpy(model_.data() + offset.value, buffer.data(), length);
    return "";
  }

  std::string Read() {
    std::vector<ReadRequest> reads;
    const size_t count = 1 + random_.Below(random_.Below(2) == 0 ? 1 : 20);
    std::byte* to = client_.channel->buffer().data();
    size_t room = client_.channel->buffer().size();
    for (size_t i = 0; i < count; i++) {
      uint32_t length = 0;
      const RegionOffset offset = Draw(&length);
      length = static_cast<uint32_t>(std::min<size_t>(length, room));
      if (length == 0) {
        break;
      }
      reads.push_back({.offset = offset, .length = length, .destination = to});
      to += length;
      room -= length;
    }
    const Status status = client_.channel->Read(reads);
    if (!status.ok()) {
      return "read: " + status.ToString();
    }
    for (const ReadRequest& read : reads) {
      if (std::memcmp(read.destination, model_.data() + read.offset.value, read.length) != 0) {
        return "wrong bytes at " + std::to_string(read.offset.value) + " + " + std::to_string(read.length);
      }
    }
    return "";
  }

 public:
  driver::Pattern pattern;
  bool has_pattern = false;

 private:
  const Scenario& scenario_;
  const uint64_t number_;
  Random random_;
  std::vector<std::byte>& model_;
  TestClient client_;
};

// Changes the tier all the time: budget, choice and pattern.
void Shake(server::Server& server, const Scenario& scenario, const std::atomic<bool>& stop) {
  Random random(scenario.seed);
  const bool budget = scenario.kind == RegionKind::kTerm || scenario.kind == RegionKind::kRpcTiering;
  while (!stop) {
    if (budget) {
      const Status set = server.SetDramRatio(0.05 + 0.95 * random.Double() * scenario.ratio);
      EXPECT_TRUE(set.ok()) << set.ToString();
    }
    if (scenario.kind == RegionKind::kTerm) {
      driver::Pattern pattern;
      EXPECT_TRUE(SecureRandom(pattern.line.data(), pattern.line.size()).ok());
      const Status set = server.SetPattern(pattern);
      EXPECT_TRUE(set.ok()) << set.ToString();
    }
    std::this_thread::yield();
  }
}

void Check(const Scenario& scenario, bool shake) {
  TestVolume volume(
      {.kind = scenario.kind, .pages = kPages, .dram_ratio = scenario.ratio, .sample_period = milliseconds(5)});
  ASSERT_TRUE(volume.Format().ok());
  const Status started = volume.Start();
  ASSERT_TRUE(started.ok()) << started.ToString();
  std::vector<std::byte> model(kBytes);
  std::vector<std::string> errors(kThreads);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  driver::Pattern fixed;
  ASSERT_TRUE(SecureRandom(fixed.line.data(), fixed.line.size()).ok());
  if (scenario.kind == RegionKind::kTerm) {
    ASSERT_TRUE(volume.server().SetPattern(fixed).ok());
  }
  for (uint64_t i = 0; i < kThreads; i++) {
    threads.emplace_back([&, i] {
      Actor actor(scenario, i, model);
      actor.pattern = fixed;
      actor.has_pattern = scenario.kind == RegionKind::kTerm;
      errors[i] = actor.Run(volume.path());
    });
  }
  std::thread shaker;
  if (shake) {
    shaker = std::thread([&] { Shake(volume.server(), scenario, stop); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  stop = true;
  if (shaker.joinable()) {
    shaker.join();
  }
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "") << scenario;
  }
  // And all of it once more, by somebody else, after a restart.
  volume.Stop();
  ASSERT_TRUE(volume.Start().ok());
  TestClient client;
  ASSERT_TRUE(client.Connect(volume.path(), {.bitmap = BitmapMode::kOff}).ok());
  std::vector<std::byte> all(kBytes);
  for (uint64_t at = 0; at < kBytes; at += 1U << 20) {
    ASSERT_TRUE(client.Read(at, std::span(all).subspan(at, 1U << 20)).ok());
  }
  EXPECT_TRUE(all == model) << scenario;
}

TEST(Property, EveryKind_ReadsBackWhatWasWritten) {
  for (const RegionKind kind : {RegionKind::kPin, RegionKind::kOdp, RegionKind::kRpc, RegionKind::kRpcBuffer,
                                RegionKind::kRpcDirect, RegionKind::kRpcTiering, RegionKind::kTerm}) {
    Check({.kind = kind, .ratio = 0.3}, false);
  }
}

TEST(Property, EveryBitmapMode_WhileTheTierChanges) {
  for (const BitmapMode bitmap : {BitmapMode::kLive, BitmapMode::kPulled, BitmapMode::kOff}) {
    for (const double ratio : {0.05, 0.5, 1.0}) {
      Check({.bitmap = bitmap, .ratio = ratio, .seed = 2}, true);
    }
  }
}

TEST(Property, AnyScenario) {
  rc::check("what was written is read back", [] {
    const Scenario scenario{
        .kind = *rc::gen::element(RegionKind::kTerm, RegionKind::kTerm, RegionKind::kRpcTiering, RegionKind::kOdp),
        .bitmap = *rc::gen::element(BitmapMode::kLive, BitmapMode::kPulled, BitmapMode::kOff),
        .ratio = *rc::gen::inRange(5, 101) / 100.0,
        .seed = *rc::gen::arbitrary<uint32_t>(),
        .operations = 60};
    Check(scenario, *rc::gen::arbitrary<bool>());
    RC_ASSERT(!testing::Test::HasFailure());
  });
}

}  // namespace
}  // namespace termfs::tlib

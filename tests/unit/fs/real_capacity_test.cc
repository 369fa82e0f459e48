// SPDX-License-Identifier: Apache-2.0
//
// The capacity of a volume that is served and full of files: growing, shrinking, and what is refused.
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/random.h"
#include "fs/client/admin.h"
#include "fs/server/settings.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/file_holder.h"
#include "tests/unit/fs/real_volume.h"

namespace termfs::fs {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Writes 1 MiB at a time, each of a value of its own, until there is no space or `most` were written.
uint64_t Fill(Mount& mount, client::OpenFile* file, uint64_t from, uint64_t most) {
  for (uint64_t i = from; i < most; i++) {
    const Status written = mount.Write(file, i * kMiB, std::string(kMiB, static_cast<char>('a' + i % 26)));
    if (!written.ok()) {
      EXPECT_EQ(written.code(), ENOSPC) << written.ToString();
      return i;
    }
  }
  return most;
}

void ExpectFilled(Mount& mount, client::OpenFile* file, uint64_t count) {
  for (uint64_t i = 0; i < count; i++) {
    ASSERT_EQ(mount.Read(file, i * kMiB, kMiB), std::string(kMiB, static_cast<char>('a' + i % 26))) << i;
  }
}

Status SetCapacity(const RealVolume& volume, const std::string& value) {
  return client::ChangeSetting(volume.directory(), "capacity", value);
}

// No change of the capacity is under way.
bool Settled(const RealVolume& volume) {
  const auto status = client::GetStatus(volume.directory());
  return status.ok() && !status->capacity_changing;
}

TEST(Capacity, Grow_WhenFull_GivesRoomAtOnceAndForGood) {
  RealVolume volume(16 * kMiB, 0.5);
  uint64_t written = 0;
  {
    Mount a(volume);
    Mount b(volume);
    client::OpenFile* const file = a.Create("big");
    written = Fill(a, file, 0, 100);
    ASSERT_LT(written, 17u) << "the volume is full";
    client::OpenFile* const seen = b.Open("big");
    ExpectFilled(b, seen, written);
    const Status grown = SetCapacity(volume, std::to_string(40 * kMiB));
    ASSERT_TRUE(grown.ok()) << grown.ToString();
    const auto status = client::GetStatus(volume.directory());
    ASSERT_TRUE(status.ok());
    EXPECT_EQ(status->space.capacity_bytes, 40 * kMiB);
    EXPECT_EQ(status->capacity_target_bytes, 40 * kMiB);
    EXPECT_EQ(status->tier_bytes, 20 * kMiB) << "half of it is in memory still";
    EXPECT_EQ(server::LoadSettings(volume.directory())->capacity_bytes, 40 * kMiB);
    written = Fill(a, file, written, 100);
    EXPECT_GE(written, 38u);
    EXPECT_LT(written, 41u);
    ExpectFilled(a, file, written);
    ExpectFilled(b, seen, written);
    a.Close(file);
    b.Close(seen);
  }
  volume.Restart();
  {
    Mount a(volume);
    client::OpenFile* const file = a.Open("big");
    ExpectFilled(a, file, written);
    a.Close(file);
    ASSERT_TRUE(a.Remove("big").ok());
    EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == 40 * kMiB; }));
  }
  EXPECT_EQ(volume.Check(), std::vector<std::string>{});
}

TEST(Capacity, Set_WhatCannotBe_ChangesNothing) {
  RealVolume volume(32 * kMiB, 0.5);
  const std::string settings = volume.Text("termfs.toml");
  for (const auto& [value, code] : std::vector<std::pair<std::string, int>>{{"", EINVAL},
                                                                            {"abc", EINVAL},
                                                                            {"-1", EINVAL},
                                                                            {"0", EINVAL},
                                                                            {"64x", EINVAL},
                                                                            {std::to_string(64 * kMiB + 1), EINVAL},
                                                                            {std::to_string(15 * kMiB), EINVAL},
                                                                            {"99999999999999999999999", EINVAL},
                                                                            {std::to_string(kMiB << 22), EINVAL}}) {
    const Status refused = SetCapacity(volume, value);
    EXPECT_EQ(refused.code(), code) << value << ": " << refused.ToString();
  }
  if (constexpr uint64_t kMost = kMiB << 21; std::filesystem::space(volume.directory()).available < kMost) {
    EXPECT_EQ(SetCapacity(volume, std::to_string(kMost)).code(), ENOSPC);
  }
  EXPECT_TRUE(SetCapacity(volume, std::to_string(32 * kMiB)).ok()) << "what it is";
  EXPECT_EQ(client::GetStatus(volume.directory())->space.capacity_bytes, 32 * kMiB);
  EXPECT_EQ(client::GetStatus(volume.directory())->tier_bytes, 16 * kMiB);
  EXPECT_EQ(volume.Text("termfs.toml"), settings);
  EXPECT_EQ(std::filesystem::file_size(volume.directory() + "/region"), 33 * kMiB);
  EXPECT_EQ(volume.Check(), std::vector<std::string>{});
}

TEST(Settings, Set_MoreMetadataMemoryThanThereIs_IsRefused) {
  RealVolume volume(16 * kMiB, 0.5);
  const std::string settings = volume.Text("termfs.toml");
  const Status refused = client::ChangeSetting(volume.directory(), "metadata-memory", std::to_string(kMiB << 20));
  EXPECT_EQ(refused.code(), ENOMEM) << refused.ToString();
  EXPECT_EQ(volume.Text("termfs.toml"), settings);
  const Status smaller = client::ChangeSetting(volume.directory(), "metadata-memory", std::to_string(64 * kMiB));
  EXPECT_TRUE(smaller.ok()) << smaller.ToString();
}

TEST(Settings, Status_SaysWhyTheLastChangeFailed) {
  RealVolume volume(16 * kMiB, 0.5);
  EXPECT_EQ(client::GetStatus(volume.directory())->change_failure, "");
  const Status refused = client::ChangeSetting(volume.directory(), "dram-ratio", "7");
  EXPECT_EQ(refused.code(), EINVAL);
  const auto failed = client::GetStatus(volume.directory());
  EXPECT_EQ(failed->changing, "");
  EXPECT_EQ(failed->change_failure, refused.ToString());
  EXPECT_EQ(failed->dram_ratio, 0.5);
  ASSERT_TRUE(client::ChangeSetting(volume.directory(), "dram-ratio", "0.25").ok());
  const auto changed = client::GetStatus(volume.directory());
  EXPECT_EQ(changed->change_failure, "");
  EXPECT_EQ(changed->dram_ratio, 0.25);
}

TEST(Capacity, Grow_TwoAtOnce_OneIsRefused_OrTheyAreTakenInTurn) {
  RealVolume volume(16 * kMiB, 0.5);
  Status smaller;
  std::thread other([&] { smaller = SetCapacity(volume, std::to_string(20 * kMiB)); });
  const Status larger = SetCapacity(volume, std::to_string(24 * kMiB));
  other.join();
  EXPECT_TRUE(larger.ok() || smaller.ok()) << larger.ToString() << smaller.ToString();
  for (const Status& status : {larger, smaller}) {
    EXPECT_TRUE(status.ok() || status.code() == EBUSY) << status.ToString();
  }
  EXPECT_TRUE(Eventually([&] { return Settled(volume); }));
  const uint64_t capacity = client::GetStatus(volume.directory())->space.capacity_bytes;
  EXPECT_TRUE(capacity == 24 * kMiB || capacity == 20 * kMiB) << capacity;
  EXPECT_EQ(volume.Check(), std::vector<std::string>{});
}

// Writes and reads pages of a file of its own, by a client of its own, until it is told to stop.
class PageLoad {
 public:
  PageLoad(RealVolume& volume, const std::string& name) : volume_(volume), name_(name), thread_([this] { Run(); }) {}
  ~PageLoad() { Stop(); }

  uint64_t operations() const { return operations_; }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  static constexpr uint64_t kPages = 512;

  void Run() {
    Mount mount(volume_);
    client::OpenFile* const file = mount.Create(name_);
    Random random(std::hash<std::string>()(name_));
    std::array<uint64_t, kPages> versions{};
    const auto content = [&](uint64_t page) {
      return std::string(kPageSize, static_cast<char>('!' + (page * 5 + versions[page]) % 90));
    };
    for (uint64_t page = 0; page < kPages; page++) {
      EXPECT_TRUE(mount.Write(file, page * kPageSize, content(page)).ok());
    }
    while (!stop_ && !testing::Test::HasFailure()) {
      const uint64_t page = random.Below(kPages);
      if (random.Below(3) == 0) {
        versions[page]++;
        const Status written = mount.Write(file, page * kPageSize, content(page));
        EXPECT_TRUE(written.ok()) << written.ToString();
      }
      EXPECT_EQ(mount.Read(file, page * kPageSize, kPageSize), content(page)) << name_ << " " << page;
      if (random.Below(100) == 0) {
        EXPECT_TRUE(mount.fs->Sync(*mount.lane, file, false).ok());
      }
      operations_++;
    }
    for (uint64_t page = 0; page < kPages; page++) {
      EXPECT_EQ(mount.Read(file, page * kPageSize, kPageSize), content(page)) << name_ << " " << page << " at last";
    }
    mount.Close(file);
  }

  RealVolume& volume_;
  const std::string name_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> operations_{0};
  std::thread thread_;
};

std::string FileContent(int number) {
  std::string content(kMiB, '\0');
  for (size_t i = 0; i < content.size(); i++) {
    content[i] = static_cast<char>(number * 31 + (i >> kPageBits) * 7 + i % 11);
  }
  return content;
}

TEST(Capacity, Shrink_UnderReadersAndWriters_MovesWhatIsInTheWay) {
  RealVolume volume(48 * kMiB, 0.25);
  {
    Mount a(volume);
    Mount b(volume);
    std::vector<client::OpenFile*> seen;
    for (int i = 0; i < 36; i++) {
      client::OpenFile* const file = a.Create("f" + std::to_string(i));
      ASSERT_TRUE(a.Write(file, 0, FileContent(i)).ok());
      a.Close(file);
    }
    PageLoad one(volume, "one");
    PageLoad two(volume, "two");
    EXPECT_TRUE(Eventually([&] { return one.operations() > 10 && two.operations() > 10; }));
    for (int i = 0; i < 36; i++) {
      if (i < 20) {
        ASSERT_TRUE(a.Remove("f" + std::to_string(i)).ok());
      } else {
        seen.push_back(b.Open("f" + std::to_string(i)));
        ASSERT_EQ(b.Read(seen.back(), 0, kMiB), FileContent(i));  // and has a map
      }
    }
    EXPECT_EQ(SetCapacity(volume, std::to_string(19 * kMiB)).code(), ENOSPC);
    EXPECT_EQ(client::GetStatus(volume.directory())->capacity_target_bytes, 48 * kMiB);
    const Status begun = SetCapacity(volume, std::to_string(24 * kMiB));
    ASSERT_TRUE(begun.ok()) << begun.ToString();
    EXPECT_TRUE(Eventually([&] { return Settled(volume); }));
    const auto status = client::GetStatus(volume.directory());
    EXPECT_EQ(status->space.capacity_bytes, 24 * kMiB) << status->capacity_failure;
    EXPECT_EQ(status->capacity_failure, "");
    EXPECT_EQ(status->capacity_to_move_bytes, 0u);
    EXPECT_EQ(status->tier_bytes, 6 * kMiB);
    EXPECT_LE(status->tier_used_bytes, 6 * kMiB);
    EXPECT_EQ(server::LoadSettings(volume.directory())->capacity_bytes, 24 * kMiB);
    EXPECT_EQ(std::filesystem::file_size(volume.directory() + "/region"), 25 * kMiB);
    const auto expect_all = [&] {
      for (int i = 20; i < 36; i++) {
        ASSERT_EQ(b.Read(seen[static_cast<size_t>(i) - 20], 0, kMiB), FileContent(i)) << i;
      }
    };
    expect_all();
    const uint64_t so_far = one.operations();
    EXPECT_TRUE(Eventually([&] { return one.operations() > so_far + 50; }));
    ASSERT_TRUE(SetCapacity(volume, std::to_string(40 * kMiB)).ok());
    client::OpenFile* const more = a.Create("more");  // over where the others were
    const uint64_t written = Fill(a, more, 0, 100);
    EXPECT_GE(written, 18u);
    ExpectFilled(a, more, written);
    expect_all();
    one.Stop();
    two.Stop();
    a.Close(more);
    for (client::OpenFile* const file : seen) {
      b.Close(file);
    }
  }
  volume.Restart();
  {
    Mount a(volume);
    for (int i = 20; i < 36; i++) {
      client::OpenFile* const file = a.Open("f" + std::to_string(i));
      ASSERT_EQ(a.Read(file, 0, kMiB), FileContent(i)) << i;
      a.Close(file);
      ASSERT_TRUE(a.Remove("f" + std::to_string(i)).ok());
    }
    for (const char* const name : {"one", "two", "more"}) {
      ASSERT_TRUE(a.Remove(name).ok());
    }
    EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == 40 * kMiB; }));
  }
  EXPECT_EQ(volume.Check(), std::vector<std::string>{});
}

// A volume of 32 MiB whose files "kept" and "doomed" lie beyond its middle, and whose maps a process holds that is
// stopped. Who moves them waits for it until it is expelled.
class SlowToShrink {
 public:
  // A file "more" has so many MiB.
  explicit SlowToShrink(uint64_t more = 0) : volume(32 * kMiB, 0.5), a(volume) {
    client::OpenFile* const filler = a.Create("filler");
    EXPECT_EQ(Fill(a, filler, 0, 20), 20u);
    holder_.emplace(volume);
    a.Close(filler);
    EXPECT_TRUE(a.Remove("filler").ok());
    holder_->Strike(SIGSTOP);
    client::OpenFile* const file = a.Create("more");
    EXPECT_EQ(Fill(a, file, 0, more), more);
    a.Close(file);
    const Status begun = SetCapacity(volume, std::to_string(16 * kMiB));
    EXPECT_TRUE(begun.ok()) << begun.ToString();
    EXPECT_FALSE(Settled(volume));
  }
  client::VolumeStatus Ended() {
    EXPECT_TRUE(Eventually([&] { return Settled(volume); }));
    return client::GetStatus(volume.directory()).value();
  }
  void ExpectIntact() {
    client::OpenFile* const file = a.Open("kept");
    EXPECT_EQ(a.Read(file, 0, kMiB), std::string(kMiB, 'x'));
    a.Close(file);
  }

  RealVolume volume;
  Mount a;

 private:
  std::optional<FileHolder> holder_;
};

TEST(Capacity, Shrink_WhenAClientDoesNotAnswer_GoesOnWithoutIt) {
  SlowToShrink slow;
  const auto during = client::GetStatus(slow.volume.directory());
  ASSERT_TRUE(during.ok());
  EXPECT_EQ(during->space.capacity_bytes, 32 * kMiB);
  EXPECT_EQ(during->capacity_target_bytes, 16 * kMiB);
  EXPECT_GE(during->capacity_to_move_bytes, 2 * kMiB);
  EXPECT_EQ(SetCapacity(slow.volume, std::to_string(20 * kMiB)).code(), EBUSY);
  EXPECT_EQ(SetCapacity(slow.volume, std::to_string(64 * kMiB)).code(), EBUSY);
  EXPECT_TRUE(SetCapacity(slow.volume, std::to_string(16 * kMiB)).ok()) << "where it is on its way to";
  EXPECT_TRUE(client::ChangeSetting(slow.volume.directory(), "dram-ratio", "0.25").ok());
  const client::VolumeStatus status = slow.Ended();
  EXPECT_EQ(status.space.capacity_bytes, 16 * kMiB) << status.capacity_failure;
  EXPECT_EQ(status.tier_bytes, 4 * kMiB);
  slow.ExpectIntact();
}

TEST(Capacity, Shrink_CalledOff_LeavesEverythingAsItWas) {
  SlowToShrink slow;
  EXPECT_TRUE(SetCapacity(slow.volume, std::to_string(32 * kMiB)).ok());
  const client::VolumeStatus status = slow.Ended();
  EXPECT_EQ(status.space.capacity_bytes, 32 * kMiB);
  EXPECT_NE(status.capacity_failure.find("called off"), std::string::npos) << status.capacity_failure;
  EXPECT_EQ(std::filesystem::file_size(slow.volume.directory() + "/region"), 33 * kMiB);
  slow.ExpectIntact();
  client::OpenFile* const file = slow.a.Create("again");
  EXPECT_GT(Fill(slow.a, file, 0, 100), 24u) << "all of it is given out again";
  slow.a.Close(file);
}

TEST(Capacity, Shrink_WhenTheSpaceIsTakenMeanwhile_SaysSoAndStays) {
  SlowToShrink slow(13);
  client::OpenFile* const file = slow.a.Create("quick");
  const uint64_t written = 2;
  EXPECT_EQ(Fill(slow.a, file, 0, written), written);
  const client::VolumeStatus status = slow.Ended();
  EXPECT_EQ(status.space.capacity_bytes, 32 * kMiB);
  EXPECT_NE(status.capacity_failure, "");
  slow.ExpectIntact();
  ExpectFilled(slow.a, file, written);
  EXPECT_GT(Fill(slow.a, file, written, 100), written) << "all of it is given out again";
  slow.a.Close(file);
}

TEST(Capacity, Shrink_WithFallocate_GivesAllOrNothing) {
  SlowToShrink slow(4);
  client::OpenFile* const file = slow.a.Create("allocated");
  // What is left of the filler can become free beyond the line, for a moment.
  EXPECT_TRUE(Eventually([&] { return slow.a.FreeBytes() <= 16 * kMiB; })) << "nothing beyond the line is free";
  const uint64_t before = slow.a.FreeBytes();
  EXPECT_EQ(slow.a.fs->Allocate(*slow.a.lane, file, 0, 0, before + kPageSize).code(), ENOSPC);
  EXPECT_EQ(slow.a.FreeBytes(), before);
  EXPECT_TRUE(slow.a.fs->Allocate(*slow.a.lane, file, 0, 0, 4 * kMiB).ok());
  EXPECT_EQ(slow.a.FreeBytes(), before - 4 * kMiB);
  const client::VolumeStatus status = slow.Ended();
  EXPECT_EQ(status.space.capacity_bytes, 16 * kMiB) << status.capacity_failure;
  for (uint64_t i = 0; i < 4; i++) {
    EXPECT_TRUE(slow.a.Read(file, i * kMiB, kMiB) == std::string(kMiB, '\0')) << i;
  }
  slow.a.Close(file);
  slow.ExpectIntact();
}

// Of several who ask for more together than there is, who gets nothing keeps nothing.
TEST(Space, Allocate_SeveralAtOnce_GivesAllOrNothing) {
  constexpr uint64_t kCapacity = 320 * kMiB;
  constexpr uint64_t kEach = 200 * kMiB;  // two transactions
  RealVolume volume(kCapacity, 0.05);
  std::array<std::unique_ptr<Mount>, 3> mounts;
  for (auto& mount : mounts) {
    mount = std::make_unique<Mount>(volume);
  }
  for (int round = 0; round < 10; round++) {
    std::array<client::OpenFile*, 3> files{};
    std::array<Status, 3> got;
    std::array<std::thread, 3> threads;
    for (size_t i = 0; i < 3; i++) {
      files[i] = mounts[i]->Create("f" + std::to_string(i));
    }
    for (size_t i = 0; i < 3; i++) {
      threads[i] = std::thread([&, i] { got[i] = mounts[i]->fs->Allocate(*mounts[i]->lane, files[i], 0, 0, kEach); });
    }
    uint64_t given = 0;
    for (size_t i = 0; i < 3; i++) {
      threads[i].join();
      EXPECT_TRUE(got[i].ok() || got[i].code() == ENOSPC) << got[i].ToString();
      given += got[i].ok() ? 1 : 0;
    }
    EXPECT_LE(given, 1u);
    EXPECT_TRUE(Eventually([&] { return mounts[0]->FreeBytes() == kCapacity - given * kEach; }))
        << mounts[0]->FreeBytes();
    for (size_t i = 0; i < 3; i++) {
      mounts[i]->Close(files[i]);
      EXPECT_TRUE(mounts[i]->Remove("f" + std::to_string(i)).ok());
    }
    EXPECT_TRUE(Eventually([&] { return mounts[0]->FreeBytes() == kCapacity; }));
  }
  for (auto& mount : mounts) {
    mount.reset();
  }
  EXPECT_EQ(volume.Check(), std::vector<std::string>{});
}

TEST(Capacity, Set_OfEveryKindOfRegion_WorksOrIsRefused) {
  for (const char* const kind : {"pin", "odp", "rpc", "rpc_buffer", "rpc_direct", "rpc_tiering"}) {
    const bool changes = std::string_view(kind) != "rpc" && std::string_view(kind) != "odp";  // else it is mapped
    RealVolume volume(20 * kMiB, 0.5);
    volume.Stop();
    auto settings = server::LoadSettings(volume.directory());
    ASSERT_TRUE(settings.ok());
    settings->kind = kind;
    ASSERT_TRUE(server::SaveSettings(volume.directory(), *settings).ok());
    volume.Start();
    uint64_t capacity = 20;
    {
      Mount a(volume);
      client::OpenFile* const low = a.Create("low");
      ASSERT_EQ(Fill(a, low, 0, 12), 12u) << kind;
      const Status grown = SetCapacity(volume, std::to_string(40 * kMiB));
      EXPECT_EQ(grown.code(), changes ? 0 : ENOTSUP) << kind << ": " << grown.ToString();
      capacity = changes ? 40 : capacity;
      client::OpenFile* const high = a.Create("high");
      const uint64_t written = Fill(a, high, 0, changes ? 20 : 2);
      a.Close(low);
      ASSERT_TRUE(a.Remove("low").ok());
      const uint64_t smaller = changes ? 24 : 17;
      const Status shrunk = SetCapacity(volume, std::to_string(smaller * kMiB));
      EXPECT_EQ(shrunk.code(), changes ? 0 : ENOTSUP) << kind << ": " << shrunk.ToString();
      EXPECT_TRUE(Eventually([&] { return Settled(volume); })) << kind;
      capacity = changes ? smaller : capacity;
      const auto status = client::GetStatus(volume.directory());
      EXPECT_EQ(status->space.capacity_bytes, capacity * kMiB) << kind << ": " << status->capacity_failure;
      EXPECT_EQ(std::filesystem::file_size(volume.directory() + "/region"), (capacity + 1) * kMiB) << kind;
      ExpectFilled(a, high, written);
      a.Close(high);
    }
    volume.Restart();
    EXPECT_EQ(client::GetStatus(volume.directory())->space.capacity_bytes, capacity * kMiB) << kind;
    EXPECT_EQ(volume.Check(), std::vector<std::string>{}) << kind;
  }
}

}  // namespace
}  // namespace termfs::fs

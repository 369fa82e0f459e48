// SPDX-License-Identifier: Apache-2.0
#include "fs/server/volume.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "driver/softnic/softnic.h"
#include "fs/client/admin.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/real_volume.h"

namespace termfs::fs {

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr char kHoldFiles[] = "--hold-files";  // the first argument of a process that is not to run tests

std::string Slurp(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST(Volume, Format_RefusesWhatCannotBe) {
  std::string directory = testing::TempDir() + "termfs_format_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  server::FormatOptions options;
  options.settings.capacity_bytes = kMiB;
  EXPECT_EQ(server::FormatVolume(directory, options).code(), EINVAL);
  options.settings.capacity_bytes = (uint64_t{1} << 44) - 8192;
  EXPECT_EQ(server::FormatVolume(directory, options).code(), ENOSPC);
  options.settings.capacity_bytes = 16 * kMiB;
  std::ofstream(directory + "/file") << "x";
  EXPECT_EQ(server::FormatVolume(directory, options).code(), EEXIST);
  std::filesystem::remove(directory + "/file");
  EXPECT_EQ(server::LoadSettings(directory).status().code(), EUCLEAN);
  EXPECT_EQ(server::CheckVolume(directory).status().code(), EUCLEAN);
  EXPECT_TRUE(server::FormatVolume(directory, options).ok());
  EXPECT_EQ(server::FormatVolume(directory, options).code(), EEXIST);
  EXPECT_TRUE(server::CheckVolume(directory)->problems.empty());
  std::filesystem::remove_all(directory);
}

TEST(Volume, Start_OnlyOnceAndFromWholeVolumes) {
  RealVolume volume(16 * kMiB, 0.5);
  auto nic = driver::CreateSoftNic();
  ASSERT_TRUE(nic.ok());
  const auto settings = server::LoadSettings(volume.directory());
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(server::VolumeServer::Start(**nic, volume.directory(), *settings).status().code(), EBUSY);
  EXPECT_EQ(server::CheckVolume(volume.directory()).status().code(), EBUSY);
  volume.Stop();
  auto other = *settings;
  other.capacity_bytes *= 2;
  EXPECT_EQ(server::VolumeServer::Start(**nic, volume.directory(), other).status().code(), EINVAL);
  std::filesystem::remove_all(volume.directory() + "/meta");
  EXPECT_FALSE(server::VolumeServer::Start(**nic, volume.directory(), *settings).ok());
}

TEST(Volume, Start_RaisesTheEpoch) {
  RealVolume volume(16 * kMiB, 0.5);
  EXPECT_EQ(Slurp(volume.directory() + "/epoch"), "1\n");
  volume.Restart();
  EXPECT_EQ(Slurp(volume.directory() + "/epoch"), "2\n");
}

TEST(Admin, StatusMetricsAndSettings) {
  RealVolume volume(16 * kMiB, 0.5);
  Mount a(volume);
  auto status = client::GetStatus(volume.directory());
  ASSERT_TRUE(status.ok()) << status.status().ToString();
  EXPECT_EQ(status->uuid.size(), 36u);
  EXPECT_EQ(status->health, "ok");
  EXPECT_EQ(status->kind, "term");
  EXPECT_EQ(status->dram_ratio, 0.5);
  EXPECT_EQ(status->tier_bytes, 8 * kMiB);
  EXPECT_EQ(status->space.capacity_bytes, 16 * kMiB);
  bool found = false;
  for (const auto& session : status->sessions) {
    found |= session.program == "test" && session.pid == static_cast<uint32_t>(getpid());
  }
  EXPECT_TRUE(found);
  const auto metrics = client::GetMetrics(volume.directory());
  ASSERT_TRUE(metrics.ok());
  EXPECT_GT(metrics->size(), 20u);
  ASSERT_TRUE(client::ChangeSetting(volume.directory(), "dram-ratio", "0.25").ok());
  EXPECT_EQ(client::GetStatus(volume.directory())->dram_ratio, 0.25);
  EXPECT_EQ(server::LoadSettings(volume.directory())->dram_ratio, 0.25);
  EXPECT_EQ(client::ChangeSetting(volume.directory(), "dram-ratio", "2").code(), EINVAL);
  EXPECT_EQ(client::ChangeSetting(volume.directory(), "dram-ratio", "0.5x").code(), EINVAL);
  EXPECT_EQ(client::ChangeSetting(volume.directory(), "colour", "red").code(), EINVAL);
  EXPECT_TRUE(client::ChangeSetting(volume.directory(), "promoter", "recent").ok());
  EXPECT_TRUE(client::ChangeSetting(volume.directory(), "pattern", "random").ok());
  EXPECT_FALSE(client::GetStatus("/nonexistent").ok());
}

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
  const std::string settings = Slurp(volume.directory() + "/termfs.toml");
  for (const auto& [value, code] : std::vector<std::pair<std::string, int>>{{"", EINVAL},
                                                                            {"abc", EINVAL},
                                                                            {"-1", EINVAL},
                                                                            {"0", EINVAL},
                                                                            {"64x", EINVAL},
                                                                            {std::to_string(64 * kMiB + 1), EINVAL},
                                                                            {std::to_string(15 * kMiB), EINVAL},
                                                                            {"99999999999999999999999", EINVAL},
                                                                            {std::to_string(kMiB << 23), ENOSPC},
                                                                            {std::to_string(16 * kMiB), ENOTSUP}}) {
    const Status refused = SetCapacity(volume, value);
    EXPECT_EQ(refused.code(), code) << value << ": " << refused.ToString();
  }
  EXPECT_TRUE(SetCapacity(volume, std::to_string(32 * kMiB)).ok()) << "what it is";
  EXPECT_EQ(client::GetStatus(volume.directory())->space.capacity_bytes, 32 * kMiB);
  EXPECT_EQ(client::GetStatus(volume.directory())->tier_bytes, 16 * kMiB);
  EXPECT_EQ(Slurp(volume.directory() + "/termfs.toml"), settings);
  EXPECT_EQ(std::filesystem::file_size(volume.directory() + "/region"), 33 * kMiB);
  EXPECT_EQ(volume.Check(), std::vector<std::string>{});
}

TEST(Capacity, Grow_TwoAtOnce_AreTakenInTurn) {
  RealVolume volume(16 * kMiB, 0.5);
  Status smaller;
  std::thread other([&] { smaller = SetCapacity(volume, std::to_string(20 * kMiB)); });
  const Status larger = SetCapacity(volume, std::to_string(24 * kMiB));
  other.join();
  EXPECT_TRUE(larger.ok()) << larger.ToString();
  EXPECT_TRUE(smaller.ok() || smaller.code() == ENOTSUP) << smaller.ToString();  // it came first, or it would shrink
  EXPECT_EQ(client::GetStatus(volume.directory())->space.capacity_bytes, 24 * kMiB);
  EXPECT_EQ(volume.Check(), std::vector<std::string>{});
}

// A client in a process of its own (HoldFiles) is struck by `signal` while it holds an unlinked file open and has maps
// granted; the other client goes on.
void StrikeClient(int signal) {
  RealVolume volume(16 * kMiB, 0.5);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string fd = std::to_string(ready[1]);
    execl(self.c_str(), self.c_str(), kHoldFiles, volume.directory().c_str(), fd.c_str(), nullptr);
    _exit(127);
  }
  close(ready[1]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the child is up";
  close(ready[0]);
  Mount a(volume);
  const uint64_t before = a.FreeBytes();
  client::OpenFile* file = a.Open("kept");
  ASSERT_TRUE(a.Remove("doomed").ok());
  EXPECT_EQ(a.FreeBytes(), before) << "the child has it open";
  ASSERT_EQ(kill(child, signal), 0);
  // Longer than a revocation waits, shorter than a call may take.
  EXPECT_TRUE(a.Resize(a.InodeOf("kept"), 0, file).ok());
  EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == 16 * kMiB; }));
  a.Close(file);
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

TEST(Volume, KilledClient_LosesItsFilesAndDelaysNobody) { StrikeClient(SIGKILL); }

TEST(Volume, StoppedClient_IsExpelledAndLosesItsFiles) { StrikeClient(SIGSTOP); }

namespace {

// The other process of StrikeClient: opens two files, says so, and keeps them.
int HoldFiles(const std::string& directory, int ready) {
  auto nic = driver::CreateSoftNic();
  auto fs = client::FileSystem::Connect(*nic.value(), directory, {}, nullptr);
  auto lane = fs.value()->OpenLane();
  const std::string data(kMiB, 'x');
  for (const char* name : {"kept", "doomed"}) {
    auto made = (*fs)->Create(*lane.value(), {0, 0}, kRootInode, name, 0644, O_RDWR);
    if (!made.ok() || !(*fs)->Write(**lane, made->second, 0, std::as_bytes(std::span(data)), false).ok() ||
        !(*fs)->Read(**lane, made->second, 0, 10).ok()) {
      return 1;
    }
  }
  if (write(ready, "r", 1) != 1) {
    return 1;
  }
  while (true) {
    pause();
  }
}

}  // namespace

}  // namespace termfs::fs

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == termfs::fs::kHoldFiles) {
    return termfs::fs::HoldFiles(argv[2], std::stoi(argv[3]));
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}

// SPDX-License-Identifier: Apache-2.0
#include "fs/server/volume.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "driver/softnic/softnic.h"
#include "fs/client/admin.h"
#include "fs/server/settings.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/file_holder.h"
#include "tests/unit/fs/real_volume.h"

namespace termfs::fs {

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

}  // namespace

TEST(Volume, Format_RefusesWhatCannotBe) {
  std::string directory = testing::TempDir() + "termfs_format_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  server::FormatOptions options;
  options.settings.capacity_bytes = kMiB;
  EXPECT_EQ(server::FormatVolume(directory, options).code(), EINVAL);
  options.settings.capacity_bytes = server::kMaxCapacity;
  EXPECT_EQ(server::FormatVolume(directory, options).code(), ENOMEM);
  if (const uint64_t available = std::filesystem::space(directory).available; available < server::kMaxCapacity / 4) {
    options.settings.capacity_bytes = (available / kMiB / 1024 + 1) * 1024 * kMiB;
    options.settings.dram_ratio = 0.01;
    EXPECT_EQ(server::FormatVolume(directory, options).code(), ENOSPC);
    options.settings.dram_ratio = 0.5;
  }
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

TEST(Volume, Format_ThatFails_LeavesTheDeviceThatWasThere) {
  std::string parent = testing::TempDir() + "termfs_format_XXXXXX";
  ASSERT_NE(mkdtemp(parent.data()), nullptr);
  server::FormatOptions options;
  options.settings.capacity_bytes = 16 * kMiB;
  options.settings.device = parent + "/device";
  std::filesystem::create_symlink(parent + "/unmounted/disk", options.settings.device);
  EXPECT_EQ(server::FormatVolume(parent + "/volume", options).code(), EEXIST);
  EXPECT_TRUE(std::filesystem::is_symlink(options.settings.device)) << "it is the user's";
  EXPECT_FALSE(std::filesystem::exists(parent + "/volume"));
  std::filesystem::remove_all(parent);
}

// What RocksDB makes may be read by everybody, and so may the volume's directory, if it was there before.
TEST(Volume, Format_ShowsItsNamesToNobodyElse) {
  std::string directory = testing::TempDir() + "termfs_format_XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  ASSERT_EQ(chmod(directory.c_str(), 0755), 0);
  server::FormatOptions options;
  options.settings.capacity_bytes = 16 * kMiB;
  ASSERT_TRUE(server::FormatVolume(directory, options).ok());
  for (const char* name : {"/meta", "/region", "/written"}) {
    struct stat found {};
    ASSERT_EQ(stat((directory + name).c_str(), &found), 0) << name;
    EXPECT_EQ(found.st_mode & 0077, 0u) << name;
  }
  if (geteuid() == 0) {
    const pid_t child = fork();
    if (child == 0) {
      constexpr uid_t kNobody = 65534;
      const bool refused = setuid(kNobody) == 0 && access((directory + "/termfs.toml").c_str(), R_OK) == 0 &&
                           opendir((directory + "/meta").c_str()) == nullptr && errno == EACCES;
      _exit(refused ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
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
  EXPECT_EQ(volume.Text("epoch"), "1\n");
  volume.Restart();
  EXPECT_EQ(volume.Text("epoch"), "2\n");
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
  EXPECT_FALSE(client::GetStatus(std::string("/nonexistent")).ok());
}

TEST(Admin, Set_WhatTheFileRefuses_IsNotInForce) {
  RealVolume volume(16 * kMiB, 0.5);
  const std::string path = volume.directory() + "/termfs.toml";
  const std::string written = volume.Text("termfs.toml");
  std::ofstream(path, std::ios::app) << "dram-ration = 1\n";
  const auto before = client::GetStatus(volume.directory());
  ASSERT_TRUE(before.ok());
  for (const auto& [key, value] :
       {std::pair("dram-ratio", "0.25"), std::pair("promoter", "recent"), std::pair("capacity", "33554432")}) {
    const Status set = client::ChangeSetting(volume.directory(), key, value);
    EXPECT_EQ(set.code(), EINVAL) << key;
    EXPECT_NE(set.message().find("unknown key"), std::string::npos) << set.ToString();
  }
  const auto after = client::GetStatus(volume.directory());
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->dram_ratio, before->dram_ratio);
  EXPECT_EQ(after->tier_bytes, before->tier_bytes);
  EXPECT_EQ(after->space.capacity_bytes, before->space.capacity_bytes);
  std::ofstream(path, std::ios::trunc) << written;
  EXPECT_TRUE(client::ChangeSetting(volume.directory(), "dram-ratio", "0.25").ok());
  EXPECT_EQ(client::GetStatus(volume.directory())->tier_bytes, 4 * kMiB);
}

// A pipe in the place of the settings: who changes one waits until somebody writes them.
TEST(Admin, Set_WhileAnotherIsBeingChanged_IsRefusedAtOnce) {
  constexpr int kMore = 8;  // as many would take up all threads that serve administrators
  RealVolume volume(16 * kMiB, 0.5);
  const std::string path = volume.directory() + "/termfs.toml";
  const std::string written = volume.Text("termfs.toml");
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  Status first;
  std::thread changing([&] { first = client::ChangeSetting(volume.directory(), "dram-ratio", "0.25"); });
  UniqueFd pipe;
  EXPECT_TRUE(Eventually([&] {
    pipe = UniqueFd(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));  // ENXIO: nobody reads yet
    return pipe.valid();
  }));
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> others;
  std::array<Status, kMore> refused;
  for (Status& status : refused) {
    others.emplace_back([&] { status = client::ChangeSetting(volume.directory(), "promoter", "recent"); });
  }
  for (std::thread& other : others) {
    other.join();
  }
  EXPECT_TRUE(client::GetStatus(volume.directory()).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  EXPECT_EQ(write(pipe.get(), written.data(), written.size()), static_cast<ssize_t>(written.size()));
  pipe.Reset(-1);
  changing.join();
  EXPECT_TRUE(first.ok()) << first.ToString();
  for (const Status& status : refused) {
    EXPECT_EQ(status.code(), EBUSY) << status.ToString();
    EXPECT_NE(status.message().find("another setting is being changed"), std::string::npos) << status.ToString();
  }
  EXPECT_TRUE(client::ChangeSetting(volume.directory(), "promoter", "recent").ok());
}

TEST(Admin, Set_LeavesTheSettingsOfOneStartOutOfTheFile) {
  RealVolume volume(16 * kMiB, 0.5);
  volume.Stop();
  std::string written = volume.Text("termfs.toml");
  auto settings = server::LoadSettings(volume.directory());
  ASSERT_TRUE(settings.ok());
  settings->memory_directory = "none";
  settings->dram_ratio = 0.25;
  settings->workers = 2;
  settings->kind = "rpc_tiering";
  auto nic = driver::CreateSoftNic();
  ASSERT_TRUE(nic.ok());
  auto served = server::VolumeServer::Start(**nic, volume.directory(), *settings);
  ASSERT_TRUE(served.ok()) << served.status().ToString();
  const auto expect = [&](std::string_view key, std::string_view value, std::string_view was, std::string_view is) {
    const Status set = client::ChangeSetting(volume.directory(), std::string(key), std::string(value));
    ASSERT_TRUE(set.ok()) << set.ToString();
    ASSERT_NE(written.find(was), std::string::npos) << written;
    written.replace(written.find(was), was.size(), is);
    EXPECT_EQ(volume.Text("termfs.toml"), written);
    EXPECT_EQ(client::GetStatus(volume.directory())->kind, "rpc_tiering") << "it is in force still";
  };
  expect("promoter", "recent", "promoter = 'heat'", "promoter = 'recent'");
  EXPECT_EQ(client::GetStatus(volume.directory())->dram_ratio, 0.25);
  expect("capacity", std::to_string(24 * kMiB), "capacity = 16777216", "capacity = 25165824");
  expect("dram-ratio", "0.3", "dram-ratio = 0.5", "dram-ratio = 0.3");
  EXPECT_TRUE((*served)->Stop().ok());
}

// A client is struck by `signal` while it holds an unlinked file open and has maps granted; the other client goes on.
void StrikeClient(int signal) {
  RealVolume volume(16 * kMiB, 0.5);
  FileHolder holder(volume);
  Mount a(volume);
  const uint64_t before = a.FreeBytes();
  client::OpenFile* file = a.Open("kept");
  ASSERT_TRUE(a.Remove("doomed").ok());
  EXPECT_EQ(a.FreeBytes(), before) << "the child has it open";
  holder.Strike(signal);
  // Longer than a revocation waits, shorter than a call may take.
  EXPECT_TRUE(a.Resize(a.InodeOf("kept"), 0, file).ok());
  EXPECT_TRUE(Eventually([&] { return a.FreeBytes() == 16 * kMiB; }));
  a.Close(file);
}

TEST(Volume, KilledClient_LosesItsFilesAndDelaysNobody) { StrikeClient(SIGKILL); }

TEST(Volume, StoppedClient_IsExpelledAndLosesItsFiles) { StrikeClient(SIGSTOP); }

}  // namespace termfs::fs

int main(int argc, char** argv) {
  if (termfs::fs::IsFileHolder(argc, argv)) {
    return termfs::fs::HoldFiles(argv);
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}

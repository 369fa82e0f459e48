// SPDX-License-Identifier: Apache-2.0
//
// A client on the software RNIC whose server is stopped and started: who reads goes on, and nothing of the former
// server's memory stays mapped, also by lanes that have nothing to do.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "driver/softnic/softnic.h"
#include "tests/unit/eventually.h"
#include "tests/unit/fs/real_volume.h"

namespace termfs::fs {

namespace {

constexpr size_t kFileBytes = 1 << 20;

std::byte ValueAt(uint64_t offset) { return static_cast<std::byte>(offset * 7 + (offset >> 12)); }

// Mappings of this process of memory that a server has removed. Of memory that is there the kernel shows no path
// either: its files got their names after they were made.
int DeadMappings(const std::string& directory) {
  const std::string memory = "/dev/shm/termfs_test_" + directory.substr(directory.size() - 6);
  std::set<uint64_t> there;
  std::error_code gone;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(memory, gone)) {
    struct stat file {};
    if (stat(entry.path().c_str(), &file) == 0) {
      there.insert(file.st_ino);
    }
  }
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::string skipped;
    uint64_t ino = 0;
    fields >> skipped >> skipped >> skipped >> skipped >> ino;
    found += line.find(memory) != line.npos && !there.contains(ino) ? 1 : 0;
  }
  return found;
}

uint64_t Reconnections(const client::FileSystem& fs) {
  for (const MetricValue& metric : fs.Metrics()) {
    if (metric.name == "link_reconnections_total") {
      return metric.value;
    }
  }
  return 0;
}

}  // namespace

TEST(RealReconnect, ReadersGoOn_AndOldMemoryIsGivenBack) {
  RealVolume volume(uint64_t{16} << 20, 0.5);
  auto nic = driver::CreateSoftNic();  // the volume's ends with its server
  ASSERT_TRUE(nic.ok());
  client::MountOptions options;
  options.session.program = "test";
  auto connected = client::FileSystem::Connect(**nic, volume.directory(), options, nullptr);
  ASSERT_TRUE(connected.ok()) << connected.status().ToString();
  client::FileSystem& fs = **connected;
  std::vector<std::unique_ptr<client::Lane>> lanes;
  for (int i = 0; i < 4; ++i) {
    auto lane = fs.OpenLane();
    ASSERT_TRUE(lane.ok()) << lane.status().ToString();
    lanes.push_back(std::move(*lane));
  }
  auto made = fs.Create(*lanes[0], {0, 0}, kRootInode, "f", 0644, O_RDWR);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  client::OpenFile* const file = made->second;
  std::vector<std::byte> content(kFileBytes);
  for (size_t i = 0; i < content.size(); ++i) {
    content[i] = ValueAt(i);
  }
  ASSERT_TRUE(fs.Write(*lanes[0], file, 0, content, {}).ok());
  const auto read = [&](client::Lane& lane, uint64_t offset) {
    constexpr size_t kBytes = 5000;
    const auto got = fs.Read(lane, file, offset, kBytes);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    ASSERT_EQ(got->size(), kBytes);
    for (size_t i = 0; i < kBytes; ++i) {
      ASSERT_EQ((*got)[i], ValueAt(offset + i)) << offset + i;
    }
  };
  for (const auto& lane : lanes) {
    read(*lane, 0);
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (size_t reader = 0; reader < 2; ++reader) {
    readers.emplace_back([&, reader] {
      for (uint64_t i = reader; !stop && !testing::Test::HasFailure(); i += 13) {
        read(*lanes[reader], i * 997 % (kFileBytes - 5000));
      }
    });
  }
  for (uint64_t round = 1; round <= 3; ++round) {
    volume.Restart();
    EXPECT_TRUE(Eventually([&] { return Reconnections(fs) == round; }));
  }
  EXPECT_TRUE(Eventually([&] { return DeadMappings(volume.directory()) == 0; })) << DeadMappings(volume.directory());
  stop = true;
  for (std::thread& reader : readers) {
    reader.join();
  }
  for (const auto& lane : lanes) {
    read(*lane, 4096);
  }
  EXPECT_TRUE(fs.Sync(*lanes[3], file, false).ok()) << "a server that is stopped has lost nothing";
  fs.Release(*lanes[0], file);
  lanes.clear();
}

}  // namespace termfs::fs

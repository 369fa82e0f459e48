// SPDX-License-Identifier: Apache-2.0
//
// TestVolume: a fresh volume with clients, for tests of files. Over the in-memory tlib and store (MakeMemoryVolume), or
// the real ones in a temporary directory (MakeRealVolume, in a test program of its own).
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fs/client/file_system.h"

namespace termfs::fs {

class TestVolume {
 public:
  virtual ~TestVolume() = default;
  virtual std::unique_ptr<client::FileSystem> Connect(client::KernelCache* cache = nullptr) = 0;
  // Stops and starts the server. REQUIRES: no client.
  virtual void Restart() = 0;
  // Problems that a check of the namespace finds. REQUIRES: no client; the volume is not used any more.
  virtual std::vector<std::string> Check() = 0;
};

using VolumeMaker = std::unique_ptr<TestVolume> (*)(uint64_t capacity_bytes);
std::unique_ptr<TestVolume> MakeMemoryVolume(uint64_t capacity_bytes);
std::unique_ptr<TestVolume> MakeRealVolume(uint64_t capacity_bytes);

class RecordingCache final : public client::KernelCache {
 public:
  bool InvalidateInode(uint64_t ino, uint64_t, uint64_t) override {
    last_ino = ino;
    ++calls;
    return true;
  }
  void InvalidateAttributes(uint64_t, std::chrono::steady_clock::time_point) override {}
  [[nodiscard]] bool InvalidateEntry(uint64_t, std::string_view) override { return true; }
  void ServerLost() override {}
  std::atomic<uint64_t> last_ino{0}, calls{0};
};

// Drops nothing.
class SilentCache : public client::KernelCache {
 public:
  bool InvalidateInode(uint64_t, uint64_t, uint64_t) override { return true; }
  void InvalidateAttributes(uint64_t, std::chrono::steady_clock::time_point) override {}
  [[nodiscard]] bool InvalidateEntry(uint64_t, std::string_view) override { return true; }
  void ServerLost() override {}
};

// A client with a lane, and calls that fail the test when they fail.
class Mount {
 public:
  explicit Mount(TestVolume& volume, client::KernelCache* cache = nullptr) : fs(volume.Connect(cache)) {
    auto opened = fs->OpenLane();
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    lane = std::move(opened).value();
  }

  client::OpenFile* Create(std::string_view name, int flags = 2 /* O_RDWR */, uint64_t parent = kRootInode) {
    auto made = fs->Create(*lane, {0, 0}, parent, name, 0644, flags);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return made.ok() ? made->second : nullptr;
  }
  uint64_t InodeOf(std::string_view name, uint64_t parent = kRootInode) {
    const auto found = fs->Lookup(*lane, parent, name);
    return found.ok() ? found->ino : 0;
  }
  client::OpenFile* Open(std::string_view name, int flags = 2) {
    const auto opened = fs->Open(*lane, InodeOf(name), flags);
    EXPECT_TRUE(opened.ok()) << opened.status().ToString();
    return opened.ok() ? *opened : nullptr;
  }
  Status CachePages(client::OpenFile* file) { return fs->CachePages(*lane, file); }
  Status Write(client::OpenFile* file, uint64_t offset, std::string_view data) {
    return fs->Write(*lane, file, offset, std::as_bytes(std::span(data)), {});
  }
  std::string Read(client::OpenFile* file, uint64_t offset, size_t size) {
    const auto read = fs->Read(*lane, file, offset, size);
    EXPECT_TRUE(read.ok()) << read.status().ToString();
    return read.ok() ? std::string(reinterpret_cast<const char*>(read->data()), read->size()) : std::string();
  }
  Attributes Stat(uint64_t ino) {
    const auto found = fs->GetAttributes(*lane, ino);
    EXPECT_TRUE(found.ok()) << found.status().ToString();
    return found.ok() ? *found : Attributes{};
  }
  Status Resize(uint64_t ino, uint64_t size, client::OpenFile* file = nullptr) {
    client::SetAttributes what;
    what.size = size;
    return fs->Set(*lane, ino, what, file).status();
  }
  void Close(client::OpenFile* file) { fs->Release(*lane, file); }
  Status Remove(std::string_view name) { return fs->Unlink(*lane, kRootInode, name); }
  uint64_t FreeBytes() {
    const auto space = fs->StatFs(*lane, kRootInode);
    EXPECT_TRUE(space.ok());
    return space.ok() ? space->free_bytes : 0;
  }
  uint64_t Metric(std::string_view name) {
    for (const auto& metric : fs->Metrics()) {
      if (metric.name == name) {
        return metric.value;
      }
    }
    return 0;
  }

  std::unique_ptr<client::FileSystem> fs;
  std::unique_ptr<client::Lane> lane;
};

}  // namespace termfs::fs

// SPDX-License-Identifier: Apache-2.0
//
// A formatted volume for tests, in memory or in a temporary directory on RocksDB, and short names for the usual calls.
// After each test it must pass Check.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "metadata/key_value_store.h"
#include "metadata/memory_store.h"
#include "metadata/namespace.h"
#include "metadata/rocksdb_store.h"

namespace termfs::metadata {

// A directory that goes away with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "termfs-metadata-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string path() const { return path_; }

 private:
  std::string path_;
};

inline const MayBeOpen kOpen = [](InodeNumber) { return true; };
inline const MayBeOpen kNotOpen = [](InodeNumber) { return false; };

inline FormatOptions SmallVolume(uint64_t capacity_pages = 4096) {
  FormatOptions options;
  options.uuid = {1, 2, 3, 4};
  options.capacity_pages = capacity_pages;
  options.now = Nanoseconds(1);
  return options;
}

inline std::vector<std::string> Problems(KeyValueStore& store) {
  const Result<CheckReport> report = Check(store);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return report.ok() ? report->problems : std::vector<std::string>{report.status().ToString()};
}

class VolumeTest : public ::testing::Test {
 protected:
  explicit VolumeTest(const FormatOptions& options = SmallVolume()) : store_(NewMemoryStore()) {
    EXPECT_TRUE(Namespace::Format(*store_, options).ok());
    Reopen();
  }
  void TearDown() override { EXPECT_THAT(Problems(*store_), ::testing::IsEmpty()); }

  void Reopen() {
    namespace_.reset();
    auto opened = Namespace::Open(*store_);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    namespace_ = std::move(opened).value();
  }

  Namespace& ns() { return *namespace_; }
  KeyValueStore& store() { return *store_; }
  Nanoseconds Tick() { return Nanoseconds(++time_); }

  InodeNumber Make(InodeNumber parent, std::string_view name, uint32_t mode = S_IFREG | 0644) {
    NewInode inode;
    inode.mode = mode;
    inode.symlink_target = TypeOfMode(mode) == FileType::kSymlink ? "target" : "";
    const Result<Attributes> created = ns().Create(parent, name, inode, {}, Tick());
    EXPECT_TRUE(created.ok()) << created.status().ToString();
    return created.ok() ? created->ino : 0;
  }
  InodeNumber MakeDir(InodeNumber parent, std::string_view name) { return Make(parent, name, S_IFDIR | 0755); }
  Attributes Get(InodeNumber ino) {
    const Result<Attributes> attributes = ns().GetAttr(ino);
    EXPECT_TRUE(attributes.ok()) << attributes.status().ToString();
    return attributes.ok() ? *attributes : Attributes{};
  }
  // The inode's number, or 0.
  InodeNumber At(InodeNumber parent, std::string_view name) {
    const Result<Attributes> found = ns().Lookup(parent, name);
    return found.ok() ? found->ino : 0;
  }
  int Allocate(InodeNumber ino, uint64_t page, uint64_t count) {
    return ns().AllocateExtents(ino, page, count, std::nullopt, Tick()).status().code();
  }
  // What the file system does: zero the pages, then make them free.
  void CommitAllFree() {
    while (true) {
      const auto ranges = ns().ListPendingFree({}, 100);
      ASSERT_TRUE(ranges.ok());
      if (ranges->empty()) {
        return;
      }
      ASSERT_TRUE(ns().CommitFree(*ranges).ok());
    }
  }

 private:
  std::unique_ptr<KeyValueStore> store_;
  std::unique_ptr<Namespace> namespace_;
  int64_t time_ = 1000;
};

}  // namespace termfs::metadata

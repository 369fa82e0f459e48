// SPDX-License-Identifier: Apache-2.0
//
// Several clients and a model: whatever one client has done, the next operation of any other sees.
#include <fcntl.h>
#include <linux/falloc.h>

#include <map>
#include <optional>

#include "base/page.h"
#include "base/random.h"
#include "tests/unit/fs/file_cases.h"

namespace termfs::fs {

namespace {

constexpr size_t kClients = 3;
constexpr size_t kNames = 6;
constexpr uint64_t kMaxSize = 600 << 10;

class Model {
 public:
  Model(TestVolume& volume, uint64_t seed) : random_(seed) {
    for (size_t i = 0; i < kClients; ++i) {
      clients_.push_back(std::make_unique<Mount>(volume));
    }
  }
  ~Model() {
    for (Handle& handle : handles_) {
      clients_[handle.client]->Close(handle.file);
    }
  }

  void Step() {
    switch (random_.Below(12)) {
      case 0:
        return Open();
      case 1:
        return Close();
      case 2:
        return Unlink();
      case 3:
        return Rename();
      case 4:
        return Resize();
      case 5:
        return Punch();
      case 6:
      case 7:
      case 8:
        return Write();
      default:
        return Read();
    }
  }

 private:
  using Content = std::shared_ptr<std::string>;
  struct Handle {
    size_t client;
    client::OpenFile* file;
    uint64_t ino;
    bool append;
    Content content;
  };

  std::string Name() { return "n" + std::to_string(random_.Below(kNames)); }
  Mount& Any() { return *clients_[random_.Below(kClients)]; }
  Handle* AnyHandle() { return handles_.empty() ? nullptr : &handles_[random_.Below(handles_.size())]; }
  std::string Bytes(size_t size) {
    std::string bytes(size, '\0');
    const auto first = static_cast<char>('!' + random_.Below(90));
    for (size_t i = 0; i < size; ++i) {
      bytes[i] = static_cast<char>(first + static_cast<char>(i % 5));
    }
    return bytes;
  }
  // Small, page-sized and larger ones, aligned and not.
  uint64_t Length() {
    switch (random_.Below(4)) {
      case 0:
        return 1 + random_.Below(100);
      case 1:
        return kPageSize * (1 + random_.Below(4));
      case 2:
        return 1 + random_.Below(20000);
      default:
        return 1 + random_.Below(200000);
    }
  }
  uint64_t Offset() { return random_.Below(2) == 0 ? random_.Below(kMaxSize / 2) : kPageSize * random_.Below(64); }

  void Open() {
    if (handles_.size() > 12) {
      return Close();
    }
    const size_t client = random_.Below(kClients);
    const std::string name = Name();
    const int flags = O_RDWR | O_CREAT | (random_.Below(3) == 0 ? O_APPEND : 0) | (random_.Below(5) == 0 ? O_TRUNC : 0);
    client::OpenFile* file = clients_[client]->Create(name, flags);
    ASSERT_NE(file, nullptr);
    Content& content = files_[name];
    if (content == nullptr) {
      content = std::make_shared<std::string>();
    }
    if ((flags & O_TRUNC) != 0) {
      content->clear();
    }
    handles_.push_back({client, file, clients_[client]->InodeOf(name), (flags & O_APPEND) != 0, content});
  }
  void Close() {
    if (handles_.empty()) {
      return;
    }
    const size_t i = random_.Below(handles_.size());
    clients_[handles_[i].client]->Close(handles_[i].file);
    handles_.erase(handles_.begin() + static_cast<ptrdiff_t>(i));
  }
  void Unlink() {
    const std::string name = Name();
    EXPECT_EQ(Any().Remove(name).code(), files_.erase(name) > 0 ? 0 : ENOENT);
  }
  void Rename() {
    const std::string from = Name();
    const std::string to = Name();
    Mount& mount = Any();
    const Status status = mount.fs->Rename(*mount.lane, kRootInode, from, kRootInode, to, 0);
    if (!files_.contains(from)) {
      EXPECT_EQ(status.code(), ENOENT);
      return;
    }
    EXPECT_TRUE(status.ok()) << status.ToString();
    if (from != to) {
      files_[to] = files_[from];
      files_.erase(from);
    }
  }
  void Resize() {
    if (const Handle* handle = AnyHandle()) {
      const uint64_t size = random_.Below(3) == 0 ? kPageSize * random_.Below(100) : random_.Below(kMaxSize);
      EXPECT_TRUE(Any().Resize(handle->ino, size).ok());
      handle->content->resize(size, '\0');
    }
  }
  void Punch() {
    if (const Handle* handle = AnyHandle()) {
      const uint64_t offset = Offset();
      const uint64_t length = Length();
      const int mode = random_.Below(2) == 0 ? FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
                                             : FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;
      Mount& mount = *clients_[handle->client];
      const Status status = mount.fs->Allocate(*mount.lane, handle->file, mode, offset, length);
      EXPECT_TRUE(status.ok()) << status.ToString();
      std::string& content = *handle->content;
      for (uint64_t at = offset; at < std::min(content.size(), offset + length); ++at) {
        content[at] = '\0';
      }
    }
  }
  void Write() {
    if (const Handle* handle = AnyHandle()) {
      std::string& content = *handle->content;
      const std::string bytes = Bytes(Length());
      const uint64_t offset = handle->append ? content.size() : Offset();
      if (offset + bytes.size() > 2 * kMaxSize) {
        return Resize();
      }
      const Status status = clients_[handle->client]->Write(handle->file, handle->append ? 0 : offset, bytes);
      ASSERT_TRUE(status.ok()) << status.ToString();
      content.resize(std::max<size_t>(content.size(), offset + bytes.size()), '\0');
      content.replace(offset, bytes.size(), bytes);
    }
  }
  void Read() {
    if (const Handle* handle = AnyHandle()) {
      const std::string& content = *handle->content;
      const uint64_t offset = Offset();
      const uint64_t length = Length();
      Mount& mount = *clients_[handle->client];
      const std::string expected = offset < content.size() ? content.substr(offset, length) : "";
      const std::string read = mount.Read(handle->file, offset, length);
      ASSERT_EQ(read.size(), expected.size());
      ASSERT_TRUE(read == expected) << "first difference at "
                                    << offset + static_cast<uint64_t>(
                                                    std::mismatch(read.begin(), read.end(), expected.begin()).first -
                                                    read.begin());
      EXPECT_EQ(Any().Stat(handle->ino).size, content.size());
    }
  }

  Random random_;
  std::vector<std::unique_ptr<Mount>> clients_;
  std::map<std::string, Content> files_;
  std::vector<Handle> handles_;
};

}  // namespace

TEST_P(FilesModel, RandomOperationsOfThreeClients) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto volume = Make(uint64_t{32} << 20);
    {
      Model model(*volume, seed);
      for (int step = 0; step < 1500 && !HasFatalFailure() && !HasFailure(); ++step) {
        model.Step();
      }
    }
    EXPECT_TRUE(volume->Check().empty());
    if (HasFailure()) {
      return;
    }
  }
}

}  // namespace termfs::fs

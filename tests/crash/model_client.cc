// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/model_client.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/page.h"
#include "fs/client/admin.h"
#include "tests/crash/killed_process.h"

namespace termfs::fs {
namespace {

constexpr uint64_t kStep = uint64_t{1052} << 10;  // bytes, of a change of the capacity
constexpr uint64_t kRoot = 1;

std::string NameOf(size_t name) { return "n" + std::to_string(name); }

}  // namespace

void ModelClient::Verify() {
  FileModel::Tree found;
  found.file.fill(FileModel::kNone);
  for (size_t name = 0; name < FileModel::kNames; ++name) {
    const auto looked = fs_.Lookup(lane_, kRoot, NameOf(name));
    if (!looked.ok()) {
      Expect(looked.status().code() == ENOENT ? Status::Ok() : looked.status());
      continue;
    }
    int8_t file = model_.FileOfInode(looked->ino);
    if (file == FileModel::kNone) {
      file = model_.CreatedIn(name);  // killed in the midst of a create: nobody was told the number
    }
    if (file == FileModel::kNone) {
      EndWith(NameOf(name) + " is an inode that nobody made");
    }
    model_.SetInode(file, looked->ino);
    found.file[name] = file;
    found.size[static_cast<size_t>(file)] = static_cast<uint32_t>(looked->size);
  }
  Complain(model_.Judge(found));
  for (size_t name = 0; name < FileModel::kNames; ++name) {
    if (found.file[name] != FileModel::kNone) {
      VerifyBytes(name, found);
    }
  }
  model_.Accepted();
}

void ModelClient::Run(int steps) {
  for (int i = 0; i < steps; ++i) {
    if (model_.HistoryFull()) {
      SyncRoot();
    }
    switch (random_.Below(15)) {
      case 0:
      case 1:
        Create();
        break;
      case 2:
      case 3:
      case 4:
      case 5:
      case 6:
        Write();
        break;
      case 7:
        Resize();
        break;
      case 8:
        Rename();
        break;
      case 9:
        Link();
        break;
      case 10:
        Unlink();
        break;
      case 11:
        SyncRoot();
        break;
      case 12:
        ChangeCapacity();
        break;
      default:
        Sync();
        break;
    }
  }
}

void ModelClient::WriteAndSync() {
  for (int i = 0; i < 3; ++i) {
    Create();
  }
  const size_t name = *SomeFile();
  client::OpenFile* const open = Open(name);
  WriteTo(open, model_.now().file[name], 0, FileModel::kMaxBytes);
  fs_.Release(lane_, open);
  Sync(name);
}

void ModelClient::Grow() {
  Create();
  const size_t name = *SomeFile();
  client::OpenFile* const open = Open(name);
  for (uint64_t at = 0; at + 3000 < FileModel::kMaxBytes / 2; at += 3000) {
    WriteTo(open, model_.now().file[name], at, 3000);
  }
}

uint64_t ModelClient::FreeBytes() {
  const auto space = fs_.StatFs(lane_, kRootInode);
  Expect(space.status());
  return space->free_bytes;
}

void ModelClient::ExpectSpaceBeyondTheFiles(bool expected) {
  uint64_t free = kCapacity;
  for (const uint32_t size : model_.now().size) {
    free -= RoundUpToPage(uint64_t{size});
  }
  if ((FreeBytes() != free) != expected) {
    EndWith(std::to_string(FreeBytes()) + " bytes are free, and " + std::to_string(free) + " not of any file");
  }
}

void ModelClient::WriteSparsely() {
  for (int i = 0; i < 3; ++i) {
    Create();
  }
  for (size_t name = 0; name < FileModel::kNames; ++name) {
    const int8_t file = model_.now().file[name];
    if (file == FileModel::kNone || model_.now().size[static_cast<size_t>(file)] != 0) {
      continue;
    }
    client::OpenFile* const open = Open(name);
    for (uint64_t at = random_.Below(kPageSize); at < FileModel::kMaxBytes; at += kPageSize) {
      WriteTo(open, file, at, 1);
    }
    fs_.Release(lane_, open);
  }
  Verify();
}

void ModelClient::SyncAll() {
  for (size_t name = 0; name < FileModel::kNames; ++name) {
    if (model_.now().file[name] != FileModel::kNone) {
      Sync(name);
    }
  }
  SyncRoot();
}

void ModelClient::MoveByShrinking() {
  SetCapacity(kMostCapacity);
  if (capacities_.acknowledged != kMostCapacity) {
    EndWith("the volume does not grow");
  }
  const auto ballast = fs_.Create(lane_, {0, 0}, kRoot, "ballast", 0644, O_RDWR);
  Expect(ballast.status());
  const std::vector<std::byte> bytes(FileModel::kMaxBytes, std::byte{0xbb});
  const uint64_t spared = uint64_t{6} << 20;
  for (uint64_t at = 0; FreeBytes() > spared; at += bytes.size()) {
    Expect(fs_.Write(lane_, ballast->second, at, bytes, {}));
  }
  for (int i = 0; i < 4; ++i) {
    WriteAndSync();
  }
  fs_.Release(lane_, ballast->second);
  Expect(fs_.Unlink(lane_, kRoot, "ballast"));
  SyncRoot();
  AwaitFreeBytes(kMostCapacity - spared, kMostCapacity);
  SetCapacity(kCapacity);
  if (capacities_.acknowledged != kCapacity) {
    EndWith("the volume does not shrink");
  }
  Verify();
}

void ModelClient::RemoveAll() {
  for (size_t name = 0; name < FileModel::kNames; ++name) {
    if (model_.now().file[name] != FileModel::kNone) {
      Unlink(name);
    }
  }
  const auto space = fs_.StatFs(lane_, kRootInode);
  Expect(space.status());
  AwaitFreeBytes(space->capacity_bytes, space->capacity_bytes);
}

void ModelClient::AwaitFreeBytes(uint64_t least, uint64_t most) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  for (uint64_t free = FreeBytes(); free < least || free > most; free = FreeBytes()) {
    if (std::chrono::steady_clock::now() > deadline) {
      EndWith(std::to_string(free) + " bytes are free, not " + std::to_string(least) + " or more");
    }
  }
}

void ModelClient::VerifyBytes(size_t name, const FileModel::Tree& found) {
  const int8_t file = found.file[name];
  const uint64_t size = found.size[static_cast<size_t>(file)];
  const auto opened = fs_.Open(lane_, model_.inode(file), O_RDONLY);
  Expect(opened.status());
  const auto read = fs_.Read(lane_, *opened, 0, FileModel::kMaxBytes);
  Expect(read.status());
  if (read->size() != size) {
    EndWith(NameOf(name) + " has " + std::to_string(size) + " bytes and gives " + std::to_string(read->size()));
  }
  for (uint64_t i = 0; i < size; ++i) {
    const auto value = static_cast<uint8_t>((*read)[i]);
    Complain(model_.JudgeByte(file, i, value));
    model_.Accept(file, i, value);
  }
  fs_.Release(lane_, *opened);
}

void ModelClient::Complain(const std::string& wrong) {
  if (!wrong.empty()) {
    EndWith(wrong);
  }
}

std::optional<size_t> ModelClient::SomeFile() {
  const size_t first = AnyName();
  for (size_t i = 0; i < FileModel::kNames; ++i) {
    if (const size_t name = (first + i) % FileModel::kNames; model_.now().file[name] != FileModel::kNone) {
      return name;
    }
  }
  return std::nullopt;
}

FileModel::Tree ModelClient::With(size_t name, int8_t file) const {
  FileModel::Tree next = model_.now();
  const int8_t old = next.file[name];
  next.file[name] = file;
  if (old != FileModel::kNone && std::find(next.file.begin(), next.file.end(), old) == next.file.end()) {
    next.size[static_cast<size_t>(old)] = 0;
  }
  return next;
}

client::OpenFile* ModelClient::Open(size_t name) {
  const auto opened = fs_.Open(lane_, model_.inode(model_.now().file[name]), O_RDWR);
  Expect(opened.status());
  return *opened;
}

void ModelClient::Create() {
  const size_t name = AnyName();
  const int8_t file = model_.FreeFile();
  if (model_.now().file[name] != FileModel::kNone || file == FileModel::kNone) {
    return;
  }
  model_.NewFile(file);
  model_.Begin(With(name, file));
  const auto made = fs_.Create(lane_, {0, 0}, kRoot, NameOf(name), 0644, O_RDWR);
  Expect(made.status());
  model_.SetInode(file, made->first.ino);
  model_.End();
  fs_.Release(lane_, made->second);
}

void ModelClient::Write() {
  const auto name = SomeFile();
  if (!name) {
    return;
  }
  const int8_t file = model_.now().file[*name];
  const uint64_t size = model_.now().size[static_cast<size_t>(file)];
  const uint64_t at = random_.Below(std::min<uint64_t>(size + 9000, FileModel::kMaxBytes - 1));
  const uint64_t length =
      1 + random_.Below(std::min<uint64_t>(FileModel::kMaxBytes - at, random_.Below(3) == 0 ? 90000 : 3000));
  client::OpenFile* const open = Open(*name);
  WriteTo(open, file, at, length);
  if (random_.Below(4) == 0) {
    Expect(fs_.Sync(lane_, open, /*data_only=*/true));
    model_.Synced(file);
  }
  fs_.Release(lane_, open);
}

void ModelClient::WriteTo(client::OpenFile* open, int8_t file, uint64_t at, uint64_t length) {
  const uint8_t value = model_.ValueFor(file, random_());
  const std::vector<std::byte> bytes(length, static_cast<std::byte>(value));
  FileModel::Tree next = model_.now();
  uint32_t& size = next.size[static_cast<size_t>(file)];
  size = static_cast<uint32_t>(std::max<uint64_t>(size, at + length));
  model_.Begin(next, file, at, length, value);
  Expect(fs_.Write(lane_, open, at, bytes, {}));
  model_.End();
}

void ModelClient::Resize() {
  const auto name = SomeFile();
  if (!name) {
    return;
  }
  const int8_t file = model_.now().file[*name];
  const uint64_t old = model_.now().size[static_cast<size_t>(file)];
  const uint64_t size = random_.Below(random_.Below(3) == 0 ? FileModel::kMaxBytes : old + 1);
  FileModel::Tree next = model_.now();
  next.size[static_cast<size_t>(file)] = static_cast<uint32_t>(size);
  // What is cut off reads as zeros, if it is ever seen again.
  model_.Begin(next, file, std::min(old, size), FileModel::kMaxBytes - std::min(old, size), 0);
  client::SetAttributes what;
  what.size = size;
  Expect(fs_.Set(lane_, model_.inode(file), what, nullptr).status());
  model_.End();
}

void ModelClient::Rename() {
  const auto from = SomeFile();
  const size_t to = AnyName();
  if (!from || *from == to || model_.now().file[*from] == model_.now().file[to]) {
    return;
  }
  FileModel::Tree next = With(to, model_.now().file[*from]);
  next.file[*from] = FileModel::kNone;
  model_.Begin(next);
  Expect(fs_.Rename(lane_, kRoot, NameOf(*from), kRoot, NameOf(to), 0));
  model_.End();
}

void ModelClient::Link() {
  const auto from = SomeFile();
  const size_t to = AnyName();
  if (!from || model_.now().file[to] != FileModel::kNone) {
    return;
  }
  model_.Begin(With(to, model_.now().file[*from]));
  Expect(fs_.Link(lane_, model_.inode(model_.now().file[*from]), kRoot, NameOf(to)).status());
  model_.End();
}

void ModelClient::Unlink() {
  const auto name = SomeFile();
  if (!name) {
    return;
  }
  client::OpenFile* const open = random_.Below(2) == 0 ? Open(*name) : nullptr;  // an orphan, for a while
  Unlink(*name);
  if (open != nullptr) {
    fs_.Release(lane_, open);
  }
}

void ModelClient::Unlink(size_t name) {
  model_.Begin(With(name, FileModel::kNone));
  Expect(fs_.Unlink(lane_, kRoot, NameOf(name)));
  model_.End();
}

void ModelClient::Sync() {
  const auto name = SomeFile();
  if (name) {
    Sync(*name);
  }
}

void ModelClient::Sync(size_t name) {
  client::OpenFile* const open = Open(name);
  Expect(fs_.Sync(lane_, open, /*data_only=*/false));
  model_.Synced(model_.now().file[name]);
  fs_.Release(lane_, open);
}

void ModelClient::ChangeCapacity() {
  const auto space = fs_.StatFs(lane_, kRootInode);
  Expect(space.status());
  const uint64_t before = space->capacity_bytes;
  if (before != capacities_.acknowledged && before != capacities_.wanted) {
    EndWith("the capacity is " + std::to_string(before) + ", which was neither had nor asked for");
  }
  capacities_.acknowledged = before;
  SetCapacity(random_.Below(2) == 0 ? std::max(kCapacity, before - kStep) : std::min(kMostCapacity, before + kStep));
}

void ModelClient::SetCapacity(uint64_t bytes) {
  capacities_.wanted = bytes;
  const Status set = client::ChangeSetting(directory_, "capacity", std::to_string(capacities_.wanted));
  if (set.code() == ENOSPC) {
    capacities_.wanted = capacities_.acknowledged;
    return;
  }
  Expect(set);
  while (true) {
    const auto status = client::GetStatus(directory_);
    Expect(status.status());
    if (!status->capacity_changing) {
      if (status->space.capacity_bytes != capacities_.wanted) {
        EndWith("the capacity stays " + std::to_string(status->space.capacity_bytes) + ": " + status->capacity_failure);
      }
      break;
    }
  }
  capacities_.acknowledged = capacities_.wanted;
}

void ModelClient::SyncRoot() {
  Expect(fs_.SyncDirectory(lane_, kRoot));
  model_.SyncedTree();
}

}  // namespace termfs::fs

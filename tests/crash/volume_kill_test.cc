// SPDX-License-Identifier: Apache-2.0
//
// A server of a volume is killed at named points of the metadata store and of the RNIC, over and over, with a client
// that creates, writes, cuts, renames, links, unlinks and syncs; the next server is asked for everything
// (file_model.h). Before it starts, every other time, the volume is checked. Every third round ends with a loss of
// power: the tmpfs is gone, and the log of the metadata loses some of what was not synced.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <set>

#include "driver/softnic/softnic.h"
#include "fs/client/admin.h"
#include "fs/client/file_system.h"
#include "fs/server/volume.h"
#include "metadata/rocksdb_store.h"
#include "tests/crash/file_model.h"
#include "tests/crash/killed_process.h"
#include "tests/fakes/crash_nic.h"
#include "tests/fakes/crash_store.h"

namespace termfs::fs {
namespace {

constexpr uint64_t kCapacity = uint64_t{16} << 20;
constexpr uint64_t kMostCapacity = uint64_t{40} << 20;
constexpr uint64_t kStep = uint64_t{1052} << 10;
constexpr uint64_t kRoot = 1;

struct Round {
  std::string point;
  uint64_t count = 0;
  uint64_t seed = 0;
  bool power_loss = false;  // after it
};

std::string NameOf(size_t name) { return "n" + std::to_string(name); }

// Bytes: what the capacity was when a change of it had last returned, and what was asked for since.
struct Capacities {
  uint64_t acknowledged = kCapacity;
  uint64_t wanted = kCapacity;
};

// One client, its calls and the model. Ends the process when a call fails.
class Worker {
 public:
  Worker(client::FileSystem& fs, client::Lane& lane, FileModel& model, uint64_t seed, std::string directory,
         Capacities& capacities)
      : fs_(fs), lane_(lane), model_(model), random_(seed), directory_(std::move(directory)), capacities_(capacities) {}

  void Verify() {
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

  void Run(int steps) {
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

  void WriteAndSync() {
    for (int i = 0; i < 3; ++i) {
      Create();
    }
    const size_t name = *SomeFile();
    client::OpenFile* const open = Open(name);
    WriteTo(open, model_.now().file[name], 0, FileModel::kMaxBytes);
    fs_.Release(lane_, open);
    Sync(name);
  }

  // A file that grows, and is open in the end.
  void Grow() {
    Create();
    const size_t name = *SomeFile();
    client::OpenFile* const open = Open(name);
    for (uint64_t at = 0; at + 3000 < FileModel::kMaxBytes / 2; at += 3000) {
      WriteTo(open, model_.now().file[name], at, 3000);
    }
  }
  uint64_t FreeBytes() {
    const auto space = fs_.StatFs(lane_);
    Expect(space.status());
    return space->free_bytes;
  }
  // No file has holes.
  void ExpectSpaceBeyondTheFiles(bool expected) {
    uint64_t free = kCapacity;
    for (const uint32_t size : model_.now().size) {
      free -= RoundUpToPage(uint64_t{size});
    }
    if ((FreeBytes() != free) != expected) {
      EndWith(std::to_string(FreeBytes()) + " bytes are free, and " + std::to_string(free) + " not of any file");
    }
  }

  // A byte in each page of new files: the rest of those pages is nobody's.
  void WriteSparsely() {
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

  void SyncAll() {
    for (size_t name = 0; name < FileModel::kNames; ++name) {
      if (model_.now().file[name] != FileModel::kNone) {
        Sync(name);
      }
    }
    SyncRoot();
  }

  // Synced files behind others, which go; then the volume shrinks, and what is left moves to where those were.
  void MoveByShrinking() {
    SetCapacity(kMostCapacity);
    if (capacities_.acknowledged != kMostCapacity) {
      EndWith("the volume does not grow");
    }
    const auto ballast = fs_.Create(lane_, {0, 0}, kRoot, "ballast", 0644, O_RDWR);
    Expect(ballast.status());
    const std::vector<std::byte> bytes(FileModel::kMaxBytes, std::byte{0xbb});
    const uint64_t spared = uint64_t{6} << 20;
    for (uint64_t at = 0; FreeBytes() > spared; at += bytes.size()) {
      Expect(fs_.Write(lane_, ballast->second, at, bytes, /*clears_privileges=*/false));
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

  // Everything goes; the space comes back.
  void RemoveAll() {
    for (size_t name = 0; name < FileModel::kNames; ++name) {
      if (model_.now().file[name] != FileModel::kNone) {
        Unlink(name);
      }
    }
    const auto space = fs_.StatFs(lane_);
    Expect(space.status());
    AwaitFreeBytes(space->capacity_bytes, space->capacity_bytes);
  }

 private:
  // A release does not wait for the server, and what it frees follows later.
  void AwaitFreeBytes(uint64_t least, uint64_t most) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(100);
    for (uint64_t free = FreeBytes(); free < least || free > most; free = FreeBytes()) {
      if (std::chrono::steady_clock::now() > deadline) {
        EndWith(std::to_string(free) + " bytes are free, not " + std::to_string(least) + " or more");
      }
    }
  }

  void VerifyBytes(size_t name, const FileModel::Tree& found) {
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

  void Expect(const Status& status) { Complain(status.ok() ? "" : status.ToDebugString()); }
  static void Complain(const std::string& wrong) {
    if (!wrong.empty()) {
      EndWith(wrong);
    }
  }
  size_t AnyName() { return random_.Below(FileModel::kNames); }
  // One that is there, or nothing.
  std::optional<size_t> SomeFile() {
    const size_t first = AnyName();
    for (size_t i = 0; i < FileModel::kNames; ++i) {
      if (const size_t name = (first + i) % FileModel::kNames; model_.now().file[name] != FileModel::kNone) {
        return name;
      }
    }
    return std::nullopt;
  }
  // The tree when `name` names `file` and no more what it did.
  FileModel::Tree With(size_t name, int8_t file) const {
    FileModel::Tree next = model_.now();
    const int8_t old = next.file[name];
    next.file[name] = file;
    if (old != FileModel::kNone && std::find(next.file.begin(), next.file.end(), old) == next.file.end()) {
      next.size[static_cast<size_t>(old)] = 0;
    }
    return next;
  }
  client::OpenFile* Open(size_t name) {
    const auto opened = fs_.Open(lane_, model_.inode(model_.now().file[name]), O_RDWR);
    Expect(opened.status());
    return *opened;
  }

  void Create() {
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

  void Write() {
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

  void WriteTo(client::OpenFile* open, int8_t file, uint64_t at, uint64_t length) {
    const uint8_t value = model_.ValueFor(file, random_());
    const std::vector<std::byte> bytes(length, static_cast<std::byte>(value));
    FileModel::Tree next = model_.now();
    uint32_t& size = next.size[static_cast<size_t>(file)];
    size = static_cast<uint32_t>(std::max<uint64_t>(size, at + length));
    model_.Begin(next, file, at, length, value);
    Expect(fs_.Write(lane_, open, at, bytes, /*clears_privileges=*/false));
    model_.End();
  }

  void Resize() {
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

  void Rename() {
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

  void Link() {
    const auto from = SomeFile();
    const size_t to = AnyName();
    if (!from || model_.now().file[to] != FileModel::kNone) {
      return;
    }
    model_.Begin(With(to, model_.now().file[*from]));
    Expect(fs_.Link(lane_, model_.inode(model_.now().file[*from]), kRoot, NameOf(to)).status());
    model_.End();
  }

  void Unlink() {
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

  void Unlink(size_t name) {
    model_.Begin(With(name, FileModel::kNone));
    Expect(fs_.Unlink(lane_, kRoot, NameOf(name)));
    model_.End();
  }

  void Sync() {
    const auto name = SomeFile();
    if (name) {
      Sync(*name);
    }
  }

  void Sync(size_t name) {
    client::OpenFile* const open = Open(name);
    Expect(fs_.Sync(lane_, open, /*data_only=*/false));
    model_.Synced(model_.now().file[name]);
    fs_.Release(lane_, open);
  }

  // The volume has the old capacity or the new one after a death in the midst of it, and what was done is kept.
  void ChangeCapacity() {
    const auto space = fs_.StatFs(lane_);
    Expect(space.status());
    const uint64_t before = space->capacity_bytes;
    if (before != capacities_.acknowledged && before != capacities_.wanted) {
      EndWith("the capacity is " + std::to_string(before) + ", which was neither had nor asked for");
    }
    capacities_.acknowledged = before;
    SetCapacity(random_.Below(2) == 0 ? std::max(kCapacity, before - kStep) : std::min(kMostCapacity, before + kStep));
  }

  void SetCapacity(uint64_t bytes) {
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
          EndWith("the capacity stays " + std::to_string(status->space.capacity_bytes) + ": " +
                  status->capacity_failure);
        }
        break;
      }
    }
    capacities_.acknowledged = capacities_.wanted;
  }

  void SyncRoot() {
    Expect(fs_.SyncDirectory(lane_, kRoot));
    model_.SyncedTree();
  }

  client::FileSystem& fs_;
  client::Lane& lane_;
  FileModel& model_;
  Random random_;
  const std::string directory_;
  Capacities& capacities_;
};

class KilledVolume {
 public:
  KilledVolume() {
    std::string name = testing::TempDir() + "termfs-crash-XXXXXX";
    TERMFS_CHECK(mkdtemp(name.data()) != nullptr);
    directory_ = name;
    memory_ = "/dev/shm/termfs-crash-" + name.substr(name.size() - 6);
    const HowItEnded formatted = RunInProcess([&]() -> std::string {
      server::FormatOptions options;
      options.settings.capacity_bytes = kCapacity;
      options.settings.dram_ratio = 0.1;
      options.settings.sample_period_ms = 50;
      options.settings.memory_directory = memory_;
      const Status status = server::FormatVolume(directory_, options);
      return status.ok() ? "" : status.ToString();
    });
    TERMFS_CHECK(formatted == HowItEnded::kByItself);
  }
  ~KilledVolume() {
    std::filesystem::remove_all(directory_);
    std::filesystem::remove_all(memory_);
  }

  HowItEnded Run(const Round& round, const std::function<void(Worker&)>& work) {
    const HowItEnded ended = RunInProcess([&] { return Serve(round, work); });
    if (round.power_loss && ended != HowItEnded::kFailed) {
      Random random(round.seed);
      metadata::LosePower(directory_ + "/meta", *synced_, random);
      std::filesystem::remove_all(memory_);
      model_->LosePower();
    }
    return ended;
  }
  uint64_t acknowledged() { return model_->acknowledged(); }

 private:
  // In a process of its own.
  std::string Serve(const Round& round, const std::function<void(Worker&)>& work) {
    const std::string at = round.point + ":" + std::to_string(round.count) + " seed " + std::to_string(round.seed);
    if (round.seed % 2 == 0) {
      const auto report = server::CheckVolume(directory_, /*repair=*/round.seed % 4 == 0);
      if (!report.ok() || !report->problems.empty()) {
        return at + ": check: " + (report.ok() ? report->problems[0] : report.status().ToString());
      }
    }
    CrashPoints points(round.point, round.count);
    auto soft = driver::CreateSoftNic();
    auto settings = server::LoadSettings(directory_);
    if (!soft.ok() || !settings.ok()) {
      return "no RNIC, or no settings";
    }
    driver::CrashNic nic(**soft, points);
    const auto open = [&](const std::string& path) -> Result<std::unique_ptr<metadata::KeyValueStore>> {
      ASSIGN_OR_RETURN(auto store, metadata::OpenRocksDb(path));
      return std::unique_ptr<metadata::KeyValueStore>(
          std::make_unique<metadata::CrashStore>(std::move(store), path, points, *synced_));
    };
    const auto served = server::VolumeServer::Start(nic, directory_, *settings, open);
    if (!served.ok()) {
      EndWith(at + ": start: " + served.status().ToDebugString());
    }
    const auto connected = client::FileSystem::Connect(nic, directory_, {}, nullptr);
    if (!connected.ok()) {
      EndWith(at + ": connect: " + connected.status().ToDebugString());
    }
    auto lane = (*connected)->OpenLane();
    if (!lane.ok()) {
      EndWith(at + ": lane: " + lane.status().ToDebugString());
    }
    Worker worker(**connected, **lane, *model_, round.seed, directory_, *capacities_);
    worker.Verify();
    work(worker);
    EndWith("");
  }

  std::string directory_;
  std::string memory_;
  Shared<FileModel> model_;
  Shared<metadata::SyncedLogs> synced_;
  Shared<Capacities> capacities_;
};

constexpr std::array<const char*, 16> kPoints = {"store.commit", "store.committed", "store.sync",      "store.synced",
                                                 "nic.publish",  "nic.published",   "nic.begin_write", "nic.hide",
                                                 "nic.hidden",   "nic.begun_write", "nic.commit",      "nic.registered",
                                                 "nic.register", "nic.committed",   "nic.resize",      "nic.resized"};

void KillEverywhere(std::initializer_list<uint64_t> counts, uint64_t seed) {
  KilledVolume volume;
  std::set<std::pair<std::string, uint64_t>> died_at;
  for (uint64_t length = 0; length < CrashTestLength(); ++length) {
    for (const uint64_t count : counts) {
      for (const char* const point : kPoints) {
        const Round round{.point = point, .count = count + length * 5, .seed = ++seed, .power_loss = seed % 3 == 0};
        const HowItEnded ended = volume.Run(round, [](Worker& worker) { worker.Run(60); });
        ASSERT_NE(ended, HowItEnded::kFailed) << point << ":" << round.count << " seed " << seed;
        if (ended == HowItEnded::kKilled) {
          died_at.insert({round.point, round.count});
        }
      }
    }
  }
  const Round last{.point = "", .count = 0, .seed = (seed / 4 + 1) * 4};
  EXPECT_EQ(volume.Run(last, [](Worker& worker) { worker.RemoveAll(); }), HowItEnded::kByItself);
  std::printf("died at %zu pairs, %lu calls acknowledged\n", died_at.size(),
              static_cast<unsigned long>(volume.acknowledged()));
  EXPECT_GE(died_at.size(), kPoints.size()) << "the points are not passed any more";
}

TEST(VolumeKill, AtNamedPoints_KeepsWhatReturned) { KillEverywhere({1, 2, 4, 7, 15, 33, 80}, 100); }

// Power is lost right after the space of removed files has come back: a file whose removal is lost has its bytes.
TEST(VolumeKill, SpaceComesBack_OnlyWhenTheRemovalIsDurable) {
  KilledVolume volume;
  for (uint64_t seed = 301; seed < 301 + 12 * CrashTestLength(); ++seed) {
    const Round round{.point = "", .count = 0, .seed = seed, .power_loss = true};
    ASSERT_EQ(volume.Run(round,
                         [](Worker& worker) {
                           worker.Run(40);
                           worker.SyncAll();
                           worker.RemoveAll();
                         }),
              HowItEnded::kByItself)
        << seed;
  }
  EXPECT_EQ(volume.Run({.point = "", .count = 0, .seed = 304}, [](Worker&) {}), HowItEnded::kByItself);
}

// Power is lost right after a shrink: what it moved had been synced where it was.
TEST(VolumeKill, WhatAShrinkMoved_IsAsDurableAsBefore) {
  for (uint64_t seed = 601; seed < 601 + 3 * CrashTestLength(); ++seed) {
    KilledVolume volume;
    ASSERT_EQ(volume.Run({.point = "", .count = 0, .seed = seed, .power_loss = true},
                         [](Worker& worker) { worker.MoveByShrinking(); }),
              HowItEnded::kByItself)
        << seed;
    ASSERT_EQ(volume.Run({.point = "", .count = 0, .seed = 4 * seed}, [](Worker& worker) { worker.RemoveAll(); }),
              HowItEnded::kByItself)
        << seed;
  }
}

TEST(VolumeKill, SpaceAheadOfAGrowingFile_ComesBack) {
  KilledVolume volume;
  EXPECT_EQ(volume.Run({.point = "", .count = 0, .seed = 501},
                       [](Worker& worker) {
                         worker.Grow();
                         worker.ExpectSpaceBeyondTheFiles(true);
                       }),
            HowItEnded::kByItself);
  EXPECT_EQ(volume.Run({.point = "", .count = 0, .seed = 503},
                       [](Worker& worker) { worker.ExpectSpaceBeyondTheFiles(false); }),
            HowItEnded::kByItself);
}

// A sync dies between the data and the log that says whose it is, and power is lost: those pages are free, and what was
// written to them is nobody's to see.
TEST(VolumeKill, PagesWhoseFileWasLost_ReadAsZeros) {
  int deaths = 0;
  for (uint64_t seed = 401; seed < 401 + 24 * CrashTestLength(); seed += 2) {
    KilledVolume volume;  // so that the same pages are allocated again
    const Round dies{.point = "store.sync", .count = 1, .seed = seed, .power_loss = true};
    const HowItEnded ended = volume.Run(dies, [](Worker& worker) { worker.WriteAndSync(); });
    ASSERT_NE(ended, HowItEnded::kFailed) << seed;
    deaths += ended == HowItEnded::kKilled ? 1 : 0;
    ASSERT_EQ(volume.Run({.point = "", .count = 0, .seed = seed}, [](Worker& worker) { worker.WriteSparsely(); }),
              HowItEnded::kByItself)
        << seed;
  }
  EXPECT_GE(deaths, 6) << "the point is not passed any more";
}

}  // namespace
}  // namespace termfs::fs

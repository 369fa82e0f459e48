// SPDX-License-Identifier: Apache-2.0
//
// ModelClient: the only client of a volume whose server runs in the same process and may be killed at any instant. It
// makes calls, at random or for a purpose, and keeps the model of what they must have done (file_model.h), which the
// client of the next process verifies.
//
// Thread-safety: one thread.
// Ownership:     borrows everything; model and capacities lie in memory that outlives the process.
// Errors:        a call that fails, or a finding that the model does not allow, ends the process with a message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/random.h"
#include "fs/client/file_system.h"
#include "tests/crash/file_model.h"

namespace termfs::fs {

inline constexpr uint64_t kCapacity = uint64_t{16} << 20;      // bytes; the least
inline constexpr uint64_t kMostCapacity = uint64_t{40} << 20;  // bytes

// Bytes: what the capacity was when a change of it had last returned, and what was asked for since.
struct Capacities {
  uint64_t acknowledged = kCapacity;
  uint64_t wanted = kCapacity;
};

class ModelClient {
 public:
  ModelClient(client::FileSystem& fs, client::Lane& lane, FileModel& model, uint64_t seed, std::string directory,
              Capacities& capacities)
      : fs_(fs), lane_(lane), model_(model), random_(seed), directory_(std::move(directory)), capacities_(capacities) {}

  // Everything is as the model allows it, and the truth from now on.
  void Verify();
  // `steps` calls at random.
  void Run(int steps);
  void WriteAndSync();
  // A file that grows, and is open in the end.
  void Grow();
  uint64_t FreeBytes();
  // No file has holes.
  void ExpectSpaceBeyondTheFiles(bool expected);
  // A byte in each page of new files: the rest of those pages is nobody's.
  void WriteSparsely();
  void SyncAll();
  // Synced files behind others, which go; then the volume shrinks, and what is left moves to where those were.
  void MoveByShrinking();
  // Everything goes; the space comes back.
  void RemoveAll();

 private:
  // A release does not wait for the server, and what it frees follows later.
  void AwaitFreeBytes(uint64_t least, uint64_t most);
  void VerifyBytes(size_t name, const FileModel::Tree& found);
  void Expect(const Status& status) { Complain(status.ok() ? "" : status.ToDebugString()); }
  static void Complain(const std::string& wrong);
  size_t AnyName() { return random_.Below(FileModel::kNames); }
  // One that is there, or nothing.
  std::optional<size_t> SomeFile();
  // The tree when `name` names `file` and no more what it did.
  FileModel::Tree With(size_t name, int8_t file) const;
  client::OpenFile* Open(size_t name);
  void Create();
  void Write();
  void WriteTo(client::OpenFile* open, int8_t file, uint64_t at, uint64_t length);
  void Resize();
  void Rename();
  void Link();
  void Unlink();
  void Unlink(size_t name);
  void Sync();
  void Sync(size_t name);
  // The volume has the old capacity or the new one after a death in the midst of it, and what was done is kept.
  void ChangeCapacity();
  void SetCapacity(uint64_t bytes);
  void SyncRoot();

  client::FileSystem& fs_;
  client::Lane& lane_;
  FileModel& model_;
  Random random_;
  const std::string directory_;
  Capacities& capacities_;
};

}  // namespace termfs::fs

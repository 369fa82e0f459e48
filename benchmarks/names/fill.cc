// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/names/fill.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "benchmarks/must.h"
#include "benchmarks/names/tree.h"
#include "fs/server/volume_directory.h"
#include "metadata/keys.h"
#include "metadata/name_hash.h"
#include "metadata/new_inode.h"
#include "metadata/operation.h"
#include "metadata/records.h"

namespace termfs::benchmarks::names {
namespace {

constexpr unsigned kThreads = 2;

// The store, which is synced at the end only, not for each block of inode numbers.
class SyncedAtLast final : public metadata::KeyValueStore {
 public:
  explicit SyncedAtLast(KeyValueStore& store) : store_(store) {}
  std::unique_ptr<metadata::Transaction> Begin() override { return store_.Begin(); }
  std::unique_ptr<metadata::Reader> Snapshot() override { return store_.Snapshot(); }
  Status SyncWal() override { return Status::Ok(); }

 private:
  KeyValueStore& store_;
};

// The files of a new directory: what Namespace::Create would have put there one by one.
Status PutFiles(metadata::Namespace& names, metadata::Transaction& transaction, const metadata::Attributes& directory,
                uint64_t first, uint64_t end) {
  const metadata::Superblock volume = names.superblock();
  const metadata::NameHash hash(volume.uuid, volume.name_hash_bits);
  const metadata::NewInode wanted{.mode = S_IFREG | 0644, .symlink_target = {}};
  metadata::InodeRecord parent{.attributes = directory, .parent = metadata::kRootInode, .symlink_target = {}};
  for (uint64_t file = first; file < end; ++file) {
    const Nanoseconds now = Clock::System().RealTime();
    ASSIGN_OR_RETURN(const metadata::InodeNumber ino, names.NextInode());
    const metadata::InodeRecord inode = metadata::MakeInode(ino, wanted, parent, {}, now);
    const std::string name = FileName(file);
    const metadata::Dentry dentry{.ino = ino, .type = metadata::FileType::kRegular};
    RETURN_IF_ERROR(
        transaction.Put(metadata::DentryKey(directory.ino, hash(name), name), metadata::EncodeDentry(dentry)));
    RETURN_IF_ERROR(transaction.Put(metadata::InodeKey(ino), metadata::EncodeInode(inode)));
    parent.attributes.Modified(now);
  }
  parent.attributes.size = end - first;
  RETURN_IF_ERROR(transaction.Put(metadata::InodeKey(directory.ino), metadata::EncodeInode(parent)));
  return metadata::AddToInodeCount(transaction, directory.ino % metadata::kInodeCountShards,
                                   static_cast<int64_t>(end - first));
}

void FillDirectory(metadata::KeyValueStore& store, metadata::Namespace& names, uint64_t directory, uint64_t files) {
  const metadata::NewInode wanted{.mode = S_IFDIR | 0755, .symlink_target = {}};
  const auto made =
      Must(names.Create(metadata::kRootInode, DirectoryName(directory), wanted, {}, Clock::System().RealTime()));
  const uint64_t first = directory * kNamesPerDirectory;
  Must(metadata::Retry(store, [&](metadata::Transaction& transaction) {
    return PutFiles(names, transaction, made, first, std::min(files, first + kNamesPerDirectory));
  }));
}

}  // namespace

void Fill(const std::string& volume, uint64_t files) {
  const fs::server::VolumePaths paths(volume);
  const auto lock = Must(fs::server::VolumeLock::Take(paths, fs::server::LockUse::kServe));
  const auto store = Must(fs::server::OpenStore(paths));
  SyncedAtLast unsynced(*store);
  const auto names = Must(fs::server::OpenNamespace(unsynced, volume));
  std::atomic<uint64_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (uint64_t directory = next++; directory < DirectoriesOf(files); directory = next++) {
        FillDirectory(unsynced, *names, directory, files);
      }
    });
  }
  threads.clear();
  Must(store->SyncWal());
}

}  // namespace termfs::benchmarks::names

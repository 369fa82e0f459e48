// SPDX-License-Identifier: Apache-2.0
//
// Making and opening a volume, and how every operation runs.
#include "metadata/allocator.h"
#include "metadata/keys.h"
#include "metadata/namespace.h"
#include "metadata/operation.h"
#include "metadata/records.h"

namespace termfs::metadata {

namespace {

constexpr InodeNumber kInodeBlock = 4096;
constexpr uint64_t kMaxCapacity = uint64_t{1} << 48;  // pages

InodeRecord RootInode(const FormatOptions& options) {
  InodeRecord root;
  Attributes& a = root.attributes;
  a.ino = kRootInode;
  a.generation = 1;
  a.mode = S_IFDIR | (options.root_mode & 07777);
  a.nlink = 2;
  a.uid = options.root_owner.uid;
  a.gid = options.root_owner.gid;
  a.atime = a.mtime = a.ctime = a.btime = options.now;
  root.parent = kRootInode;
  return root;
}

}  // namespace

Status Namespace::Format(KeyValueStore& store, const FormatOptions& options) {
  if (options.capacity_pages == 0 || options.capacity_pages > kMaxCapacity || options.name_hash_bits < 1 ||
      options.name_hash_bits > 55) {
    return Status::Error(EINVAL, "format: capacity or hash width out of range");
  }
  Superblock superblock;
  superblock.format_version = kFormatVersion;
  superblock.incompatible = kInodesInReceipts | kShortGroups | kCuts;
  superblock.uuid = options.uuid;
  superblock.capacity_pages = options.capacity_pages;
  superblock.region_server = options.region_server;
  superblock.name_hash_bits = options.name_hash_bits;
  superblock.created = options.now;
  const Status status = Retry(store, [&](Transaction& transaction) -> Status {
    ASSIGN_OR_RETURN(const auto present, transaction.GetForUpdate(SuperblockKey()));
    if (present) {
      return Status::Error(EEXIST, "format: the store holds a volume already");
    }
    RETURN_IF_ERROR(transaction.Put(SuperblockKey(), EncodeSuperblock(superblock)));
    RETURN_IF_ERROR(transaction.Put(NextInodeKey(), EncodeNumber(kRootInode + 1)));
    RETURN_IF_ERROR(transaction.Put(InodeCountKey(kRootInode), EncodeNumber(1)));
    return transaction.Put(InodeKey(kRootInode), EncodeInode(RootInode(options)));
  });
  RETURN_IF_ERROR(status);
  return store.SyncWal();
}

Namespace::Namespace(KeyValueStore& store, const Superblock& superblock)
    : store_(store),
      superblock_(superblock),
      hash_(superblock.uuid, superblock.name_hash_bits),
      allocator_(std::make_unique<Allocator>(superblock.region_server, superblock.capacity_pages)) {}

Namespace::~Namespace() = default;

Result<std::unique_ptr<Namespace>> Namespace::Open(KeyValueStore& store) {
  const std::unique_ptr<Reader> reader = store.Snapshot();
  ASSIGN_OR_RETURN(const auto value, reader->Get(SuperblockKey()));
  if (!value) {
    return Status::Error(ENOENT, "the metadata store holds no volume: run termfs format");
  }
  ASSIGN_OR_RETURN(const Superblock superblock, DecodeSuperblock(*value));
  std::unique_ptr<Namespace> result(new Namespace(store, superblock));
  RETURN_IF_ERROR(result->allocator_->Load(*reader));
  return result;
}

Superblock Namespace::superblock() const {
  MutexLock lock(superblock_mutex_);
  return superblock_;
}

Status Namespace::Run(const std::function<Status(Operation&)>& body) {
  std::optional<Operation> operation;
  const Status status = Retry(store_, [&](Transaction& transaction) -> Status {
    operation.emplace(transaction, *allocator_, hash_);
    RETURN_IF_ERROR(body(*operation));
    return operation->Finish();
  });
  RETURN_IF_ERROR(status);
  operation->Publish();
  return Status::Ok();
}

std::optional<InodeNumber> Namespace::ReservedInode() {
  MutexLock lock(inode_mutex_);
  return next_inode_ < end_inode_ ? std::optional(next_inode_++) : std::nullopt;
}

Result<InodeNumber> Namespace::NextInode() {
  if (const auto reserved = ReservedInode()) {
    return *reserved;
  }
  MutexLock reserving(reserve_mutex_);
  if (const auto reserved = ReservedInode()) {
    return *reserved;  // somebody else has synced for this one, too
  }
  InodeNumber first = 0;
  const Status status = Retry(store_, [&](Transaction& transaction) -> Status {
    ASSIGN_OR_RETURN(const auto value, transaction.GetForUpdate(NextInodeKey()));
    if (!value) {
      return Status::Error(EIO, "the next inode number is missing: run termfs fsck");
    }
    ASSIGN_OR_RETURN(first, DecodeNumber(*value));
    return transaction.Put(NextInodeKey(), EncodeNumber(first + kInodeBlock));
  });
  RETURN_IF_ERROR(status);
  // A mount that outlives a loss of power knows the numbers, also of files that were lost.
  RETURN_IF_ERROR(store_.SyncWal());
  MutexLock lock(inode_mutex_);
  next_inode_ = first + 1;
  end_inode_ = first + kInodeBlock;
  return first;
}

}  // namespace termfs::metadata

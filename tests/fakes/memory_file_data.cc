// SPDX-License-Identifier: Apache-2.0
//
// MemoryFileSystem: open files, their data, extended attributes.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "tests/fakes/memory_file_system.h"

namespace termfs::fakes {
namespace {

constexpr size_t kLaneBytes = (1U << 20) + (64U << 10);

int64_t Now() { return Clock::System().RealTime().count(); }

class MemoryLane : public fs::client::Lane {
 public:
  MemoryLane(std::unique_ptr<Interruption> interruption, size_t place_bytes)
      : interruption_(std::move(interruption)), bytes_(kLaneBytes + place_bytes) {
    TERMFS_CHECK(memory_ != MAP_FAILED);
  }
  ~MemoryLane() override { munmap(memory_, bytes_); }
  std::span<std::byte> buffer() override { return {static_cast<std::byte*>(memory_), bytes_}; }
  std::span<std::byte> places() override { return buffer().subspan(kLaneBytes); }
  Interruption& interruption() override { return *interruption_; }

 private:
  const std::unique_ptr<Interruption> interruption_;
  const size_t bytes_;
  void* const memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
};

struct Handle {
  uint64_t ino;
  int flags;
};

Handle& HandleOf(fs::client::OpenFile* file) { return *reinterpret_cast<Handle*>(file); }

}  // namespace

Result<std::unique_ptr<fs::client::Lane>> MemoryFileSystem::OpenLane(size_t place_bytes) {
  ASSIGN_OR_RETURN(auto interruption, Interruption::Create());
  return std::unique_ptr<Lane>(std::make_unique<MemoryLane>(std::move(interruption), place_bytes));
}

Status MemoryFileSystem::Resize(MemoryNode& node, uint64_t size) {
  if (!S_ISREG(node.attributes.mode)) {
    return Status::Error(EINVAL, "not a file");
  }
  const uint64_t others = volume_.used_bytes - node.data.size();
  if (size > node.data.size() && size > volume_.capacity_bytes - others) {
    return Status::Error(ENOSPC, "volume");
  }
  volume_.used_bytes = others + size;
  node.data.resize(size);
  node.attributes.size = size;
  node.attributes.blocks = (size + 511) / 512;
  node.attributes.mtime = node.attributes.ctime = Now();
  return Status::Ok();
}

Result<fs::client::OpenFile*> MemoryFileSystem::Open(Lane&, uint64_t ino, int flags) {
  {
    WriterLock lock(volume_.mutex);
    ASSIGN_OR_RETURN(MemoryNode * node, Find(ino));
    if (S_ISREG(node->attributes.mode) == ((flags & O_PATH) != 0)) {
      return Status::Error(EINVAL, "O_PATH is for what has no data");
    }
    if ((flags & O_TRUNC) != 0) {
      RETURN_IF_ERROR(Resize(*node, 0));
    }
    node->opens++;
  }
  if ((flags & O_TRUNC) != 0) {
    TellOthers(ino);
  }
  open_files_++;
  return reinterpret_cast<OpenFile*>(new Handle{ino, flags});
}

Result<std::pair<fs::Attributes, fs::client::OpenFile*>> MemoryFileSystem::Create(Lane&, Caller who, uint64_t parent,
                                                                                  std::string_view name, uint32_t mode,
                                                                                  int flags) {
  WriterLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * node, Make(who, parent, name, S_IFREG | (mode & 07777)));
  node->opens++;
  open_files_++;
  return std::pair(node->attributes, reinterpret_cast<OpenFile*>(new Handle{node->attributes.ino, flags}));
}

Result<std::pair<fs::Attributes, fs::client::OpenFile*>> MemoryFileSystem::CreateUnnamed(Lane&, Caller who,
                                                                                         uint64_t parent, uint32_t mode,
                                                                                         int flags) {
  WriterLock lock(volume_.mutex);
  const std::string name = "unnamed " + std::to_string(volume_.next_ino);
  ASSIGN_OR_RETURN(MemoryNode * node, Make(who, parent, name, S_IFREG | (mode & 07777)));
  RemoveEntry(volume_.nodes.at(parent), name);
  node->attributes.nlink = 0;
  node->opens++;
  open_files_++;
  return std::pair(node->attributes, reinterpret_cast<OpenFile*>(new Handle{node->attributes.ino, flags}));
}

void MemoryFileSystem::Release(Lane& lane, OpenFile* file) {
  [[maybe_unused]] const Status unlocked = Lock(lane, file, {.flock = true, .type = fs::LockType::kUnlock}, nullptr);
  const std::unique_ptr<Handle> handle(&HandleOf(file));
  open_files_--;
  WriterLock lock(volume_.mutex);
  const auto found = volume_.nodes.find(handle->ino);
  if (found != volume_.nodes.end()) {
    found->second.opens--;
    DropIfUnused(found->second);
  }
}

Result<std::span<const std::byte>> MemoryFileSystem::Read(Lane& lane, OpenFile* file, uint64_t offset, size_t size) {
  ASSIGN_OR_RETURN(const size_t length, ReadInto(file, offset, lane.buffer().first(size)));
  return std::span<const std::byte>(lane.buffer().first(length));
}

Result<std::optional<std::span<const std::byte>>> MemoryFileSystem::BeginRead(Lane& lane,
                                                                              const fs::client::FileRead& read) {
  const std::span<std::byte> place = lane.places().subspan(read.place, read.size);
  ASSIGN_OR_RETURN(const size_t length, ReadInto(read.file, read.offset, place));
  return std::optional<std::span<const std::byte>>(place.first(length));
}

Result<size_t> MemoryFileSystem::ReadInto(OpenFile* file, uint64_t offset, std::span<std::byte> to) {
  reads_.Add();
  ReaderLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(const MemoryNode* node, Find(HandleOf(file).ino));
  const uint64_t start = std::min<uint64_t>(offset, node->data.size());
  const size_t length = std::min<uint64_t>(to.size(), node->data.size() - start);
  std::memcpy(to.data(), node->data.data() + start, length);
  return length;
}

Status MemoryFileSystem::Write(Lane&, OpenFile* file, uint64_t offset, std::span<const std::byte> data,
                               fs::client::WriteFlags flags) {
  const Handle& handle = HandleOf(file);
  {
    WriterLock lock(volume_.mutex);
    ASSIGN_OR_RETURN(MemoryNode * node, Find(handle.ino));
    if (flags.append.value_or((handle.flags & O_APPEND) != 0)) {
      offset = node->data.size();
    }
    if (offset + data.size() > node->data.size()) {
      RETURN_IF_ERROR(Resize(*node, offset + data.size()));
    }
    std::memcpy(node->data.data() + offset, data.data(), data.size());
    if (flags.clears_privileges) {
      node->attributes.mode = fs::WithoutPrivileges(node->attributes.mode);
    }
    node->attributes.mtime = node->attributes.ctime = Now();
  }
  TellOthers(handle.ino);
  return Status::Ok();
}

Result<uint64_t> MemoryFileSystem::Copy(Lane& lane, const fs::client::FileCopy& copy) {
  std::vector<std::byte> bytes(copy.length);
  ASSIGN_OR_RETURN(const size_t length, ReadInto(copy.from, copy.from_offset, bytes));
  bytes.resize(length);
  if (length > 0) {
    RETURN_IF_ERROR(Write(lane, copy.to, copy.to_offset, bytes, {.clears_privileges = copy.clears_privileges}));
  }
  return uint64_t{length};
}

fs::server::LockRequest MemoryFileSystem::RequestOf(OpenFile* file, const fs::client::FileLock& lock) const {
  return {.ino = HandleOf(file).ino,
          .owner = {.holder = {.client = reinterpret_cast<uintptr_t>(this)},
                    .flock = lock.flock,
                    .id = lock.flock ? reinterpret_cast<uintptr_t>(file) : lock.owner},
          .type = lock.type,
          .start = lock.start,
          .end = lock.end,
          .pid = lock.pid};
}

Status MemoryFileSystem::Lock(Lane& lane, OpenFile* file, const fs::client::FileLock& lock,
                              fs::client::LockSleep* sleep) {
  for (bool prepared = false;; prepared = true) {
    {
      WriterLock hold(volume_.mutex);
      fs::server::LockTable::Tickets granted;
      ASSIGN_OR_RETURN(const auto answer, volume_.locks.Apply(RequestOf(file, lock), {}, granted));
      if (answer.state == fs::server::LockTable::State::kDone) {
        return Status::Ok();
      }
    }
    if (!lock.wait || sleep == nullptr) {
      return Status::Error(EBUSY, "locked");
    }
    if (!prepared) {
      RETURN_IF_ERROR(sleep->Prepare());
    }
    sleep->Begin();
    pollfd interrupted{.fd = lane.interruption().fd(), .events = POLLIN, .revents = 0};
    poll(&interrupted, 1, 10);
    sleep->End();
    lane.interruption().Drain();
    if (lane.interruption().requested()) {
      return Status::Error(EINTR, "as asked");
    }
    RETURN_IF_ERROR(CheckServer());
  }
}

Result<std::optional<fs::client::FileLock>> MemoryFileSystem::TestLock(Lane&, OpenFile* file,
                                                                       const fs::client::FileLock& lock,
                                                                       fs::client::LockSleep*) {
  ReaderLock hold(volume_.mutex);
  const auto held = volume_.locks.Test(RequestOf(file, lock));
  if (!held) {
    return std::optional<fs::client::FileLock>();
  }
  fs::client::FileLock found = lock;
  found.type = held->range.write ? fs::LockType::kWrite : fs::LockType::kRead;
  found.start = held->range.start;
  found.end = held->range.end;
  found.pid = held->range.pid;
  return std::optional(found);
}

Status MemoryFileSystem::Flush(Lane& lane, OpenFile* file, uint64_t owner) {
  RETURN_IF_ERROR(CheckServer());
  return Lock(lane, file, {.owner = owner, .type = fs::LockType::kUnlock}, nullptr);
}
Status MemoryFileSystem::Sync(Lane&, OpenFile*, bool) {
  syncs_++;
  return CheckServer();
}
Status MemoryFileSystem::SyncDirectory(Lane&, uint64_t) {
  syncs_++;
  return CheckServer();
}

Result<uint64_t> MemoryFileSystem::Seek(Lane&, OpenFile* file, uint64_t offset, int whence) {
  ReaderLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(const MemoryNode* node, Find(HandleOf(file).ino));
  if (offset >= node->data.size()) {
    return Status::Error(ENXIO, "behind the end");
  }
  return whence == SEEK_DATA ? offset : node->data.size();
}

Status MemoryFileSystem::Allocate(Lane&, OpenFile* file, int mode, uint64_t offset, uint64_t length) {
  WriterLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * node, Find(HandleOf(file).ino));
  if ((mode & FALLOC_FL_PUNCH_HOLE) != 0) {
    const uint64_t start = std::min<uint64_t>(offset, node->data.size());
    const uint64_t end = std::min<uint64_t>(offset + length, node->data.size());
    std::fill(node->data.begin() + static_cast<ptrdiff_t>(start), node->data.begin() + static_cast<ptrdiff_t>(end),
              std::byte{0});
    return Status::Ok();
  }
  if (mode != 0) {
    return Status::Error(EOPNOTSUPP, "fallocate");
  }
  return offset + length > node->data.size() ? Resize(*node, offset + length) : Status::Ok();
}

Status MemoryFileSystem::SetXattr(Lane&, uint64_t ino, std::string_view name, std::span<const std::byte> value,
                                  int flags, bool) {
  WriterLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * node, Find(ino));
  if (name == kLoseServerXattr) {
    lost_.store(true);
    return Status::Ok();
  }
  const bool exists = node->xattrs.contains(std::string(name));
  if (exists && (flags & XATTR_CREATE) != 0) {
    return Status::Error(EEXIST, "attribute");
  }
  if (!exists && (flags & XATTR_REPLACE) != 0) {
    return Status::Error(ENODATA, "attribute");
  }
  node->xattrs[std::string(name)].assign(value.begin(), value.end());
  return Status::Ok();
}

Status MemoryFileSystem::Stall(Lane& lane) {
  while (!lost_.load()) {
    if (lane.interruption().requested()) {
      return Status::Error(EINTR, "as asked");
    }
    pollfd interrupted{.fd = lane.interruption().fd(), .events = POLLIN, .revents = 0};
    poll(&interrupted, 1, 10);
    lane.interruption().Drain();
  }
  return CheckServer();
}

Result<std::vector<std::byte>> MemoryFileSystem::GetXattr(Lane& lane, uint64_t ino, std::string_view name) {
  if (name == kStallXattr) {
    RETURN_IF_ERROR(Stall(lane));
  }
  ReaderLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(const MemoryNode* node, Find(ino));
  const auto found = node->xattrs.find(std::string(name));
  if (found == node->xattrs.end()) {
    return Status::Error(ENODATA, "attribute");
  }
  return found->second;
}

Result<std::vector<std::string>> MemoryFileSystem::ListXattr(Lane&, uint64_t ino) {
  ReaderLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(const MemoryNode* node, Find(ino));
  std::vector<std::string> names;
  for (const auto& [name, value] : node->xattrs) {
    names.push_back(name);
  }
  return names;
}

Status MemoryFileSystem::RemoveXattr(Lane&, uint64_t ino, std::string_view name) {
  WriterLock lock(volume_.mutex);
  ASSIGN_OR_RETURN(MemoryNode * node, Find(ino));
  return node->xattrs.erase(std::string(name)) == 1 ? Status::Ok() : Status::Error(ENODATA, "attribute");
}

}  // namespace termfs::fakes

// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <chrono>

#include "base/log.h"
#include "base/page.h"
#include "mount/convert.h"
#include "mount/errno.h"
#include "mount/front_end.h"
#include "mount/fuse_operations.h"

namespace termfs::mount {
namespace {

uint64_t NanosecondsSinceReceived() {
  return static_cast<uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - FuseServer::received()).count());
}

// O_SYNC and O_DSYNC come with each write, as O_APPEND does, so that RWF_DSYNC and a later fcntl count too.
Status SyncAsAsked(fs::client::FileSystem& file_system, const fuse_file_info* info) {
  if ((info->flags & O_DSYNC) == 0) {  // O_SYNC includes the bit
    return Status::Ok();
  }
  return file_system.Sync(FrontEnd::lane(), FileOf(info), (info->flags & O_SYNC) != O_SYNC);
}

}  // namespace

// What a killed program leaves to be closed must find a thread also when all of them wait.
void FrontEndThread::Begin() {
  wait_.emplace();
  if (const Status prepared = wait_->Prepare(); !prepared.ok()) {
    LOG_DEBUG("a thread waits for the server: {}", prepared.ToString());
    wait_.reset();
  }
}

Result<std::span<const std::byte>> FrontEndThread::Read(const ReadArguments& arguments) {
  fs::client::FileSystem& file_system = front_.file_system();
  fs::client::OpenFile* const file = FileOf(arguments.handle);
  const size_t size = std::min(arguments.size, kMaxIo);
  const bool caches = FuseServer::request().caches;
  if (caches) {
    file_system.BeginCachedRead(file, arguments.offset, size);
    if (const Status known = file_system.CachePages(*lane_, file); !known.ok()) {
      return Status::Error(LoggedErrno(known), "read");
    }
  }
  Result<std::span<const std::byte>> data = file_system.Read(*lane_, file, arguments.offset, size);
  if (!data.ok()) {
    return Status::Error(LoggedErrno(data.status()), "read");
  }
  if (caches) {
    file_system.EndCachedRead(file, arguments.offset, size, *data);
    HasReadForCache(arguments, size, data->size());
  }
  front_.read_latency().Record(NanosecondsSinceReceived());
  return data;
}

void FrontEndThread::HasReadForCache(const ReadArguments& arguments, size_t asked, size_t got) {
  KernelCacheNotifier& cache = front_.cache();
  const auto [least, most] = ReaderSizes::AfterRead(arguments.offset, asked, got);
  if (cache.sizes().MayDiffer(arguments.ino, least, most)) [[unlikely]] {
    FuseServer::Wait wait;
    if (const Status prepared = wait.Prepare(); !prepared.ok()) {
      LOG_DEBUG("a thread waits for the kernel: {}", prepared.ToString());
    }
    cache.AwaitSize(arguments.ino, front_.file_system().number_generation(FileOf(arguments.handle)), least, most);
  }
  if (got < asked) {
    cache.sizes().HasReadShort(arguments.ino, std::chrono::steady_clock::now());
  }
}

void OnWrite(fuse_req_t request, fuse_ino_t ino, const char* data, size_t size, off_t offset, fuse_file_info* info) {
  FrontEnd& front = FrontEnd::Of(request);
  const std::span<const std::byte> bytes = FuseServer::Written(data, size);
  const RequestFacts& facts = FuseServer::request();
  // What was stored through a mapping has its place, also when it is written back by a file that appends.
  const bool append = (info->flags & O_APPEND) != 0 && info->writepage == 0;
  Status status = front.file_system().Write(
      FrontEnd::lane(), FileOf(info), static_cast<uint64_t>(offset), bytes,
      {.clears_privileges = facts.clears_privileges, .append = append, .cached = facts.caches});
  if (status.ok()) {
    status = SyncAsAsked(front.file_system(), info);
  }
  if (facts.caches) {
    front.cache().AfterWriteBack(ino);
  }
  front.cache().sizes().NoteGiven(ino, append ? ReaderSizes::kUnknown : static_cast<uint64_t>(offset) + size);
  if (!status.ok()) {
    return Reply(request, status);
  }
  fuse_reply_write(request, size);
  front.write_latency().Record(NanosecondsSinceReceived());
}

void OnSeek(fuse_req_t request, fuse_ino_t, off_t offset, int whence, fuse_file_info* info) {
  if (offset < 0) {
    return Reply(request, Status::Error(ENXIO, "seek before the start"));
  }
  const Result<uint64_t> found =
      FrontEnd::Of(request).file_system().Seek(FrontEnd::lane(), FileOf(info), static_cast<uint64_t>(offset), whence);
  if (!found.ok()) {
    return Reply(request, found.status());
  }
  fuse_reply_lseek(request, static_cast<off_t>(*found));
}

void OnAllocate(fuse_req_t request, fuse_ino_t ino, int mode, off_t offset, off_t length, fuse_file_info* info) {
  FrontEnd& front = FrontEnd::Of(request);
  Status status = front.file_system().Allocate(FrontEnd::lane(), FileOf(info), mode, static_cast<uint64_t>(offset),
                                               static_cast<uint64_t>(length));
  if (status.ok() && fuse_req_ctx(request)->uid != 0) {
    status = front.ClearPrivileges(ino);  // the kernel does not say for this one; root may keep the bits
  }
  front.cache().sizes().NoteGiven(ino, static_cast<uint64_t>(offset) + static_cast<uint64_t>(length));
  Reply(request, status.ok() ? front.KeepFile(FileOf(info)) : status);
}

constexpr uint64_t kLongCopy = 8U << 20;

// After a copy the kernel drops the pages that it has touched, with what was stored to other bytes of them meanwhile.
// So a copy into parts of pages that may be mapped is refused (EOPNOTSUPP), and the kernel copies by reading and
// writing. A long one goes on while no use of a mapping is seen.
class PartsOfPages {
 public:
  PartsOfPages(fs::client::FileSystem& file_system, const fuse_file_info* info)
      : file_system_(file_system), file_(FileOf(info)) {}
  // How much of the copy is to be made.
  Result<uint64_t> ToCopy(fuse_ino_t target, uint64_t offset, uint64_t length) {
    if (!file_system_.MayBeMapped(file_)) {
      return length;
    }
    ASSIGN_OR_RETURN(const fs::Attributes now, file_system_.GetAttributes(FrontEnd::lane(), target));
    const uint64_t end = offset + length;
    // A part that is behind the end of the file is not shared with any byte.
    const bool whole_first = RoundDownToPage(offset) == offset || RoundDownToPage(offset) >= now.size;
    const bool whole_last = RoundDownToPage(end) == end || end >= now.size;
    touched_ = !whole_first;
    if (length < kLongCopy) {
      touched_ = touched_ || !whole_last;
      return touched_ ? Refused() : Result<uint64_t>(length);
    }
    RETURN_IF_ERROR(Made());
    return whole_last ? length : RoundDownToPage(end) - offset;
  }
  // After the copy: it is made again by the kernel if a mapping was used meanwhile.
  Status Made() const { return touched_ && file_system_.IsMapped(file_) ? Refused() : Status::Ok(); }

 private:
  static Status Refused() { return Status::Error(EOPNOTSUPP, "a copy into a part of a page that may be mapped"); }

  fs::client::FileSystem& file_system_;
  fs::client::OpenFile* const file_;
  bool touched_ = false;  // a page that has other bytes
};

void OnCopy(fuse_req_t request, fuse_ino_t, off_t offset, fuse_file_info* info, fuse_ino_t target, off_t target_offset,
            fuse_file_info* target_info, size_t length, int flags) {
  if (flags != 0 || offset < 0 || target_offset < 0) {
    return Reply(request, Status::Error(EINVAL, "copy of a range"));
  }
  FrontEnd& front = FrontEnd::Of(request);
  PartsOfPages parts(front.file_system(), target_info);
  const Result<uint64_t> to_copy =
      parts.ToCopy(target, static_cast<uint64_t>(target_offset), MostToCopy(FuseServer::request(), length));
  if (!to_copy.ok()) {
    return Reply(request, to_copy.status());
  }
  const Result<uint64_t> copied =
      front.file_system().Copy(FrontEnd::lane(), {.from = FileOf(info),
                                                  .from_offset = static_cast<uint64_t>(offset),
                                                  .to = FileOf(target_info),
                                                  .to_offset = static_cast<uint64_t>(target_offset),
                                                  .length = *to_copy,
                                                  // The kernel does not say for this one; root may keep the bits.
                                                  .clears_privileges = fuse_req_ctx(request)->uid != 0,
                                                  .append = false});  // the kernel knows, also after a fcntl
  front.cache().sizes().NoteGiven(target, static_cast<uint64_t>(target_offset) + *to_copy);
  if (const Status made = copied.ok() ? parts.Made() : copied.status(); !made.ok()) {
    return Reply(request, made);
  }
  if (const Status kept = front.KeepFile(FileOf(target_info)); !kept.ok()) {
    return Reply(request, kept);
  }
  fuse_reply_write(request, *copied);
}

}  // namespace termfs::mount

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
    front_.cache().sizes().HasRead(arguments.ino, std::chrono::steady_clock::now());
  }
  front_.read_latency().Record(NanosecondsSinceReceived());
  return data;
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
  front.cache().sizes().Forget(ino);
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
  Reply(request, status.ok() ? front.KeepFile(FileOf(info)) : status);
}

constexpr uint64_t kLongCopy = 8U << 20;  // of which the server may copy a part first

// The kernel drops the pages that a copy has touched, with what was stored to other bytes of them meanwhile. So of a
// file that may be mapped only whole pages are copied, or what no bytes of the file surround; the kernel copies the
// rest by reading and writing. How many bytes; EOPNOTSUPP: none.
Result<uint64_t> ToCopyByPages(fs::client::FileSystem& file_system, fuse_ino_t target, const fuse_file_info* info,
                               uint64_t offset, uint64_t length) {
  if (!file_system.MayBeMapped(FileOf(info))) {
    return length;
  }
  ASSIGN_OR_RETURN(const fs::Attributes file, file_system.GetAttributes(FrontEnd::lane(), target));
  const uint64_t end = offset + length;
  const bool whole_first = RoundDownToPage(offset) == offset || RoundDownToPage(offset) >= file.size;
  const bool whole_last = RoundDownToPage(end) == end || end >= file.size;
  if (whole_first && (whole_last || length >= kLongCopy)) {
    return whole_last ? length : RoundDownToPage(end) - offset;
  }
  return Status::Error(EOPNOTSUPP, "a copy into a part of a page that may be mapped");
}

void OnCopy(fuse_req_t request, fuse_ino_t, off_t offset, fuse_file_info* info, fuse_ino_t target, off_t target_offset,
            fuse_file_info* target_info, size_t length, int flags) {
  if (flags != 0 || offset < 0 || target_offset < 0) {
    return Reply(request, Status::Error(EINVAL, "copy of a range"));
  }
  FrontEnd& front = FrontEnd::Of(request);
  const Result<uint64_t> pages =
      ToCopyByPages(front.file_system(), target, target_info, static_cast<uint64_t>(target_offset),
                    MostToCopy(FuseServer::request(), length));
  if (!pages.ok()) {
    return Reply(request, pages.status());
  }
  const Result<uint64_t> copied =
      front.file_system().Copy(FrontEnd::lane(), {.from = FileOf(info),
                                                  .from_offset = static_cast<uint64_t>(offset),
                                                  .to = FileOf(target_info),
                                                  .to_offset = static_cast<uint64_t>(target_offset),
                                                  .length = *pages,
                                                  // The kernel does not say for this one; root may keep the bits.
                                                  .clears_privileges = fuse_req_ctx(request)->uid != 0,
                                                  .append = false});  // the kernel knows, also after a fcntl
  if (!copied.ok()) {
    return Reply(request, copied.status());
  }
  if (const Status kept = front.KeepFile(FileOf(target_info)); !kept.ok()) {
    return Reply(request, kept);
  }
  fuse_reply_write(request, *copied);
}

}  // namespace termfs::mount

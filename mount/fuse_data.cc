// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <chrono>

#include "base/log.h"
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

// What a reader on this mount has made the kernel keep between its own look, before it sent the write, and the write.
// Another thread serves meanwhile: the pages may be locked by reads that are still to be received.
Status DropWritten(FrontEnd& front, fuse_ino_t ino, uint64_t offset) {
  FuseServer::Wait wait;
  RETURN_IF_ERROR(wait.Prepare());
  front.cache().InvalidateInode(ino, offset, 0);  // to the end: an append may have gone elsewhere
  return Status::Ok();
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
  if (FuseServer::request().caches) {
    if (const Status known = front_.file_system().CachePages(*lane_, FileOf(arguments.handle)); !known.ok()) {
      return Status::Error(LoggedErrno(known), "read");
    }
  }
  Result<std::span<const std::byte>> data =
      front_.file_system().Read(*lane_, FileOf(arguments.handle), arguments.offset, std::min(arguments.size, kMaxIo));
  if (!data.ok()) {
    return Status::Error(LoggedErrno(data.status()), "read");
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
  if (!facts.caches && front.file_system().AnyKeepsPages(FileOf(info))) {
    if (const Status dropped = DropWritten(front, ino, static_cast<uint64_t>(offset)); !dropped.ok()) {
      LOG_WARNING("pages of inode {} may be old: {}", ino, dropped.ToDebugString());
    }
  }
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

void OnCopy(fuse_req_t request, fuse_ino_t, off_t offset, fuse_file_info* info, fuse_ino_t, off_t target_offset,
            fuse_file_info* target_info, size_t length, int flags) {
  if (flags != 0 || offset < 0 || target_offset < 0) {
    return Reply(request, Status::Error(EINVAL, "copy of a range"));
  }
  FrontEnd& front = FrontEnd::Of(request);
  const Result<uint64_t> copied =
      front.file_system().Copy(FrontEnd::lane(), {.from = FileOf(info),
                                                  .from_offset = static_cast<uint64_t>(offset),
                                                  .to = FileOf(target_info),
                                                  .to_offset = static_cast<uint64_t>(target_offset),
                                                  .length = MostToCopy(FuseServer::request(), length),
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

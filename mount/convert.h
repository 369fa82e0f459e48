// SPDX-License-Identifier: Apache-2.0
//
// Between the file system's types and those of libfuse.
#pragma once

#include <fuse_lowlevel.h>
#include <sys/stat.h>

#include "fs/client/file_system.h"

namespace termfs::mount {

struct stat ToStat(const fs::Attributes& attributes);
// For a reply to be sent at once, on the thread whose last operation returned the attributes.
fuse_entry_param ToEntry(const fs::Attributes& attributes, const fs::client::Keep& keep);
// A file that the kernel opens by itself: a fifo, a socket, a device.
bool IsSpecial(uint32_t mode);
// Nanoseconds since the epoch, saturating at the ends of the type.
int64_t ToNanoseconds(const timespec& time);
timespec ToTimespec(int64_t nanoseconds);
fs::client::Caller CallerOf(fuse_req_t request);

// The handle as fuse_file_info carries it: the pointer that Open gave, in the kernel's 64 bits.
inline fs::client::OpenFile* FileOf(uint64_t handle) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<fs::client::OpenFile*>(handle);
}
inline fs::client::OpenFile* FileOf(const fuse_file_info* info) { return info == nullptr ? nullptr : FileOf(info->fh); }

// Answers with an entry, or with the error; where the kernel may remember that there is no such name, with that.
void ReplyEntry(fuse_req_t request, const Result<fs::Attributes>& made);

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// A copy is requests of bounded length, each carried out once, one after the other.
#include <fcntl.h>

#include "fs/client/page_change.h"
#include "fs/proto/codec.h"

namespace termfs::fs::client {

namespace {

// The caller gets an answer, and a signal its turn, after so many; the server copies 8 MiB in each, or skips a GiB.
constexpr int kMostRequests = 32;

}  // namespace

Result<uint64_t> VolumeClient::Copy(Lane& lane, const FileCopy& copy) {
  RETURN_IF_ERROR(CheckUsable(copy.from));
  RETURN_IF_ERROR(CheckUsable(copy.to));
  if (copy.append.value_or((copy.to->flags & O_APPEND) != 0)) {
    return Status::Error(EBADF, "a copy to a file that appends");
  }
  PageChange change(*this, lane, copy.to);
  RETURN_IF_ERROR(change.Begin(copy.to_offset, copy.length));
  uint64_t length = copy.length;
  uint64_t done = 0;
  for (int requests = 0; requests < kMostRequests && done < length; ++requests) {
    const Result<CopiedPart> part = CopyPart(lane, copy, done, length - done);
    if (!part.ok() && done == 0) {
      return part.status();
    }
    if (!part.ok() || part->bytes == 0) {
      break;
    }
    // Where the file ended at first: within one file the copy itself may move the end.
    length = std::min(length, done + part->available);
    done += part->bytes;
  }
  copies_.Add();
  copied_bytes_.Add(done);
  if (done > 0 && (copy.to->flags & O_DSYNC) != 0) {  // O_SYNC includes the bit
    RETURN_IF_ERROR(Sync(lane, copy.to, (copy.to->flags & O_SYNC) != O_SYNC));
  }
  return done;
}

Result<VolumeClient::CopiedPart> VolumeClient::CopyPart(Lane& lane, const FileCopy& copy, uint64_t done,
                                                        uint64_t length) {
  wire::CopyT body;
  body.ino = copy.from->ino;
  body.offset = copy.from_offset + done;
  body.target = copy.to->ino;
  body.target_offset = copy.to_offset + done;
  body.length = length;
  body.clears_privileges = copy.clears_privileges;
  body.dropped = copy.to->cache->Drop();
  body.keeps_atime = !CountsAsAccess(*copy.from);
  const auto reply = Call(lane, kFsCopy, Encode<wire::Copy>(body), {}, {}, kOnce);
  kept_.NoteOwnChange();
  if (!reply.ok()) {
    if (GivenUp(reply.status())) {  // it may be carried out
      copy.to->cache->writes().Wrote(Of(lane).generation());
    }
    AfterFailure(lane, reply.status(), copy.to->cache);
    return reply.status();
  }
  copy.to->cache->writes().Wrote(Of(lane).generation());
  ASSIGN_OR_RETURN(const auto copied, Decode<wire::Copied>(reply->body));
  if (copied.bytes > copied.available || copied.available > length) {
    return Status::Error(EBADMSG, "more was copied than there was to copy");
  }
  return CopiedPart{.bytes = copied.bytes, .available = copied.available};
}

}  // namespace termfs::fs::client

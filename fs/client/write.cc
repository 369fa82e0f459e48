// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "fs/client/page_change.h"
#include "fs/client/volume_client.h"
#include "fs/proto/codec.h"

namespace termfs::fs::client {

using std::chrono::steady_clock;

namespace {

constexpr std::chrono::seconds kWriteBackPatience{60};  // for a change to read what it is about to replace

// Takes over the map that a write's reply brings.
Status InstallFrom(std::span<const std::byte> reply, uint64_t region_pages, InodeCache& cache, uint64_t generation) {
  ASSIGN_OR_RETURN(const auto decoded, DecodePrefix<WriteReply>(reply));
  ASSIGN_OR_RETURN(const Map map, DecodeMap(decoded.second, region_pages));
  cache.Install(map, generation);
  return Status::Ok();
}

}  // namespace

Status VolumeClient::Write(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data,
                           WriteFlags how) {
  const auto begin = steady_clock::now();
  const bool append = how.append.value_or((file->flags & O_APPEND) != 0);
  if (!append && (offset > kMaxFileBytes || data.size() > kMaxFileBytes - offset)) {
    return Status::Error(EFBIG, "beyond the largest file");
  }
  const uint32_t flags =
      (append ? uint32_t{kWriteAppend} : 0) | (how.clears_privileges ? uint32_t{kWriteClearsPrivileges} : 0);
  RETURN_IF_ERROR(CheckUsable(file));
  const VolumeLane::Hold hold(Of(lane));  // `data` may lie in its buffer
  if (how.cached) {
    RETURN_IF_ERROR(CachePages(lane, file));
    const Status stored = WriteStored(lane, file, offset, data, flags);
    kept_.NoteOwnChange();
    RETURN_IF_ERROR(stored);
  } else {
    PageChange change(*this, lane, file);
    RETURN_IF_ERROR(change.BeginWrite(offset, data, append));
    const bool posted = PostFirst(lane, file, offset, data, how);
    for (size_t done = 0; done < data.size() && !posted;) {
      const size_t length = std::min(data.size() - done, size_t{options_.max_io_bytes});
      RETURN_IF_ERROR(WriteChunk(lane, file, offset + done, data.subspan(done, length), flags));
      done += length;
    }
  }
  writes_.Add();
  write_bytes_.Add(data.size());
  write_time_.Record(static_cast<uint64_t>(Nanoseconds(steady_clock::now() - begin).count()));
  return Status::Ok();
}

Status VolumeClient::WriteStored(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data,
                                 uint32_t flags) {
  StoreMerge::WriteBack back;
  ASSIGN_OR_RETURN(const auto pieces,
                   back.Begin(file->cache->stores(), offset, data, steady_clock::now() + kWriteBackPatience));
  std::vector<std::byte> aside;
  if (pieces.size() > 1) {  // each is moved to where the server reads it
    aside.assign(data.begin(), data.end());
  }
  for (const StoreMerge::Piece& piece : pieces) {
    const auto bytes = pieces.size() > 1
                           ? std::span<const std::byte>(aside).subspan(piece.offset - offset, piece.bytes.size())
                           : piece.bytes;
    RETURN_IF_ERROR(WriteChunk(lane, file, piece.offset, bytes, flags | kWriteBack));
  }
  return Status::Ok();
}

bool VolumeClient::PostFirst(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data,
                             const WriteFlags& how) {
  const uint64_t generation = Of(lane).generation();
  if (offset != 0 || data.empty() || data.size() > kMaxFirstWrite || how.append.value_or(false) || how.cached ||
      !MayPostFirst(file->flags) || !first_writes_.MayPost(file->ino, generation)) {
    return false;
  }
  const auto place = Of(lane).TakePostPlace(generation);
  if (!place.has_value()) {
    return false;
  }
  const uint64_t ino = file->ino;
  const uint64_t sequence = place->mark.sequence;
  if (!first_writes_.Take(ino, generation, place->mark, data, file->cache)) {
    Of(lane).ReturnPostPlace(*place);
    return false;
  }
  const WriteBody body{
      .ino = ino, .offset = 0, .version = 0, .length = static_cast<uint32_t>(data.size()), .flags = kWriteFirst};
  file->cache->writes().Wrote(generation);
  const Status posted =
      link_->PostOnce(Of(lane), *place, {.opcode = kFsWrite, .body = AsBytes(body), .in = data, .out = {}},
                      [this, ino, sequence](const Result<std::span<const std::byte>>& reply) {
                        first_writes_.Answered(ino, sequence, reply.status());
                      });
  if (!posted.ok() && first_writes_.Withdraw(ino, sequence)) {
    return false;
  }
  writes_posted_.Add();
  return true;
}

// Whether it was carried out before is found by its mark.
Status VolumeClient::ResendFirst(tlib::client::Channel& channel) {
  for (const FirstWrites::Unanswered& write : first_writes_.BeginResending()) {
    const Status sent = ResendOne(channel, write);
    first_writes_.Resent(write.ino, write.mark.sequence, sent);
    RETURN_IF_ERROR(sent.code() == ENOTCONN ? sent : Status::Ok());
  }
  return Status::Ok();
}

Status VolumeClient::ResendOne(tlib::client::Channel& channel, const FirstWrites::Unanswered& write) {
  wire::ReopenT open;  // it may be closed by now
  open.ino = write.ino;
  open.count = 1;
  const auto opening = Encode<wire::Reopen>(open);
  const Status opened = channel.Call({.opcode = kFsReopen, .body = opening, .in = {}, .out = {}}).status();
  if (opened.code() == ENOENT || opened.code() == ESTALE) {
    return Status::Ok();  // so is it removed
  }
  if (!opened.ok()) {
    return GivenUp(opened) ? Status::Error(ENOTCONN, opened.ToString()) : opened;
  }
  const std::span<std::byte> in = channel.buffer().first(write.bytes.size());
  std::copy(write.bytes.begin(), write.bytes.end(), in.begin());
  const WriteBody body{
      .ino = write.ino, .offset = 0, .version = 0, .length = static_cast<uint32_t>(in.size()), .flags = kWriteFirst};
  tlib::RequestMark mark = write.mark;
  mark.sent_before = true;
  const Status written =
      channel.Call({.opcode = kFsWrite, .body = AsBytes(body), .in = in, .out = {}, .mark = mark}).status();
  if (GivenUp(written)) {
    return Status::Error(ENOTCONN, written.ToString());
  }
  const auto closing = EncodeRelease({.ino = write.ino});
  const Status closed = channel.Call({.opcode = kFsRelease, .body = closing, .in = {}, .out = {}}).status();
  return written.ok() && closed.code() == ENOTCONN ? closed : written;
}

Status VolumeClient::WriteChunk(Lane& lane, OpenFile* file, uint64_t offset, std::span<const std::byte> data,
                                uint32_t flags) {
  const std::span<std::byte> buffer = lane.buffer();
  std::span<std::byte> in;
  const auto at = reinterpret_cast<uintptr_t>(data.data()) - reinterpret_cast<uintptr_t>(buffer.data());
  if (at < buffer.size() && data.size() <= buffer.size() - at) {
    in = buffer.subspan(at, data.size());
  } else {
    std::memcpy(buffer.data(), data.data(), data.size());
    in = buffer.first(data.size());
  }
  const uint32_t forgoes = first_writes_.Forgo(file->ino) == FirstWrite::kForgone ? uint32_t{kWriteForgoesFirst} : 0;
  const WriteBody body{.ino = file->ino,
                       .offset = offset,
                       .version = file->cache->version(),
                       .length = static_cast<uint32_t>(in.size()),
                       .flags = flags | forgoes};
  const InodeCache::Change change(*file->cache);
  const auto reply = link_->Call(Of(lane), {.opcode = kFsWrite, .body = AsBytes(body), .in = in, .out = {}},
                                 (flags & kWriteAppend) != 0);
  if (reply.ok()) {
    file->cache->writes().Wrote(Of(lane).generation());
    return InstallFrom(reply->body, link_->max_pages(), *file->cache, Of(lane).generation());
  }
  RETURN_IF_ERROR(CheckUsable(file));  // it may have been lost by now, and is not open there
  if (!GivenUp(reply.status())) {
    AfterFailure(lane, reply.status(), file->cache);
    return reply.status();
  }
  file->cache->writes().Wrote(Of(lane).generation());  // it may be
  // The map of a late answer counts: it is newer than those of reads that the write has overtaken.
  file->cache->BeginDoubt();
  Of(lane).AfterGivenUp([cache = file->cache, pages = link_->max_pages(),
                         generation = Of(lane).generation()](const Result<std::span<const std::byte>>& late) {
    cache->EndDoubt();
    if (late.ok()) {
      if (const Status installed = InstallFrom(*late, pages, *cache, generation); !installed.ok()) {
        LOG_WARNING("the late answer to a write: {}", installed.ToString());
      }
    }
  });
  return reply.status();
}

}  // namespace termfs::fs::client

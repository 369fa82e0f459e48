// SPDX-License-Identifier: Apache-2.0
//
// A read: by the map, one-sided; or, when there is none or it does not last, by the server, which brings a map along.
#include <array>
#include <chrono>
#include <cstring>

#include "base/clock.h"
#include "fs/client/volume_client.h"

namespace termfs::fs::client {

using std::chrono::steady_clock;
using tlib::client::ReadRequest;

namespace {

constexpr uint64_t kTimedReads = 16;  // one of so many of a lane is timed: the clock is half a percent of a hit

}  // namespace

Result<std::span<const std::byte>> VolumeClient::Read(Lane& lane, OpenFile* file, uint64_t offset, size_t size) {
  const bool timed = Of(lane).CountRead() % kTimedReads == 0;
  const auto begin = timed ? steady_clock::now() : steady_clock::time_point{};
  size = std::min(size, size_t{options_.max_io_bytes});
  if (size == 0 || offset > kMaxFileBytes) {
    return std::span<const std::byte>{};
  }
  constexpr int kOneSidedAttempts = 2;  // then others change the file so often that the server had better read it
  Result<std::span<const std::byte>> done = std::span<const std::byte>{};
  bool one_sided = false;
  for (int attempt = 0; attempt < kOneSidedAttempts && !one_sided; ++attempt) {
    one_sided = TryOneSided(lane, file, offset, size, done);
  }
  if (!one_sided) {
    done = ReadByServer(lane, file, offset, size);
  }
  if (done.ok()) {
    reads_.Add();
    read_bytes_.Add(done->size());
    if (timed) {
      read_time_.Record(static_cast<uint64_t>(Nanoseconds(steady_clock::now() - begin).count()));
    }
  }
  return done;
}

bool VolumeClient::TryOneSided(Lane& lane, OpenFile* file, uint64_t offset, size_t size,
                               Result<std::span<const std::byte>>& done) {
  Plan plan;
  if (!file->cache->Look(offset, size, plan)) {
    return false;
  }
  std::byte* const buffer = lane.buffer().data();
  std::array<ReadRequest, Plan::kSegments> reads;
  size_t count = 0;
  for (size_t i = 0; i < plan.count; ++i) {
    const Segment& s = plan.segments[i];
    const uint64_t begin = std::max(offset, s.file_page << kPageBits);
    const uint64_t end = std::min(offset + plan.length, s.end() << kPageBits);
    std::byte* const to = buffer + (begin - offset);
    if (s.is_hole()) {
      std::memset(to, 0, end - begin);
    } else {
      reads[count++] = {.offset = {(s.region_page << kPageBits) + begin - (s.file_page << kPageBits)},
                        .length = static_cast<uint32_t>(end - begin),
                        .destination = to};
    }
  }
  if (count > 0) {
    const Status read = Of(lane).Read(std::span(reads).first(count));
    if (!read.ok()) {
      done = read;
      return file->cache->StillValid(plan.epoch) && read.code() != ENOTCONN;  // by the server: it finds a new session
    }
  }
  done = std::span<const std::byte>(buffer, plan.length);
  return file->cache->StillValid(plan.epoch);
}

Result<std::span<const std::byte>> VolumeClient::ReadByServer(Lane& lane, OpenFile* file, uint64_t offset,
                                                              size_t size) {
  RETURN_IF_ERROR(CheckUsable(file));
  server_reads_.Add();
  const ReadBody body{.ino = file->ino, .offset = offset, .length = static_cast<uint32_t>(size)};
  const std::span<std::byte> out = lane.buffer().first(size);
  ASSIGN_OR_RETURN(const CallReply reply,
                   link_->Call(Of(lane), {.opcode = kFsRead, .body = AsBytes(body), .in = {}, .out = out}, false));
  ASSIGN_OR_RETURN(const auto decoded, DecodePrefix<ReadReply>(reply.body));
  const auto& [head, rest] = decoded;
  if (head.length > size) {
    return Status::Error(EBADMSG, "more bytes than asked for");
  }
  ASSIGN_OR_RETURN(const Map map, DecodeMap(rest, link_->max_pages()));
  file->cache->Install(map, Of(lane).generation());
  return std::span<const std::byte>(lane.buffer().first(head.length));  // it may have become another
}

}  // namespace termfs::fs::client

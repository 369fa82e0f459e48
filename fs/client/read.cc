// SPDX-License-Identifier: Apache-2.0
//
// A read: by the map, one-sided; or, when there is none or it does not last, by the server, which brings a map along.
// Then the same for several reads in one lane, which do not wait for what is absent.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "fs/client/volume_client.h"

namespace termfs::fs::client {

using std::chrono::steady_clock;
using tlib::client::ReadRequest;

namespace {

constexpr uint64_t kTimedReads = 16;  // one of so many of a lane is timed: the clock is half a percent of a hit
constexpr int kOneSidedAttempts = 2;  // then others change the file so often that the server had better read it

using Requests = std::array<ReadRequest, Plan::kSegments>;

// What to READ for a plan, into `to`, where holes become zeros here. How many.
[[gnu::always_inline]] inline size_t RequestsOf(const Plan& plan, uint64_t offset, std::byte* to, Requests& reads) {
  size_t count = 0;
  for (size_t i = 0; i < plan.count; ++i) {
    const Segment& s = plan.segments[i];
    const uint64_t begin = std::max(offset, s.file_page << kPageBits);
    const uint64_t end = std::min(offset + plan.length, s.end() << kPageBits);
    std::byte* const at = to + (begin - offset);
    if (s.is_hole()) {
      std::memset(at, 0, end - begin);
    } else {
      reads[count++] = {.offset = {(s.region_page << kPageBits) + begin - (s.file_page << kPageBits)},
                        .length = static_cast<uint32_t>(end - begin),
                        .destination = at};
    }
  }
  return count;
}

}  // namespace

Result<std::span<const std::byte>> VolumeClient::Read(Lane& lane, OpenFile* file, uint64_t offset, size_t size) {
  const bool timed = Of(lane).CountRead() % kTimedReads == 0;
  const auto begin = timed ? steady_clock::now() : steady_clock::time_point{};
  NoteUse(*file);
  size = std::min(size, size_t{options_.max_io_bytes});
  if (size == 0 || offset > kMaxFileBytes) {
    return std::span<const std::byte>{};
  }
  Result<std::span<const std::byte>> done = std::span<const std::byte>{};
  bool one_sided = false;
  for (int attempt = 0; attempt < kOneSidedAttempts && !one_sided; ++attempt) {
    one_sided = TryOneSided(lane, file, offset, size, done);
  }
  if (!one_sided) {
    done = ReadByServer(lane, file, offset, size);
  }
  NoteRead(done, begin);
  return done;
}

void VolumeClient::NoteRead(const Result<Bytes>& done, steady_clock::time_point begin) {
  if (!done.ok()) {
    return;
  }
  reads_.Add();
  read_bytes_.Add(done->size());
  if (begin != steady_clock::time_point{}) {
    read_time_.Record(static_cast<uint64_t>(Nanoseconds(steady_clock::now() - begin).count()));
  }
}

bool VolumeClient::TryOneSided(Lane& lane, OpenFile* file, uint64_t offset, size_t size,
                               Result<std::span<const std::byte>>& done) {
  Plan plan;
  if (!file->cache->Look(offset, size, plan)) {
    return false;
  }
  std::byte* const buffer = lane.buffer().data();
  Requests reads;
  const size_t count = RequestsOf(plan, offset, buffer, reads);
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

Result<std::span<const std::byte>> VolumeClient::ReadByServer(Lane& lane, OpenFile* file, uint64_t offset, size_t size,
                                                              size_t at, bool counts_as_access) {
  RETURN_IF_ERROR(CheckUsable(file));
  server_reads_.Add();
  const ReadBody body{.ino = file->ino,
                      .offset = offset,
                      .length = static_cast<uint32_t>(size),
                      .flags = counts_as_access && CountsAsAccess(*file) ? 0 : uint32_t{kReadKeepsAccessTime}};
  const std::span<std::byte> out = lane.buffer().subspan(at, size);
  ASSIGN_OR_RETURN(const CallReply reply,
                   link_->Call(Of(lane), {.opcode = kFsRead, .body = AsBytes(body), .in = {}, .out = out}, false));
  ASSIGN_OR_RETURN(const auto decoded, DecodePrefix<ReadReply>(reply.body));
  const auto& [head, rest] = decoded;
  if (head.length > size) {
    return Status::Error(EBADMSG, "more bytes than asked for");
  }
  ASSIGN_OR_RETURN(const Map map, DecodeMap(rest, link_->max_pages()));
  file->cache->Install(map, Of(lane).generation());
  return std::span<const std::byte>(lane.buffer().subspan(at, head.length));  // it may have become another
}

Result<std::span<const std::byte>> VolumeClient::ReadOwn(Lane& lane, OpenFile* file, uint64_t offset, size_t size) {
  Result<std::span<const std::byte>> done = std::span<const std::byte>{};
  return TryOneSided(lane, file, offset, size, done) ? done : ReadByServer(lane, file, offset, size, 0, false);
}

Result<std::optional<std::span<const std::byte>>> VolumeClient::BeginRead(Lane& lane, const FileRead& read) {
  VolumeLane& own = Of(lane);
  ReadUnderWay begun{.what = read};
  NoteUse(*read.file);
  begun.what.size = std::min(read.size, size_t{options_.max_io_bytes});
  if (own.CountRead() % kTimedReads == 0) {
    begun.begin = steady_clock::now();
  }
  if (begun.what.size == 0 || read.offset > kMaxFileBytes) {
    return std::optional(Bytes{});
  }
  const size_t room = own.places().size();
  if (begun.what.size > room || read.place > room - begun.what.size) {
    return Status::Error(EINVAL, "a read under way outside of the lane's places");
  }
  auto done = Begin(own, begun);
  if (done.ok() && !done->has_value()) {
    own.reads_under_way().reads.push_back(begun);
  } else {
    NoteRead(done.ok() ? Result<Bytes>(**done) : done.status(), begun.begin);
  }
  return done;
}

Result<std::optional<std::span<const std::byte>>> VolumeClient::Begin(VolumeLane& lane, ReadUnderWay& read) {
  const auto& [file, offset, size, place, token] = read.what;
  std::vector<std::byte*>& pieces = lane.reads_under_way().pieces;
  for (; read.attempts < kOneSidedAttempts; ++read.attempts) {
    Plan plan;
    if (!file->cache->Look(offset, size, plan)) {
      break;
    }
    std::byte* const to = lane.places().data() + place;
    Requests reads;
    const size_t count = RequestsOf(plan, offset, to, reads);
    if (lane.by_map() && lane.ReadRoom() < count) {
      break;
    }
    pieces.clear();
    const Status begun = count > 0 ? lane.BeginRead(std::span(reads).first(count), pieces) : Status::Ok();
    if (!begun.ok()) {
      if (lane.by_map() && !(begun.code() == ENOTCONN && link_->RejoinAtOnce(lane, begun))) {
        break;  // who reads it instead meets the error, too
      }
      if (!lane.by_map() && file->cache->StillValid(plan.epoch) && begun.code() != ENOTCONN) {
        return begun;
      }
      continue;
    }
    if (!pieces.empty()) {
      read.epoch = plan.epoch;
      read.length = plan.length;
      read.pieces = pieces.size();
      read.voids = lane.voids();
      if (read.generation != lane.generation()) {
        read.generation = lane.generation();
        read.since = steady_clock::now();
      }
      return std::optional<Bytes>();
    }
    if (file->cache->StillValid(plan.epoch)) {
      return std::optional(Bytes(to, plan.length));
    }
  }
  if (lane.by_map()) {
    return Status::Error(EAGAIN, "only the server can read it now");
  }
  const auto at = static_cast<size_t>(lane.places().data() - lane.buffer().data());
  ASSIGN_OR_RETURN(const Bytes bytes, ReadByServer(lane, file, offset, size, at + place));
  return std::optional(bytes);
}

Status VolumeClient::AwaitReads(Lane& lane, std::vector<ReadDone>& done) { return EndReads(lane, done, true); }

Status VolumeClient::PollReads(Lane& lane, std::vector<ReadDone>& done) { return EndReads(lane, done, false); }

// What has ended lies in the lane's buffer, and beginning a read can replace that. So nothing is begun once something
// has ended.
Status VolumeClient::EndReads(Lane& lane, std::vector<ReadDone>& done, bool wait) {
  VolumeLane& own = Of(lane);
  const std::vector<ReadUnderWay>& reads = own.reads_under_way().reads;
  const size_t before = done.size();
  do {
    RETURN_IF_ERROR(BeginVoid(own, done));
    if (done.size() == before && !reads.empty()) {
      RETURN_IF_ERROR(TakePieces(own, done, wait));
    }
  } while (wait && done.size() == before && !reads.empty());
  return Status::Ok();
}

Status VolumeClient::BeginVoid(VolumeLane& lane, std::vector<ReadDone>& done) {
  std::vector<ReadUnderWay>& reads = lane.reads_under_way().reads;
  const size_t before = done.size();
  uint64_t voids = lane.voids();
  EndLate(lane, voids, done);
  for (size_t i = 0; i < reads.size() && done.size() == before;) {
    if (reads[i].voids == voids) {
      ++i;
      continue;
    }
    reads[i].voids = ReadUnderWay::kVoid;
    const auto begun = Begin(lane, reads[i]);
    voids = lane.voids();
    if (begun.status().code() == EINTR) {
      return begun.status();
    }
    if (begun.ok() && !begun->has_value()) {
      ++i;
    } else {
      EndRead(lane, i, begun.ok() ? Result<Bytes>(**begun) : begun.status(), done);
    }
  }
  return Status::Ok();
}

// To begin another can take as long as a call may, where nothing is answered.
void VolumeClient::EndLate(VolumeLane& lane, uint64_t voids, std::vector<ReadDone>& done) {
  const std::vector<ReadUnderWay>& reads = lane.reads_under_way().reads;
  for (size_t i = reads.size(); i-- > 0;) {
    const ReadUnderWay& read = reads[i];
    if (read.voids != voids && read.generation == lane.generation() &&
        read.since + options_.session.call_timeout <= steady_clock::now()) {
      EndRead(lane, i, Status::Error(ETIMEDOUT, "the server does not answer in time"), done);
    }
  }
}

Status VolumeClient::TakePieces(VolumeLane& lane, std::vector<ReadDone>& done, bool wait) {
  auto& [reads, pieces] = lane.reads_under_way();
  const std::byte* const places = lane.places().data();  // others after a failure
  pieces.clear();
  Status taken = wait ? lane.AwaitReads(pieces) : lane.PollReads(pieces);
  if (taken.code() == EINTR) {
    return taken;
  }
  if (!taken.ok()) {
    AfterFailedReads(lane, taken, places, done);
    return Status::Ok();
  }
  for (const std::byte* const piece : pieces) {
    const auto read = lane.reads_under_way().Of(static_cast<size_t>(piece - places));
    TERMFS_CHECK(read != reads.end());
    if (--read->pieces > 0) {
      continue;
    }
    if (read->what.file->cache->StillValid(read->epoch)) {
      EndRead(lane, static_cast<size_t>(read - reads.begin()), Bytes(places + read->what.place, read->length), done);
    } else {
      read->voids = ReadUnderWay::kVoid;
      read->generation = ReadUnderWay::kNoGeneration;
      read->attempts++;
    }
  }
  return Status::Ok();
}

void VolumeClient::AfterFailedReads(VolumeLane& lane, const Status& why, const std::byte* places,
                                    std::vector<ReadDone>& done) {
  auto& [reads, late] = lane.reads_under_way();
  for (ReadUnderWay& read : reads) {
    read.voids = ReadUnderWay::kVoid;
    if (why.code() == ENOTCONN) {
      read.generation = ReadUnderWay::kNoGeneration;
    } else if (late.empty()) {
      read.attempts = kOneSidedAttempts;  // nobody knows which of them it was: each is read by itself
    }
  }
  for (const std::byte* const piece : late) {
    const auto read = lane.reads_under_way().Of(static_cast<size_t>(piece - places));
    if (read != reads.end()) {  // ended already: it had several
      EndRead(lane, static_cast<size_t>(read - reads.begin()), why, done);
    }
  }
}

void VolumeClient::EndRead(VolumeLane& lane, size_t index, Result<Bytes> result, std::vector<ReadDone>& done) {
  std::vector<ReadUnderWay>& reads = lane.reads_under_way().reads;
  NoteRead(result, reads[index].begin);
  done.push_back({.token = reads[index].what.token, .data = std::move(result)});
  reads[index] = reads.back();
  reads.pop_back();
}

bool VolumeClient::ArmReads(Lane& lane, tlib::client::ReadsFds& fds) {
  VolumeLane& own = Of(lane);
  const std::vector<ReadUnderWay>& reads = own.reads_under_way().reads;
  fds.fill(-1);
  const uint64_t voids = own.voids();
  const bool begun = std::all_of(reads.begin(), reads.end(), [&](const auto& read) { return read.voids == voids; });
  return reads.empty() || (begun && own.ArmReads(fds));
}

void VolumeClient::DisarmReads(Lane& lane) { Of(lane).DisarmReads(); }

void VolumeClient::DropReads(Lane& lane) {
  Of(lane).DropReads();
  Of(lane).reads_under_way().reads.clear();
}

}  // namespace termfs::fs::client

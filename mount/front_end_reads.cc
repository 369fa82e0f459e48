// SPDX-License-Identifier: Apache-2.0
#include "mount/front_end_reads.h"

#include <utility>

#include "base/log.h"
#include "mount/convert.h"
#include "mount/errno.h"

namespace termfs::mount {
namespace {

using std::chrono::steady_clock;
using Bytes = std::span<const std::byte>;

Status ForApplication(const Status& status) {
  return status.code() == EAGAIN ? status : Status::Error(LoggedErrno(status), "read");
}

}  // namespace

Result<std::unique_ptr<FuseReads>> FrontEndReads::Create(fs::client::FileSystem& file_system,
                                                         KernelCacheNotifier& cache, Histogram& latency,
                                                         Counter& carried) {
  ASSIGN_OR_RETURN(auto lane, file_system.OpenLaneByMap(kMost * kLargest));
  return std::unique_ptr<FuseReads>(new FrontEndReads(file_system, cache, latency, carried, std::move(lane)));
}

Result<std::optional<Bytes>> FrontEndReads::Begin(const Request& request, size_t place) {
  fs::client::OpenFile* const file = FileOf(request.what.handle);
  if (request.caches && !file_system_.MayCachePages(file)) {
    return Status::Error(EAGAIN, "the server is to know first");
  }
  if (request.caches) {
    file_system_.BeginCachedRead(file, request.what.offset, request.what.size);
  }
  const auto begun = file_system_.BeginRead(*lane_, {.file = file,
                                                     .offset = request.what.offset,
                                                     .size = request.what.size,
                                                     .place = place * kLargest,
                                                     .token = place});
  if (!begun.ok()) {
    return ForApplication(begun.status());
  }
  requests_[place] = request;
  if (begun->has_value()) {
    RETURN_IF_ERROR(NoteRead(place, **begun));
  }
  return *begun;
}

Status FrontEndReads::NoteRead(size_t place, Bytes bytes) {
  const Request& request = requests_[place];
  const bool is_short = request.caches && bytes.size() < request.what.size;
  const auto [least, most] = ReaderSizes::AfterRead(request.what.offset, request.what.size, bytes.size());
  if (request.caches && cache_.sizes().MayDiffer(request.what.ino, least, most)) [[unlikely]] {
    return Status::Error(EAGAIN, "the kernel is to know how long the file is");
  }
  if (request.caches) {
    file_system_.EndCachedRead(FileOf(request.what.handle), request.what.offset, request.what.size, bytes);
  }
  if (is_short) {
    cache_.sizes().HasReadShort(request.what.ino, steady_clock::now());
  }
  carried_.Add();
  latency_.Record(static_cast<uint64_t>(std::chrono::nanoseconds(steady_clock::now() - request.received).count()));
  return Status::Ok();
}

void FrontEndReads::Poll(std::vector<Done>& done) {
  ended_.clear();
  const Status polled = file_system_.PollReads(*lane_, ended_);
  if (!polled.ok() && polled.code() != EINTR) {
    LOG_WARNING("reads under way: {}", polled.ToDebugString());
  }
  for (const fs::client::ReadDone& read : ended_) {
    const auto place = static_cast<size_t>(read.token);
    const Status noted = read.data.ok() ? NoteRead(place, *read.data) : ForApplication(read.data.status());
    done.push_back({.place = place, .data = noted.ok() ? read.data : Result<Bytes>(noted)});
  }
}

}  // namespace termfs::mount

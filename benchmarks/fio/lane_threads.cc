// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/fio/lane_threads.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>

#include "base/check.h"

namespace termfs::benchmarks::fio {

using fs::client::FileSystem;
using fs::client::Lane;

namespace {

Status ReadPiece(FileSystem& files, Lane& lane, FioRequest& request, size_t length) {
  ASSIGN_OR_RETURN(const auto got, files.Read(lane, request.file->open, request.offset + request.done, length));
  std::memcpy(static_cast<std::byte*>(request.buffer) + request.done, got.data(), got.size());
  request.done += got.size();
  return Status::Ok();
}

Status WritePiece(FileSystem& files, Lane& lane, FioRequest& request, size_t length) {
  const std::span data(static_cast<const std::byte*>(request.buffer) + request.done, length);
  RETURN_IF_ERROR(files.Write(lane, request.file->open, request.offset + request.done, data, {}));
  request.done += length;
  return Status::Ok();
}

Status TryToCarryOut(FileSystem& files, Lane& lane, FioRequest& request) {
  if (request.kind == kFioSync || request.kind == kFioDataSync) {
    return files.Sync(lane, request.file->open, request.kind == kFioDataSync);
  }
  const auto piece = request.kind == kFioRead ? ReadPiece : WritePiece;
  while (request.done < request.length) {
    const size_t before = request.done;
    const size_t length = std::min(kLargest, request.length - before);
    RETURN_IF_ERROR(piece(files, lane, request, length));
    if (request.done - before < length) {
      break;  // the end of the file
    }
  }
  return Status::Ok();
}

}  // namespace

void CarryOut(FileSystem& files, Lane& lane, FioRequest& request) {
  request.done = 0;
  request.error = TryToCarryOut(files, lane, request).code();
}

Result<std::unique_ptr<LaneThreads>> LaneThreads::Create(FileSystem& files) {
  UniqueFd ended(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!ended.valid()) {
    return Status::Errno(errno, "eventfd");
  }
  return std::unique_ptr<LaneThreads>(new LaneThreads(files, std::move(ended)));
}

LaneThreads::~LaneThreads() {
  const MutexLock lock(mutex_);
  closed_ = true;
  changed_.NotifyAll();
}

Status LaneThreads::Begin(FioRequest& request) {
  if (under_way_ == threads_.size()) {
    ASSIGN_OR_RETURN(auto lane, files_.OpenLane());
    threads_.emplace_back([this, own = std::move(lane)] { Serve(*own); });
  }
  under_way_++;
  const MutexLock lock(mutex_);
  begun_.push_back(&request);
  changed_.NotifyOne();
  return Status::Ok();
}

void LaneThreads::TakeEnded(std::vector<FioRequest*>& requests) {
  const MutexLock lock(mutex_);
  if (ended_.empty()) {
    return;
  }
  eventfd_t times = 0;
  TERMFS_CHECK(eventfd_read(ended_event_.get(), &times) == 0);
  requests.insert(requests.end(), ended_.begin(), ended_.end());
  under_way_ -= ended_.size();
  ended_.clear();
}

void LaneThreads::Serve(Lane& lane) {
  while (FioRequest* const request = Next()) {
    CarryOut(files_, lane, *request);
    NoteEnded(request);
  }
}

FioRequest* LaneThreads::Next() {
  const MutexLock lock(mutex_);
  while (begun_.empty() && !closed_) {
    changed_.WaitFor(mutex_, std::chrono::seconds(1));
  }
  if (begun_.empty()) {
    return nullptr;
  }
  FioRequest* const first = begun_.front();
  begun_.pop_front();
  return first;
}

void LaneThreads::NoteEnded(FioRequest* request) {
  const MutexLock lock(mutex_);
  if (ended_.empty()) {
    TERMFS_CHECK(eventfd_write(ended_event_.get(), 1) == 0);
  }
  ended_.push_back(request);
}

}  // namespace termfs::benchmarks::fio

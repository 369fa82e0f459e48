// SPDX-License-Identifier: Apache-2.0
//
// Requests of fio's engine (volume.h) carried out by the client library: on the calling thread, or on threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "benchmarks/fio/volume.h"
#include "fs/client/file_system.h"

struct FioFile {
  uint64_t ino;
  termfs::fs::client::OpenFile* open;
};

namespace termfs::benchmarks::fio {

constexpr size_t kLargest = 1U << 20;  // bytes of one operation of the client library

// The result is in `request`.
void CarryOut(fs::client::FileSystem& files, fs::client::Lane& lane, FioRequest& request);

// Threads that carry out requests, each in a lane of its own: as many as have been under way at a time.
//
// Thread-safety: one thread, the job's. Others touch a request and its buffer from Begin until it is taken.
// Ownership:     requests are the caller's. The file system outlives this; what is under way at the end is carried out.
class LaneThreads {
 public:
  // Errors: no descriptor left.
  static Result<std::unique_ptr<LaneThreads>> Create(fs::client::FileSystem& files);
  ~LaneThreads();
  LaneThreads(const LaneThreads&) = delete;
  LaneThreads& operator=(const LaneThreads&) = delete;

  // An error (of OpenLane): it is not under way.
  Status Begin(FioRequest& request) EXCLUDES(mutex_);
  // Appends those that have ended; they are not under way any more. Does not wait.
  void TakeEnded(std::vector<FioRequest*>& requests) EXCLUDES(mutex_);
  size_t under_way() const { return under_way_; }
  // Readable: some have ended.
  int fd() const { return ended_event_.get(); }

 private:
  LaneThreads(fs::client::FileSystem& files, UniqueFd ended) : files_(files), ended_event_(std::move(ended)) {}
  void Serve(fs::client::Lane& lane);
  // Null: there will be none.
  FioRequest* Next() EXCLUDES(mutex_);
  void NoteEnded(FioRequest* request) EXCLUDES(mutex_);

  fs::client::FileSystem& files_;
  const UniqueFd ended_event_;  // readable when ended_ is not empty
  size_t under_way_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::deque<FioRequest*> begun_ GUARDED_BY(mutex_);
  std::vector<FioRequest*> ended_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;  // the last: they use the others
};

}  // namespace termfs::benchmarks::fio

// SPDX-License-Identifier: Apache-2.0
//
// Flow: a personality at work on a directory, with the calls that any program would make.
//
// Thread-safety: one thread; Run starts others and ends them.
// Errors:        of the first call that failed, with the path; the run ends then.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/mutex.h"
#include "base/result.h"
#include "benchmarks/workloads/file_set.h"
#include "benchmarks/workloads/personality.h"

namespace termfs::benchmarks {

struct ActionCounts {
  Histogram latency;
  Counter bytes;  // read or written
};

class Flow {
 public:
  // `directory` exists and is empty. `files` is the personality's number of files, 0: its own.
  Flow(Personality personality, std::string directory, uint64_t files, uint64_t seed);

  Status Prepare();
  // For so long, until `interrupted`, or until there are no files any more if the personality ends with them.
  Status Run(uint64_t threads, std::chrono::seconds limit, const std::atomic<bool>& interrupted);

  const ActionCounts& counts(Action action) const { return counts_[static_cast<size_t>(action)]; }
  uint64_t turns() const { return turns_.value(); }
  // Turns given up because no file was there for an operation: `files` is too small for the number of threads.
  uint64_t turns_given_up() const { return turns_given_up_.value(); }
  double seconds() const { return seconds_; }

 private:
  class Worker;

  void Work(uint64_t number) EXCLUDES(mutex_);
  bool over() const;

  const Personality personality_;
  Random random_;
  const uint64_t seed_;
  std::vector<char> contents_;
  std::vector<std::unique_ptr<FileSet>> file_sets_;
  std::array<ActionCounts, kActionNames.size()> counts_;
  Counter turns_;
  Counter turns_given_up_;
  double seconds_ = 0;
  std::chrono::steady_clock::time_point end_;
  const std::atomic<bool>* interrupted_ = nullptr;
  std::atomic<bool> stopped_{false};
  Mutex mutex_;
  Status outcome_ GUARDED_BY(mutex_);  // the first error
};

}  // namespace termfs::benchmarks

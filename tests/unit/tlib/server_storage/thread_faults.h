// SPDX-License-Identifier: Apache-2.0
//
// ThreadFaults: counts the pages of memory that a thread touches for the first time, which tells how much of a sparse
// array something walks over, without a clock.
//
// Thread-safety: one thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <cstdint>

namespace termfs::tlib::server {

class ThreadFaults {
 public:
  // From now on a page is 4 KiB for this process.
  ThreadFaults() {
    EXPECT_EQ(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    Take();
  }

  // Since the last call.
  int64_t Take() {
    rusage usage{};
    EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
    const int64_t before = seen_;
    seen_ = usage.ru_minflt;
    return seen_ - before;
  }

 private:
  int64_t seen_ = 0;
};

}  // namespace termfs::tlib::server

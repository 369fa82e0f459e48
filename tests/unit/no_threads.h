// SPDX-License-Identifier: Apache-2.0
#ifndef TERMFS_TESTS_UNIT_NO_THREADS_H_
#define TERMFS_TESTS_UNIT_NO_THREADS_H_

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace termfs {

// While it lives no thread of this process can be started: there is no memory for the stack that it would have.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t attributes;
    EXPECT_EQ(pthread_getattr_default_np(&attributes), 0);
    EXPECT_EQ(pthread_attr_getstacksize(&attributes, &before_), 0);
    Set(size_t{1} << 50);
  }
  ~NoThreads() { Set(before_); }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  static void Set(size_t bytes) {
    pthread_attr_t attributes;
    EXPECT_EQ(pthread_attr_init(&attributes), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
    EXPECT_EQ(pthread_setattr_default_np(&attributes), 0);
    EXPECT_EQ(pthread_attr_destroy(&attributes), 0);
  }
  size_t before_ = 0;
};

}  // namespace termfs

#endif  // TERMFS_TESTS_UNIT_NO_THREADS_H_

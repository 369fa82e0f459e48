// SPDX-License-Identifier: Apache-2.0
//
// Mutexes whose use clang checks at compile time (-Wthread-safety), and the annotations for it.
//
//   Mutex mutex_;
//   int value_ GUARDED_BY(mutex_);
//   void Bump() REQUIRES(mutex_);
//   { MutexLock lock(mutex_); ... }
//
// No lock is held across an RPC, disk I/O or a callback. A CondVar wait always has a deadline.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define TERMFS_TSA(x) __attribute__((x))
#else
#define TERMFS_TSA(x)
#endif

#define CAPABILITY(x) TERMFS_TSA(capability(x))
#define SCOPED_CAPABILITY TERMFS_TSA(scoped_lockable)
#define GUARDED_BY(x) TERMFS_TSA(guarded_by(x))
#define PT_GUARDED_BY(x) TERMFS_TSA(pt_guarded_by(x))
#define REQUIRES(...) TERMFS_TSA(requires_capability(__VA_ARGS__))
#define REQUIRES_SHARED(...) TERMFS_TSA(requires_shared_capability(__VA_ARGS__))
#define EXCLUDES(...) TERMFS_TSA(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) TERMFS_TSA(acquire_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) TERMFS_TSA(acquire_shared_capability(__VA_ARGS__))
#define RELEASE(...) TERMFS_TSA(release_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) TERMFS_TSA(release_shared_capability(__VA_ARGS__))
#define RELEASE_GENERIC(...) TERMFS_TSA(release_generic_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) TERMFS_TSA(try_acquire_capability(__VA_ARGS__))
#define RETURN_CAPABILITY(x) TERMFS_TSA(lock_returned(x))
#define NO_THREAD_SAFETY_ANALYSIS TERMFS_TSA(no_thread_safety_analysis)

namespace termfs {

class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }
  bool TryLock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class CAPABILITY("mutex") SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;
  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }
  void LockShared() ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void UnlockShared() RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~WriterLock() RELEASE() { mutex_.Unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mutex_;
};

class SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.LockShared(); }
  ~ReaderLock() RELEASE_GENERIC() { mutex_.UnlockShared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
};

// A condition variable for Mutex. Spurious wake-ups happen: wait in a loop over the condition.
class CondVar {
 public:
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }
  // Returns false when the deadline passed.
  template <typename Clock, typename Duration>
  bool WaitUntil(Mutex& mutex, std::chrono::time_point<Clock, Duration> deadline) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  template <typename Rep, typename Period>
  bool WaitFor(Mutex& mutex, std::chrono::duration<Rep, Period> timeout) REQUIRES(mutex) {
    return WaitUntil(mutex, std::chrono::steady_clock::now() + timeout);
  }

 private:
  std::condition_variable cv_;
};

}  // namespace termfs

// SPDX-License-Identifier: Apache-2.0
//
// SizeRefresher: has the kernel of a mount ask for the size of an inode, and sees that it goes by the answer. For files
// that have become smaller elsewhere: nothing else lowers the size that a kernel knows for certain. Another one looks
// at what the kernel has, and has it ask nothing: that never waits for a page. See "The size that a reader is shown" in
// docs/design_notes.md.
//
// It opens the inode by its handle, which takes CAP_DAC_READ_SEARCH, and looks at its attributes, on a thread that
// waits for the kernel as any program on the mount does. That thread has a working directory and a table of descriptors
// of its own: with the others' a killed mount could keep itself alive, waiting for an answer by the device that it
// holds open. While it looks, umount finds the mount busy, as it does while a program has the file open.
//
// Thread-safety: any thread. Ownership: what `gives_up` refers to outlives this.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/mutex.h"

namespace termfs::mount {

class SizeRefresher {
 public:
  // Of the file system `device` that is mounted on `mountpoint`.
  SizeRefresher(std::string mountpoint, dev_t device);
  // Waits for the kernel, if it is being asked: the mount still answers, or has ended.
  ~SizeRefresher();
  SizeRefresher(const SizeRefresher&) = delete;
  SizeRefresher& operator=(const SizeRefresher&) = delete;

  // True: the kernel goes by a size that the mount has answered with since, or does not know the inode. False: it could
  // not be had within a moment, or not at all here, or `gives_up` said so, which is asked on another thread each time
  // that the kernel has not taken the answer: it takes none of an inode that it is about to cut itself.
  bool Refresh(uint64_t ino, uint64_t generation, std::function<bool()> gives_up) EXCLUDES(mutex_);
  // Has it begun with, and does not wait for it.
  void BeginRefresh(uint64_t ino, uint64_t generation, std::function<bool()> gives_up) EXCLUDES(mutex_);
  // The size that the kernel goes by, 0 if it does not know the inode; nothing: it could not be had. Waits for what was
  // begun with before, so there is a SizeRefresher of its own for it.
  std::optional<uint64_t> Look(uint64_t ino, uint64_t generation) EXCLUDES(mutex_);
  // None of this can be done here, as has turned out.
  bool useless() EXCLUDES(mutex_);

 private:
  struct Job {
    const uint64_t ino;
    const uint64_t generation;
    const std::function<bool()> gives_up;
    const bool looks = false;  // and asks for nothing
    bool done = false;         // as `taken` and `size`, with the lock held
    bool taken = false;
    uint64_t size = 0;
  };
  // Null: it cannot be done.
  std::shared_ptr<Job> Queue(uint64_t ino, uint64_t generation, std::function<bool()> gives_up, bool looks)
      REQUIRES(mutex_);
  void Await(const Job& job) REQUIRES(mutex_);
  // kNever: this process may not.
  enum class Outcome { kTaken, kNotTaken, kNever };
  void Run() EXCLUDES(mutex_);
  Outcome Do(Job& job) const;
  static Outcome Ask(const Job& job, int file);

  const std::string mountpoint_;
  const dev_t device_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Job>> queue_ GUARDED_BY(mutex_);
  bool useless_ GUARDED_BY(mutex_) = false;  // no thread, or not allowed
  bool ending_ GUARDED_BY(mutex_) = false;
  std::optional<std::thread> thread_ GUARDED_BY(mutex_);
};

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// A kernel that does not come to an end with one notification.
#include "mount/kernel_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sys/uio.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "base/mutex.h"
#include "tests/unit/eventually.h"

namespace termfs::mount {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kStuck = 7;

// What libfuse writes to the kernel comes here.
class Kernel {
 public:
  Kernel() {
    fuse_args args = FUSE_ARGS_INIT(0, nullptr);
    char name[] = "test";
    fuse_opt_add_arg(&args, name);
    const fuse_lowlevel_ops operations{};
    session_ = fuse_session_new(&args, &operations, sizeof(operations), this);
    fuse_opt_free_args(&args);
    fuse_custom_io io{};
    io.writev = &Write;
    io.read = &Read;
    const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    EXPECT_EQ(fuse_session_custom_io(session_, &io, fd), 0);
    struct {
      fuse_in_header header;
      fuse_init_in body;
    } hello{};
    hello.header.len = sizeof(hello);
    hello.header.opcode = FUSE_INIT;
    hello.header.unique = 2;
    hello.body.major = FUSE_KERNEL_VERSION;
    hello.body.minor = 31;
    fuse_buf bytes{};
    bytes.size = sizeof(hello);
    bytes.mem = &hello;
    fuse_session_process_buf(session_, &bytes);
  }
  ~Kernel() { fuse_session_destroy(session_); }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  fuse_session* session() { return session_; }

  void GoOn() {
    MutexLock lock(mutex_);
    stuck_ = false;
    changed_.NotifyAll();
  }
  // Whose pages it has dropped, in that order.
  std::vector<uint64_t> dropped() {
    MutexLock lock(mutex_);
    return dropped_;
  }
  // Whose attributes alone.
  std::vector<uint64_t> attributes() {
    MutexLock lock(mutex_);
    return attributes_;
  }
  // Notifications of entries take so long from now on.
  void TakeForEntries(std::chrono::milliseconds time) {
    MutexLock lock(mutex_);
    entry_time_ = time;
  }
  int entries() {
    MutexLock lock(mutex_);
    return entries_;
  }

 private:
  static ssize_t Read(int, void*, size_t, void*) { return 0; }
  static ssize_t Write(int, iovec* parts, int count, void* user) {
    ssize_t bytes = 0;
    for (int i = 0; i < count; ++i) {
      bytes += static_cast<ssize_t>(parts[i].iov_len);
    }
    fuse_out_header header{};
    std::memcpy(&header, parts[0].iov_base, sizeof(header));
    if (header.error == FUSE_NOTIFY_INVAL_ENTRY) {
      static_cast<Kernel*>(user)->DropEntry();
    }
    fuse_notify_inval_inode_out body{};
    if (count == 2 && parts[1].iov_len == sizeof(body)) {
      std::memcpy(&body, parts[1].iov_base, sizeof(body));
      static_cast<Kernel*>(user)->Drop(body);
    }
    return bytes;
  }
  void Drop(const fuse_notify_inval_inode_out& body) {
    MutexLock lock(mutex_);
    if (body.off < 0) {
      attributes_.push_back(body.ino);
      return;
    }
    while (body.ino == kStuck && stuck_) {
      changed_.WaitFor(mutex_, std::chrono::seconds(1));
    }
    dropped_.push_back(body.ino);
  }

  void DropEntry() {
    MutexLock lock(mutex_);
    ++entries_;
    const auto end = steady_clock::now() + entry_time_;
    while (steady_clock::now() < end) {
      changed_.WaitUntil(mutex_, end);
    }
  }

  fuse_session* session_ = nullptr;
  Mutex mutex_;
  CondVar changed_;
  bool stuck_ GUARDED_BY(mutex_) = true;
  std::vector<uint64_t> dropped_ GUARDED_BY(mutex_);
  std::vector<uint64_t> attributes_ GUARDED_BY(mutex_);
  int entries_ GUARDED_BY(mutex_) = 0;
  std::chrono::milliseconds entry_time_ GUARDED_BY(mutex_){0};
};

// Each would be acknowledged later than the one before, until the server takes the mount for dead.
TEST(KernelCacheNotifier, InvalidateInode_AllWhoWaitBehindOneThatHangsWaitNoLongerThanOne) {
  constexpr uint64_t kOthers = 30;
  Kernel kernel;
  KernelCacheNotifier notifier;
  notifier.Attach(kernel.session(), "");
  const auto begin = steady_clock::now();
  notifier.InvalidateInode(kStuck, 0, 0);
  EXPECT_GE(steady_clock::now() - begin, KernelCacheNotifier::kPatience);
  std::vector<uint64_t> all = {kStuck};
  for (uint64_t ino = kStuck + 1; ino <= kStuck + kOthers; ++ino) {
    notifier.InvalidateInode(ino, 0, 0);
    all.push_back(ino);
  }
  EXPECT_LT(steady_clock::now() - begin, 10 * KernelCacheNotifier::kPatience);
  EXPECT_TRUE(kernel.dropped().empty());
  kernel.GoOn();
  EXPECT_TRUE(Eventually([&] { return kernel.dropped() == all; })) << "none is forgotten";
  notifier.Detach();
}

// A program that lists a directory keeps its lock in the kernel, for which each notification would wait.
TEST(KernelCacheNotifier, InvalidateEntry_VoidsAllEntriesOnceNotificationsOfADirectoryTakeLong) {
  constexpr uint64_t kDirectory = 3;
  constexpr uint64_t kOther = 4;
  constexpr std::chrono::seconds kLong{10};
  Kernel kernel;
  KernelCacheNotifier cache;
  cache.HasEpochs();
  cache.Attach(kernel.session(), "");
  const auto notifies = [&](uint64_t directory) {
    const int before = kernel.entries();
    EXPECT_TRUE(cache.InvalidateEntry(directory, "name"));
    return kernel.entries() > before;
  };
  EXPECT_TRUE(cache.AboutToGive(0, kDirectory, kLong));
  EXPECT_TRUE(cache.AboutToGive(0, kOther, kLong));
  const auto begin = steady_clock::now();
  bool all = true;
  for (int i = 0; i < 5; ++i) {
    all = notifies(kDirectory) && all;
  }
  if (steady_clock::now() - begin >= KernelCacheNotifier::kCostly) {
    GTEST_SKIP() << "on a machine so busy none costs little";
  }
  EXPECT_TRUE(all) << "they cost little";
  kernel.TakeForEntries(KernelCacheNotifier::kCostly);
  EXPECT_TRUE(notifies(kDirectory));
  EXPECT_FALSE(notifies(kDirectory)) << "all that was given is void";
  EXPECT_TRUE(notifies(kOther)) << "a listing of it may have been under way";
  EXPECT_TRUE(notifies(kOther)) << "epochs are rare";
  EXPECT_FALSE(notifies(kDirectory));
  EXPECT_TRUE(cache.AboutToGive(0, kDirectory, kLong));
  EXPECT_TRUE(notifies(kDirectory)) << "something was given again";
  cache.Detach();
}

TEST(KernelCacheNotifier, InvalidateEntry_NotifiesOfAVoidDirectoryWhereAnEntryMayHaveMoved) {
  constexpr uint64_t kDirectory = 3;
  Kernel kernel;
  kernel.TakeForEntries(KernelCacheNotifier::kCostly);
  for (const bool moves : {true, false}) {
    KernelCacheNotifier cache;
    cache.HasEpochs();
    cache.Attach(kernel.session(), "");
    EXPECT_TRUE(cache.AboutToGive(0, kDirectory, std::chrono::seconds(10)));
    EXPECT_TRUE(cache.InvalidateEntry(kDirectory, "a"));
    int before = kernel.entries();
    EXPECT_TRUE(cache.InvalidateEntry(kDirectory, "b"));
    EXPECT_EQ(kernel.entries(), before);
    if (moves) {
      cache.Moves({.parent = 9, .name = "x"}, {.parent = kDirectory, .name = "b"}, false);
    } else {
      EXPECT_TRUE(cache.AboutToGive(0, 0, std::chrono::seconds(10)));  // in a directory that is not known
    }
    before = kernel.entries();
    EXPECT_TRUE(cache.InvalidateEntry(kDirectory, "b"));
    EXPECT_GT(kernel.entries(), before);
    cache.Detach();
  }
}

// The kernel may take over attributes of before the change after it has heard that the page is written.
TEST(KernelCacheNotifier, AfterWriteBack_AttributesThatWereGivenLatelyAreVoid) {
  Kernel kernel;
  KernelCacheNotifier notifier;
  notifier.Attach(kernel.session(), "");
  notifier.AfterWriteBack(20);
  EXPECT_EQ(kernel.attributes(), std::vector<uint64_t>{});
  EXPECT_FALSE(notifier.AboutToGive(20, 0, Nanoseconds(0))) << "no entry";
  notifier.AfterWriteBack(20);
  notifier.AfterWriteBack(21);
  EXPECT_EQ(kernel.attributes(), std::vector<uint64_t>{20});
  notifier.Detach();
}

TEST(KernelCacheNotifier, GivesEntriesOnlyWhileThereIsASession) {
  const fuse_lowlevel_ops none{};
  fuse_args arguments = FUSE_ARGS_INIT(0, nullptr);
  ASSERT_EQ(fuse_opt_add_arg(&arguments, "test"), 0);
  fuse_session* const session = fuse_session_new(&arguments, &none, sizeof(none), nullptr);
  fuse_opt_free_args(&arguments);
  ASSERT_NE(session, nullptr);
  KernelCacheNotifier cache;
  cache.HasEpochs();
  EXPECT_FALSE(cache.AboutToGive(1, 1, std::chrono::seconds(1))) << "it could not be taken back";
  cache.Attach(session, "");
  EXPECT_TRUE(cache.AboutToGive(1, 1, std::chrono::seconds(1)));
  cache.Detach();
  EXPECT_FALSE(cache.AboutToGive(1, 1, std::chrono::seconds(1)));
  fuse_session_destroy(session);
}

}  // namespace
}  // namespace termfs::mount

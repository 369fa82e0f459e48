// SPDX-License-Identifier: Apache-2.0
//
// SharedOpens: files that the server has open for this client to be read and cached. One open of a file there serves
// any number of handles here, at a time and one after the other, so that opening it again needs no request. See "Pages
// under a lease".
//
// After its last handle an open stays idle for a while, unless too many are. It is shared no more when the server tells
// of a change, when this client changes the file, and after kLongest. What is idle then is closed by a thread of this;
// what is not, by its last user.
//
// Thread-safety: any thread. Ownership: shares the inodes' caches; what Close refers to outlives this.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "fs/client/inode_cache.h"

namespace termfs::fs::client {

class SharedOpen {
 public:
  // What was known before the server was asked to open it.
  struct Since {
    std::chrono::steady_clock::time_point when{};
    uint64_t news = 0;      // InodeCache's
    uint64_t all_news = 0;  // of changes of which nobody knows the inode
    uint64_t written = 0;   // WriteHistory's mark
  };
  SharedOpen(uint64_t number, int open_flags, std::shared_ptr<InodeCache> inode_cache, const Since& opened)
      : ino(number), flags(open_flags), cache(std::move(inode_cache)), since(opened) {}
  const uint64_t ino;
  const int flags;
  const std::shared_ptr<InodeCache> cache;
  const Since since;

 private:
  friend class SharedOpens;
  using Order = std::list<std::shared_ptr<SharedOpen>>;
  // Of SharedOpens, under its lock.
  uint64_t users_ = 0;
  bool listed_ = false;
  Order::iterator place_{};  // while it is listed
};

class SharedOpens {
 public:
  using Open = std::shared_ptr<SharedOpen>;

  // From the open that asked the server. So long a file that was removed elsewhere may keep its space, if nobody tells.
  static constexpr std::chrono::seconds kLongest{10};
  static constexpr size_t kMostIdle = 4096;  // some KiB each, here and at the server

  // Closes one, on the thread of this; when it returns the server has heard of it.
  using Close = std::function<void(const SharedOpen& open)>;

  explicit SharedOpens(Close close);
  ~SharedOpens() { Stop(); }
  // Nothing is closed from now on.
  void Stop() EXCLUDES(mutex_);
  SharedOpens(const SharedOpens&) = delete;
  SharedOpens& operator=(const SharedOpens&) = delete;

  // The server has opened it. The caller is its first user; who opens it next joins, unless it is out of date already.
  void Share(const Open& open) EXCLUDES(mutex_);
  // One user more of the open of that inode with these flags; null: there is none.
  Open Join(uint64_t ino, int flags) EXCLUDES(mutex_);
  // One user less. False: that was the last, and the caller closes it: nobody may join it any more, or `keep` is false.
  bool Leave(const Open& open, bool keep) EXCLUDES(mutex_);
  // Nobody joins it any more. What is returned was idle, and is the caller's to close; null: there is nothing to close.
  Open Take(uint64_t ino) EXCLUDES(mutex_);
  std::vector<Open> TakeAll() EXCLUDES(mutex_);
  // Nobody joins it any more. If it was idle it is closed soon.
  void End(uint64_t ino) EXCLUDES(mutex_);
  // Until what ended of these is closed, but not longer than a second from then on.
  void AwaitClosed(const std::vector<uint64_t>& inodes, std::chrono::steady_clock::time_point since) EXCLUDES(mutex_);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  // When it is shared no longer.
  static TimePoint EndOf(const SharedOpen& open) { return open.since.when + kLongest; }
  // Whether it was idle.
  bool Unlist(const Open& open) REQUIRES(mutex_);
  Open TakeListed(uint64_t ino) REQUIRES(mutex_);
  // What was idle, and is not listed any more. Somebody may wait for that.
  void EndSoon(const Open& open) REQUIRES(mutex_);
  // In their order: most of the time that is the one of their ends.
  void Insert(const Open& open) REQUIRES(mutex_);
  void Run() EXCLUDES(mutex_);
  // Those whose time is over.
  void EndOutdated() REQUIRES(mutex_);

  const Close close_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> any_{false};  // is listed
  std::unordered_map<uint64_t, Open> listed_ GUARDED_BY(mutex_);
  SharedOpen::Order order_ GUARDED_BY(mutex_);  // the same, the first to end first
  size_t idle_ GUARDED_BY(mutex_) = 0;          // of them
  std::deque<Open> ended_ GUARDED_BY(mutex_);   // in the order in which they are closed
  Open closing_ GUARDED_BY(mutex_);             // by the thread
  TimePoint looks_at_ GUARDED_BY(mutex_){};     // the thread, if nobody wakes it
  CondVar closed_;
  std::thread thread_;
};

}  // namespace termfs::fs::client

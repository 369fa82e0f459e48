// SPDX-License-Identifier: Apache-2.0
//
// IdleOpens: files that were opened to be read and cached, are closed, and stay open at the server for a while, so that
// opening them again needs no request. See "Pages under a lease".
//
// Each is taken by the next open of its kind, or ends: when the server tells of a change, when this client changes the
// file, after kLongest, or when there are too many. What ends later is closed by a thread of this.
//
// Thread-safety: any thread. Ownership: shares the inodes' caches; what Close refers to outlives this.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "fs/client/inode_cache.h"

namespace termfs::fs::client {

class IdleOpens {
 public:
  // From the open that asked the server. So long a file that was removed elsewhere may keep its space, if nobody tells.
  static constexpr std::chrono::seconds kLongest{10};
  static constexpr size_t kMost = 256;

  // What was known before the server was asked to open it.
  struct Since {
    std::chrono::steady_clock::time_point when{};
    uint64_t news = 0;      // InodeCache's
    uint64_t all_news = 0;  // of changes of which nobody knows the inode
    uint64_t written = 0;   // WriteHistory's mark
  };
  struct Idle {
    uint64_t ino = 0;
    int flags = 0;
    std::shared_ptr<InodeCache> cache;
    Since since{};
  };
  // Closes one, on the thread of this; when it returns the server has heard of it.
  using Close = std::function<void(const Idle& idle)>;

  explicit IdleOpens(Close close);
  ~IdleOpens() { Stop(); }
  // Nothing is closed from now on.
  void Stop() EXCLUDES(mutex_);
  IdleOpens(const IdleOpens&) = delete;
  IdleOpens& operator=(const IdleOpens&) = delete;

  // False: there is one of the inode, or its time is over.
  bool Keep(Idle idle) EXCLUDES(mutex_);
  // It is the caller's now, to use or to close.
  std::optional<Idle> Take(uint64_t ino) EXCLUDES(mutex_);
  std::vector<Idle> TakeAll() EXCLUDES(mutex_);
  // It is closed soon.
  void End(uint64_t ino) EXCLUDES(mutex_);
  // Until what ended of it is closed, but not for ever.
  void AwaitClosed(uint64_t ino) EXCLUDES(mutex_);

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Kept {
    Idle idle;
    TimePoint until;
  };
  using Order = std::list<Kept>;
  Idle Remove(std::unordered_map<uint64_t, Order::iterator>::iterator kept) REQUIRES(mutex_);
  void Run() EXCLUDES(mutex_);
  bool IsClosing(uint64_t ino) REQUIRES(mutex_);

  const Close close_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> any_{false};
  Order order_ GUARDED_BY(mutex_);  // the first to end first
  std::unordered_map<uint64_t, Order::iterator> by_inode_ GUARDED_BY(mutex_);
  std::vector<Idle> ended_ GUARDED_BY(mutex_);
  std::vector<Idle> closing_ GUARDED_BY(mutex_);  // by the thread
  CondVar closed_;
  std::thread thread_;
};

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
//
// InodeCache: the map of one open inode, as granted by the server and until it is revoked. InodeCacheTable: those of
// all open inodes, for the thread that receives revocations; readers hold on to theirs and need no look-up.
//
// A reader takes a Plan, READs what it names, and then asks StillValid. Why that is enough: the server gives pages to
// another file only after this client has answered the revocation, and the answer comes after the epoch was raised. So
// a reader that still sees the old epoch after its bytes have arrived has read them before.
//
// Which map wins: one with a greater version. A revocation voids all versions up to its own, also those whose reply it
// has overtaken.
//
// Thread-safety: any thread. The lock is a spin of a few dozen nanoseconds.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "fs/client/store_merge.h"
#include "fs/client/write_history.h"
#include "fs/proto/data.h"

namespace termfs::fs::client {

class CAPABILITY("mutex") SpinLock {
 public:
  void Lock() ACQUIRE();
  bool TryLock() TRY_ACQUIRE(true) { return !taken_.exchange(true, std::memory_order_acquire); }
  void Unlock() RELEASE() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

class SCOPED_CAPABILITY SpinHold {
 public:
  explicit SpinHold(SpinLock& lock) ACQUIRE(lock) : lock_(lock) { lock_.Lock(); }
  ~SpinHold() RELEASE() { lock_.Unlock(); }
  SpinHold(const SpinHold&) = delete;
  SpinHold& operator=(const SpinHold&) = delete;

 private:
  SpinLock& lock_;
};

struct Plan {
  static constexpr size_t kSegments = 64;
  uint64_t epoch = 0;
  uint64_t length = 0;  // bytes to read, up to the end of the file
  size_t count = 0;
  std::array<Segment, kSegments> segments;  // cover [offset, offset + length), cut to whole pages
};

// Whether the server counts this client's kernel among those that may have pages of the inode.
class PageLease {
 public:
  bool held() const { return (state_.load(std::memory_order_seq_cst) & kHeld) != 0; }
  // How often it was taken back. Ask before the request for it is sent.
  uint64_t drops() const { return state_.load(std::memory_order_seq_cst) / 2; }
  // The server has given it, unless it has taken it back since. False: it has.
  bool Take(uint64_t drops) {
    uint64_t expected = drops * 2;
    return state_.compare_exchange_strong(expected, expected | kHeld) || expected == (drops * 2 | kHeld);
  }
  // The last ticket by which it was taken back and that the kernel is through with, so that it waits for no reader.
  uint64_t dropped() const { return dropped_.load(std::memory_order_seq_cst); }
  // The kernel is about to drop the pages; and it has, for that ticket.
  void BeginDropping() { dropping_.fetch_add(1, std::memory_order_seq_cst); }
  void EndDropping(uint64_t ticket) {
    dropped_.store(ticket, std::memory_order_seq_cst);
    dropping_.fetch_sub(1, std::memory_order_seq_cst);
  }
  bool dropping() const { return dropping_.load(std::memory_order_seq_cst) != 0; }
  // Whoever reads for the kernel from now on asks first.
  void Drop() {
    uint64_t state = state_.load();
    while (!state_.compare_exchange_weak(state, (state / 2 + 1) * 2)) {
    }
  }

 private:
  static constexpr uint64_t kHeld = 1;
  std::atomic<uint64_t> state_{0};  // twice the number of drops, and kHeld
  std::atomic<uint64_t> dropped_{0};
  std::atomic<uint32_t> dropping_{0};
};

// Opens at which the kernel is told to drop what it has of the file, numbered; and up to which of them it is known to
// have done so. Until then another open could use what is about to be dropped.
class DroppingOpens {
 public:
  uint64_t Begin() { return last_.fetch_add(1) + 1; }
  // The kernel is past that open, or had nothing to drop at it; so what was to be dropped at earlier ones is gone, too.
  void Passed(uint64_t number) {
    uint64_t passed = passed_.load();
    while (passed < number && !passed_.compare_exchange_weak(passed, number)) {
    }
  }
  bool AllPassed() const { return passed_.load() >= last_.load(); }
  // And none has begun since that one.
  bool AllPassedBut(uint64_t number) const { return last_.load() == number && passed_.load() + 1 >= number; }

 private:
  std::atomic<uint64_t> last_{0};
  std::atomic<uint64_t> passed_{0};
};

class InodeCache {
 public:
  explicit InodeCache(std::shared_ptr<WriteHistory> writes = std::make_shared<WriteHistory>())
      : writes_(std::move(writes)) {}
  WriteHistory& writes() { return *writes_; }
  PageLease& pages() { return pages_; }
  // Of the inode's number, as the server gives it: set by who opens the file, before there is a handle.
  std::atomic<uint64_t>& number_generation() { return number_generation_; }
  // Handles through which the kernel may map the file to store to it.
  std::atomic<uint32_t>& mappable() { return mappable_; }
  // The kernel has read pages through one of them.
  std::atomic<bool>& mapped() { return mapped_; }
  StoreMerge& stores() { return stores_; }
  DroppingOpens& dropping_opens() { return dropping_opens_; }
  // Grows with every change that this client makes or is told of.
  std::atomic<uint64_t>& news() { return news_; }

  // While one lives a write of this client's is under way. It may have made the file longer, or filled a hole, which
  // the map says once it is answered; and what others have written there since, and has returned, must be read.
  class Change {
   public:
    explicit Change(InodeCache& cache) : cache_(cache) {
      const SpinHold hold(cache_.lock_);
      cache_.changes_++;
    }
    ~Change() {
      const SpinHold hold(cache_.lock_);
      cache_.changes_--;
    }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    InodeCache& cache_;
  };

  // How to read [offset, offset + length). False: the map does not tell (all of it, or in so many segments).
  bool Look(uint64_t offset, uint64_t length, Plan& plan) const EXCLUDES(lock_);
  bool StillValid(uint64_t epoch) const {
    // Orders the loads of the bytes that were read before this load; pairs with the release in Void.
    std::atomic_thread_fence(std::memory_order_acquire);
    return epoch_.load(std::memory_order_relaxed) == epoch;
  }
  // Takes over what the server has granted in a session of that generation, unless it is void or out of date. Of no
  // map: older ones are void.
  void Install(const Map& map, uint64_t generation) EXCLUDES(lock_);
  // Maps up to `version` are void.
  void Revoke(uint64_t version) EXCLUDES(lock_);
  // Gives the map up before an operation that will void it anyway; the version to tell the server, 0 for none.
  uint64_t Drop() EXCLUDES(lock_);
  // A change may arrive at the server after this client gave up waiting for it: no map is trusted until every doubt has
  // ended.
  void BeginDoubt() EXCLUDES(lock_);
  void EndDoubt() EXCLUDES(lock_);
  // What earlier generations granted is void.
  void BeginGeneration(uint64_t generation) EXCLUDES(lock_);
  // The file could not be opened again after its session was lost: its handles are of no use any more.
  void Lose() { lost_.store(true, std::memory_order_relaxed); }
  bool lost() const { return lost_.load(std::memory_order_relaxed); }
  // Of the map, 0 for none.
  uint64_t version() const EXCLUDES(lock_);
  // By the map, 0 for none.
  uint64_t known_size() const EXCLUDES(lock_);

 private:
  friend class InodeCacheTable;
  void Void(uint64_t version) REQUIRES(lock_);

  const std::shared_ptr<WriteHistory> writes_;
  PageLease pages_;
  std::atomic<uint64_t> number_generation_{0};
  std::atomic<uint32_t> mappable_{0};
  std::atomic<bool> mapped_{false};
  StoreMerge stores_;
  DroppingOpens dropping_opens_;
  std::atomic<uint64_t> news_{0};
  mutable SpinLock lock_;
  std::atomic<uint64_t> epoch_{0};  // raised with lock_ held
  uint64_t version_ GUARDED_BY(lock_) = 0;
  uint64_t void_up_to_ GUARDED_BY(lock_) = 0;
  uint64_t size_ GUARDED_BY(lock_) = 0;
  uint32_t doubts_ GUARDED_BY(lock_) = 0;
  uint32_t changes_ GUARDED_BY(lock_) = 0;  // under way
  uint64_t generation_ GUARDED_BY(lock_) = 0;
  std::atomic<bool> lost_{false};  // relaxed: who sees it late is answered by the server
  ExtentMap extents_ GUARDED_BY(lock_);
};

class InodeCacheTable {
 public:
  // The cache of an inode, made when there is none; it is found by revocations until the last Put. Take it before the
  // request whose reply may bring a map is sent.
  std::shared_ptr<InodeCache> Take(uint64_t ino) EXCLUDES(mutex_);
  void Put(uint64_t ino, const std::shared_ptr<InodeCache>& cache) EXCLUDES(mutex_);
  std::shared_ptr<InodeCache> Find(uint64_t ino) EXCLUDES(mutex_);
  // Counts open files. False: the session of that generation, which opened it, is gone, or the inode is lost.
  bool Opened(uint64_t ino, const std::shared_ptr<InodeCache>& cache, uint64_t generation) EXCLUDES(mutex_);
  struct Closing {
    bool counted = false;     // it was open; else it is lost
    bool last = false;        // of the inode
    uint64_t generation = 0;  // of the session that has it open
  };
  Closing Closed(uint64_t ino, const std::shared_ptr<InodeCache>& cache) EXCLUDES(mutex_);

  struct OpenInode {
    uint64_t ino = 0;
    uint64_t open_files = 0;
  };
  // From now on files are opened in that generation's session; returns those that are to be open in it, too. Who closes
  // one of them after this has to close it there.
  std::vector<OpenInode> BeginGeneration(uint64_t generation) EXCLUDES(mutex_);
  // Its handles are lost; the number may be opened anew. Returns how many files were open.
  uint64_t Lose(uint64_t ino) EXCLUDES(mutex_);
  // What sessions before that generation wrote, and nobody has synced, is gone.
  void LoseWrites(uint64_t generation) EXCLUDES(mutex_);

 private:
  // Of inodes that nobody uses, so many at most; beyond that some are forgotten.
  static constexpr size_t kMostUnsettled = 16384;
  struct Entry {
    std::shared_ptr<InodeCache> cache;
    uint64_t users = 0;
    uint64_t open_files = 0;
  };
  Mutex mutex_;
  Entry* Find(uint64_t ino, const std::shared_ptr<InodeCache>& cache) REQUIRES(mutex_);
  void Keep(uint64_t ino, const InodeCache& cache) REQUIRES(mutex_);
  uint64_t generation_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, Entry> entries_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<WriteHistory>> unsettled_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
//
// FirstWrites: the writes that this client has answered before the server has them. A file that it has just made may
// get one such, its first: the request is on its way when the program goes on, so that a small file costs no more than
// the round trip of its creation. See "The first write does not wait".
//
//   (made) --> may be posted --Take--> posted --Answered, Resent--> (none)
//                   |                    |
//                   +--Forgo, Asked------+--Withdraw--> (none)
//
// What is posted is kept here until the server has answered, and is sent again in the next session if it has not.
//
// Thread-safety: any thread. Ownership: shares the inodes' caches.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "fs/client/inode_cache.h"
#include "fs/proto/data.h"
#include "tlib/rpc/messages.h"

namespace termfs::fs::client {

class FirstWrites {
 public:
  // Before the request that makes a file; then with its reply, which allows it. The server may have asked meanwhile.
  uint64_t BeginMaking() const EXCLUDES(mutex_);
  void Made(uint64_t ino, uint64_t begun, uint64_t generation) EXCLUDES(mutex_);

  // One may be posted in a session of that generation.
  bool MayPost(uint64_t ino, uint64_t generation) EXCLUDES(mutex_);
  // This one is about to be, by that mark. False: not any more.
  bool Take(uint64_t ino, uint64_t generation, tlib::RequestMark mark, std::span<const std::byte> bytes,
            std::shared_ptr<InodeCache> cache) EXCLUDES(mutex_);
  // It could not be sent, and may be posted as before. False: it has been sent in the next session, or is about to be.
  bool Withdraw(uint64_t ino, uint64_t sequence) EXCLUDES(mutex_);
  // The server has carried it out, or not. What was lost is told as a lost write.
  void Answered(uint64_t ino, uint64_t sequence, const Status& status) EXCLUDES(mutex_);

  // Any of the others may say something about some inode.
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }
  // None will be posted from now on. What the next request about the inode tells the server.
  FirstWrite Forgo(uint64_t ino) EXCLUDES(mutex_);
  // The server asks, for somebody who wants to look at the file. True: one was posted.
  bool Asked(uint64_t ino) EXCLUDES(mutex_);
  // The server could not carry it out.
  void Failed(uint64_t ino) EXCLUDES(mutex_);

  // Nothing that earlier sessions allowed is posted from now on.
  void BeginGeneration() EXCLUDES(mutex_);
  // Sent again in the session that is being resumed, until Resent.
  struct Unanswered {
    uint64_t ino = 0;
    tlib::RequestMark mark{};
    std::vector<std::byte> bytes;
  };
  std::vector<Unanswered> BeginResending() EXCLUDES(mutex_);
  // With ENOTCONN: it has to be sent once more.
  void Resent(uint64_t ino, uint64_t sequence, const Status& status) EXCLUDES(mutex_);
  // The session does not come back. How many writes are lost.
  uint64_t LoseAll() EXCLUDES(mutex_);
  // Not answered; lost so far.
  uint64_t posted() const EXCLUDES(mutex_);
  uint64_t lost() const EXCLUDES(mutex_);

 private:
  struct Posted {
    uint64_t generation = 0;
    tlib::RequestMark mark{};
    std::vector<std::byte> bytes;
    std::shared_ptr<InodeCache> cache;
    bool resending = false;
  };
  using PostedWrites = std::unordered_map<uint64_t, Posted>;
  PostedWrites::iterator Find(uint64_t ino, uint64_t sequence) REQUIRES(mutex_);
  bool Disallow(uint64_t ino) REQUIRES(mutex_);  // whether it was allowed
  void Erase(PostedWrites::iterator write) REQUIRES(mutex_);
  void Lose(PostedWrites::iterator write, const Status& why) REQUIRES(mutex_);

  void Count() REQUIRES(mutex_) { count_.store(allowed_.size() + posted_.size(), std::memory_order_release); }

  std::atomic<size_t> count_{0};
  mutable Mutex mutex_;
  uint64_t asked_unknown_ GUARDED_BY(mutex_) = 0;                      // about inodes of which nothing is known here
  std::unordered_map<uint64_t, uint64_t> allowed_ GUARDED_BY(mutex_);  // by inode, in the session of which generation
  PostedWrites posted_ GUARDED_BY(mutex_);                             // by inode
  uint64_t lost_ GUARDED_BY(mutex_) = 0;
};

}  // namespace termfs::fs::client

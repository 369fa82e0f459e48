// SPDX-License-Identifier: Apache-2.0
//
// Newborns: files that sessions have just made, each of which may get one small write that its client answers before it
// is here (fs/client/first_writes.h). Whoever looks at such a file waits until that write has been carried out, or its
// client has said that there will be none. See "The first write does not wait".
//
//   Add --> fresh --Settle asks--> asking --forgone--> (none)
//             |                      |
//             |                      +--posted--> awaited --Arrived--> arrived --Done--> (none)
//             +--Arrived, Forgo------------------------------------------^
//
// Of a session that was lost they stay until its client has said in the next one what it had posted, or its time is
// over; from then on what it says is refused.
//
// Thread-safety: any thread; AwaitPosted, Settle and SettleAll inside a task, with nothing held that the first write
// needs: no gate.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "fs/server/task_condition.h"

namespace termfs::fs::server {

class Newborns {
 public:
  static constexpr size_t kMost = 1024;

  // Who waits. If its session is expelled it gives up: ECANCELED.
  struct Asker {
    uint64_t session = 0;
    const std::atomic<bool>* expelled = nullptr;
    bool is_expelled() const { return expelled != nullptr && expelled->load(std::memory_order_relaxed); }
  };
  // How its client is asked. In a task, without a lock of this.
  class Sessions {
   public:
    enum class Answer : uint8_t {
      kForgone,
      kPosted,
      kGone,  // the session has ended; also if it did not answer, and was expelled
    };
    virtual ~Sessions() = default;
    virtual Answer AskFirstWrite(uint64_t session, uint64_t ino, const Asker& asker) = 0;
    // What it said it had posted has not come. Returns when the session has ended, or later than it may; at once, if it
    // is the asker's own, or that is expelled, too.
    virtual void ExpelForFirstWrite(uint64_t session, const Asker& asker) = 0;
  };

  // `post`: what was posted arrives within it; `absence`: so long a client may be away.
  Newborns(Sessions& sessions, std::chrono::milliseconds post, std::chrono::milliseconds absence)
      : sessions_(sessions), post_(post), absence_(absence) {}

  // Before the inode has a name. False: there are too many.
  bool Add(uint64_t ino, uint64_t session, uint64_t client) EXCLUDES(mutex_);
  bool any() const { return count_.load() != 0; }
  bool Has(uint64_t ino) EXCLUDES(mutex_);

  // Its session says that it will post nothing, or that it has: then this waits for it.
  void Forgo(uint64_t ino, uint64_t session) EXCLUDES(mutex_);
  Status AwaitPosted(uint64_t ino, const Asker& asker) EXCLUDES(mutex_);

  // The first write has come. False: nobody waits for it, any more or at all. Done is to follow.
  bool Arrived(uint64_t ino, uint64_t session, uint64_t client) EXCLUDES(mutex_);
  // The same of a file that an earlier server knew.
  bool ArrivedLate(uint64_t ino, uint64_t session, uint64_t client) EXCLUDES(mutex_);
  // It was carried out, or never will be; or it is to come once more, in the client's next session.
  enum class Outcome : uint8_t { kSettled, kComesAgain };
  void Done(uint64_t ino, Outcome outcome) EXCLUDES(mutex_);

  // Returns when it is no newborn.
  Status Settle(uint64_t ino, const Asker& asker) EXCLUDES(mutex_);
  // A session that takes long with all of its own is expelled.
  Status SettleAll(const Asker& asker) EXCLUDES(mutex_);

  // `returns`: its client may be back, and then says what it had posted.
  void SessionClosed(uint64_t session, bool returns) EXCLUDES(mutex_);
  // It has said so, or will not.
  void ClientSettled(uint64_t client, uint64_t session) EXCLUDES(mutex_);

 private:
  enum class State : uint8_t { kFresh, kAsking, kAwaited, kArrived, kFenced };
  struct Newborn {
    uint64_t session = 0;
    uint64_t client = 0;
    State state = State::kFresh;
    bool away = false;    // the session has ended
    bool returns = true;  // and its client may be back
    Deadline until{};     // kAwaited, or away: not later
  };
  using Table = std::unordered_map<uint64_t, Newborn>;
  void Erase(Table::iterator newborn) REQUIRES(mutex_);
  // One step towards an end; false: there is nothing to wait for.
  bool Step(uint64_t ino, const Asker& asker) EXCLUDES(mutex_);

  Sessions& sessions_;
  const std::chrono::milliseconds post_;
  const std::chrono::milliseconds absence_;
  std::atomic<size_t> count_{0};
  Mutex mutex_;
  TaskCondition changed_ GUARDED_BY(mutex_);
  Table newborns_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::server

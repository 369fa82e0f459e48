// SPDX-License-Identifier: Apache-2.0
//
// DirectoryChanges: what this mount itself is changing in which directories. From the session that changes something
// the server recalls nothing, because its kernel sees the reply; but a kernel that gets attributes of a directory late,
// of before the change, takes them all the same. So what was asked for before such a change had ended gets no time.
//
// And a kernel asks for a directory's attributes after each of its changes, to check permissions before the next. The
// reply to a change brings them along; they answer that question, once, unless something has happened since.
//
// Thread-safety: any thread.
#pragma once

#include <array>
#include <optional>

#include "base/clock.h"
#include "base/mutex.h"
#include "fs/client/file_system.h"

namespace termfs::fs::client {

class DirectoryChanges {
 public:
  // A directory's attributes as a reply brought them.
  struct Brought {
    Attributes attributes;
    uint32_t granted_ms = 0;
    BootTime sent;         // the request
    uint64_t recalls = 0;  // that had come by then
  };

  // From before the request until right before the kernel gets the reply.
  class Change {
   public:
    Change(DirectoryChanges& changes, uint64_t directory);
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;
    void Brings(const Brought& brought) { brought_ = brought; }

   private:
    DirectoryChanges& changes_;
    const uint64_t directory_;
    uint64_t number_ = 0;
    bool alone_ = false;
    std::optional<Brought> brought_;
  };

  // After a change of `directory` that also changed another one, which is known by name only: it was moved or removed.
  void ForgetOthers(uint64_t directory);
  // Nothing in the directory has changed since, and nothing is changing.
  bool Settled(uint64_t directory, BootTime since);
  // What the last change brought, if it was settled then and is now.
  std::optional<Brought> Take(uint64_t directory);

 private:
  // Of all directories with the same remainder.
  struct Slot {
    Mutex mutex;
    unsigned active GUARDED_BY(mutex) = 0;
    uint64_t begun GUARDED_BY(mutex) = 0;
    BootTime last_end GUARDED_BY(mutex);
    std::optional<Brought> brought GUARDED_BY(mutex);  // there only while nothing has begun after it
  };
  Slot& SlotOf(uint64_t directory) { return slots_[directory % slots_.size()]; }

  std::array<Slot, 64> slots_;
};

}  // namespace termfs::fs::client

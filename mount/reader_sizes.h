// SPDX-License-Identifier: Apache-2.0
//
// ReaderSizes: what has to be done so that a reader through the kernel's page cache goes by a size that is no older
// than its read. The kernel drops a reply that brings attributes if anything else was said of the inode since it asked,
// and reads on with the size that it had. See "The size that a reader is shown" in docs/design_notes.md.
//
//   a greater size   is stored in the kernel before the reply is sent (kStore); nothing can overtake that
//   a smaller one    cannot be stored. Where the kernel can be made to ask (size_refresher.h) it has it before the call
//                    returns that has cut the file off. Elsewhere it finds it by the short read: so notifications of
//                    the inode wait until that reader asks again, which it does when its read is over; for at most
//                    kSettling, or kTakesOver after the short read was answered
//   bytes            that were read after a change go with the size after it (MayDiffer): from a short read the kernel
//                    takes nothing if it was notified meanwhile or cuts the file itself, and never a greater size
//
// While a size is being stored no notification begins: what is asked for after it would be older in the kernel.
//
// Only for inodes that the kernel was lately notified of: of others it drops nothing.
//
// Thread-safety: any thread. Time is the caller's: steady.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace termfs::mount {

class ReaderSizes {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  // How long a request or a reply may be on its way between the kernel and here.
  static constexpr std::chrono::seconds kOnTheWay{15};
  // The same of the answer to a change of the size.
  static constexpr std::chrono::seconds kCutOnTheWay{2};
  static constexpr std::chrono::milliseconds kSettling{100};
  // How long notifications wait for a size that is being stored, which takes microseconds unless a page is being read.
  static constexpr std::chrono::milliseconds kStoring{1000};
  // How long a notification may take to reach the kernel; it may take longer to come back.
  static constexpr std::chrono::milliseconds kNotifying{50};
  // From the answer of a read until the kernel has taken it over.
  static constexpr std::chrono::milliseconds kTakesOver{25};
  static constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

  // What the kernel believes can be seen (true, from the beginning), or not any more.
  void LooksAtSizes(bool looks) { looks_.store(looks, std::memory_order_relaxed); }

  // The kernel may drop replies about the inode from now on.
  void Unsure(uint64_t ino, TimePoint now);

  // Until when a notification of the inode is to wait; else it is counted, and may be sent. Then EndNotification. A
  // change of the size by this mount's kernel is one, too.
  TimePoint BeginNotification(uint64_t ino, TimePoint now);
  void EndNotification(uint64_t ino);
  // How many there were. Asked before the server is asked for the attributes that Show is called with.
  uint64_t notifications(uint64_t ino);

  enum class Next : uint8_t {
    kAnswer,
    kStore,     // the size in the kernel, say so by Stored, and answer then: counts as BeginStore
    kAskAgain,  // the server: the inode was notified meanwhile
  };
  // The question of a reader (a thread, 0: unknown) is about to be answered with `size`.
  Next Show(uint64_t ino, uint64_t size, uint64_t notifications, uint32_t reader, TimePoint now);
  void BeginStore(uint64_t ino, TimePoint now);
  void Stored(uint64_t ino, uint64_t size, uint64_t notifications);
  // It was notified of lately, or the kernel may have dropped a reply.
  bool Knows(uint64_t ino);
  // A reader asks; so what it has read before is over.
  void Asks(uint64_t ino, uint32_t reader, TimePoint now);
  // A read of the inode for the page cache is about to be answered with fewer bytes than it asked for.
  void HasReadShort(uint64_t ino, TimePoint now);
  // The kernel may have heard of that size otherwise.
  void NoteGiven(uint64_t ino, uint64_t size);

  // The kernel changes the size itself, and goes by the one of before until it has taken the answer over, which is sent
  // before EndOwnCut.
  void BeginOwnCut(uint64_t ino, TimePoint now);
  void EndOwnCut(uint64_t ino, TimePoint now);
  // What the size of a file was (at least, at most) of which so many bytes were read.
  static constexpr std::pair<uint64_t, uint64_t> AfterRead(uint64_t offset, uint64_t asked, uint64_t got) {
    return {got > 0 ? offset + got : 0, got < asked ? offset + got : kUnknown};
  }
  // The kernel may believe in fewer bytes than `least`, or in more than `most`.
  bool MayDiffer(uint64_t ino, uint64_t least, uint64_t most);
  // How often it was given a size that may be greater. Asked before the kernel's size is looked at, for Seen.
  uint64_t given(uint64_t ino);
  // The kernel believes in that size; unless it was given one since.
  void Seen(uint64_t ino, uint64_t size, uint64_t given);

 private:
  struct Shown {
    uint64_t notifications = 0;
    unsigned notifying = 0;  // the kernel may hear of it at any moment
    unsigned storing = 0;
    TimePoint store_begun{};  // the last of them
    TimePoint begun{};        // the last of them
    TimePoint last{};         // that replies may be dropped since
    uint64_t least = 0;       // the kernel believes in no smaller size, since so many notifications
    uint64_t least_since = 0;
    uint64_t most = kUnknown;  // nor in a greater, unless it cuts the file off
    bool cuts = false;         // since it was seen last
    unsigned cutting = 0;
    TimePoint last_cut{};
    uint64_t given = 0;            // how often `most` may have become greater
    uint64_t settling = kUnknown;  // to what, if it is
    TimePoint settles{};
    std::vector<uint32_t> readers{};  // that it settles for
  };
  struct Place {
    Mutex mutex;
    std::unordered_map<uint64_t, Shown> shown GUARDED_BY(mutex);
    TimePoint swept GUARDED_BY(mutex){};
  };
  Place& PlaceOf(uint64_t ino) { return places_[ino % places_.size()]; }
  Shown& Find(Place& place, uint64_t ino, TimePoint now) REQUIRES(place.mutex);
  // Whether the size is to be stored.
  bool Decide(Shown& shown, uint64_t size, uint32_t reader, TimePoint now);

  std::array<Place, 64> places_;
  std::atomic<bool> any_{false};    // has ever been notified of: relaxed, a hint
  std::atomic<bool> looks_{false};  // relaxed: a thread that misses it waits a moment
};

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// StoreMerge: of one inode, keeps stores through a shared mapping from taking back what other calls of the same mount
// change at that time. See "Stores beside other changes" in docs/design_notes.md.
//
// The kernel writes a dirty page back whole. If a call has changed bytes of that page at the server after the kernel
// read it, the write-back carries the bytes of before. So while such a call is under way, the *base* of each page that
// the kernel may have is kept: its bytes as the kernel got them. Bytes of a write-back that equal their base were not
// stored, and are not written.
//
//   a read for the page cache    Reading before it fetches, HasRead before the kernel gets the bytes
//   a change                     Change: Begin, SetBase of what it names, the change itself, then the kernel drops the
//                                pages if MayBeStale; Dropped says whether it has
//   a write-back                 WriteBack: what of it was stored
//
// Invariants:
//   1. A page that the kernel has is in read_, or a change that covers it is registered, or it was last in the kernel's
//      hands before a change dropped it.
//   2. While a change is registered and prepared, each page of its range that the kernel has and that may be older than
//      the change has a base, which equals the page but for stores.
//   3. A write-back that began before a change was registered has ended before the change is made.
//
// Thread-safety: any thread. Units: bytes, pages of 4 KiB. Errors: ETIMEDOUT, when others do not end.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/page.h"
#include "base/result.h"

namespace termfs::fs::client {

class StoreMerge {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr uint64_t kToEnd = std::numeric_limits<uint64_t>::max();  // as a length

  // Pages [first, end).
  struct Pages {
    uint64_t first = 0;
    uint64_t end = 0;
    bool Covers(uint64_t page) const { return first <= page && page < end; }
    bool Meets(const Pages& other) const { return first < other.end && other.first < end; }
  };
  static Pages PagesOf(uint64_t offset, uint64_t length);

  // The kernel is about to be given the bytes of that range to keep; they are fetched after this.
  void Reading(uint64_t offset, uint64_t length) EXCLUDES(mutex_);
  // It is being given `bytes` for the range; zeros behind them.
  void HasRead(uint64_t offset, uint64_t length, std::span<const std::byte> bytes) EXCLUDES(mutex_);

  // Pages of the range that the kernel may have.
  size_t CountRead(Pages pages) EXCLUDES(mutex_);
  // The kernel is about to drop all pages of the range. If it does not, they are to be remembered again.
  std::vector<uint64_t> Forget(Pages pages) EXCLUDES(mutex_);
  void Remember(const std::vector<uint64_t>& pages) EXCLUDES(mutex_);

  // One call that changes bytes of the file. Registered from Begin on, until it ends.
  class Change {
   public:
    Change() = default;
    ~Change() { End(); }
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

    // Waits for write-backs of these pages that have begun. Returns the pages whose base is to be set before the change
    // is made, ascending; others that write them back wait until Prepared.
    Result<std::vector<uint64_t>> Begin(StoreMerge& merge, Pages pages, TimePoint deadline);
    // As the server has it now.
    void SetBase(uint64_t page, std::span<const std::byte> bytes);
    void Prepared();
    // The kernel may have pages of the range from before the change.
    bool MayBeStale() const;
    // Ends it. `dropped`: the kernel has dropped the range since the change was made. Otherwise bases stay until the
    // kernel reads those pages again.
    void End(bool dropped = true);

   private:
    friend class StoreMerge;
    StoreMerge* merge_ = nullptr;
    Pages pages_;
    bool preparing_ = false;
    bool found_ = false;  // pages that the kernel may have, at Begin
  };

  struct Piece {
    uint64_t offset = 0;
    std::span<const std::byte> bytes;
  };
  class WriteBack {
   public:
    WriteBack() = default;
    ~WriteBack();
    WriteBack(const WriteBack&) = delete;
    WriteBack& operator=(const WriteBack&) = delete;
    // What was stored, in pieces of `bytes`, ascending. Waits for changes that are being prepared.
    Result<std::vector<Piece>> Begin(StoreMerge& merge, uint64_t offset, std::span<const std::byte> bytes,
                                     TimePoint deadline);

   private:
    friend class StoreMerge;
    StoreMerge* merge_ = nullptr;
    Pages pages_;
  };

 private:
  static constexpr uint64_t kChunkPages = 4096;
  using Chunk = std::array<uint64_t, kChunkPages / 64>;
  using Base = std::array<std::byte, kPageSize>;

  void Set(Pages pages) REQUIRES(mutex_);
  void Clear(Pages pages) REQUIRES(mutex_);
  std::vector<uint64_t> Read(Pages pages) const REQUIRES(mutex_);
  bool IsChanging(uint64_t page) const REQUIRES(mutex_);
  // Appends the pieces of one page's part of a write-back.
  void AppendStored(uint64_t offset, std::span<const std::byte> bytes, std::vector<Piece>& pieces) REQUIRES(mutex_);

  mutable Mutex mutex_;
  CondVar moved_;
  // Pages that the kernel may have read since they were last changed, a bit each.
  std::map<uint64_t, std::unique_ptr<Chunk>> read_ GUARDED_BY(mutex_);
  std::vector<const Change*> changes_ GUARDED_BY(mutex_);
  std::vector<const WriteBack*> write_backs_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::unique_ptr<Base>> bases_ GUARDED_BY(mutex_);
};

}  // namespace termfs::fs::client

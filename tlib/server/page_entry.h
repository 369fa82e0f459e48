// SPDX-License-Identifier: Apache-2.0
//
// PageEntry: what the server knows of one page, in 8 bytes. A value; PageStates keeps them.
#pragma once

#include <cstdint>

#include "driver/nic.h"

namespace termfs::tlib::server {

enum class PageState : uint8_t {
  kAbsent,
  kLoading,               // a frame is being filled from the SSD; not published
  kClean,                 // the frame holds what the SSD holds, or zeros when the SSD holds nothing of the page
  kDirty,                 // the frame is newer than the SSD
  kWritingBack,           // the frame is on its way to the SSD
  kWritingBackRedirtied,  // and was changed since it went off
};

class PageEntry {
 public:
  PageEntry() = default;
  explicit PageEntry(uint64_t bits) : bits_(bits) {}
  uint64_t bits() const { return bits_; }

  PageState state() const { return static_cast<PageState>(Get(kStateAt, kStateBits)); }
  bool present() const { return state() >= PageState::kClean; }
  bool writing_back() const { return state() >= PageState::kWritingBack; }
  // Valid unless the page is absent.
  driver::FrameIndex frame() const { return {static_cast<uint32_t>(Get(kFrameAt, kFrameBits))}; }
  uint32_t readers() const { return static_cast<uint32_t>(Get(kReadersAt, kReadersBits)); }
  bool exclusive() const { return Has(kExclusive); }
  bool exclusive_wanted() const { return Has(kExclusiveWanted); }
  bool held() const { return exclusive() || readers() > 0; }
  bool waiters() const { return Has(kWaiters); }
  // The SSD holds bytes of this page. Not so: absent, it reads as zeros.
  bool on_ssd() const { return Has(kOnSsd); }
  // The written log says so durably.
  bool marked() const { return Has(kMarked); }
  // On the SSD, waiting for the next flush to be marked; and: part of the commit that runs now.
  bool mark_pending() const { return Has(kMarkPending); }
  bool mark_committing() const { return Has(kMarkCommitting); }
  // In the pager's queue of dirty pages.
  bool queued() const { return Has(kQueued); }

  void set_state(PageState state) { Set(kStateAt, kStateBits, static_cast<uint64_t>(state)); }
  void set_frame(driver::FrameIndex frame) { Set(kFrameAt, kFrameBits, frame.value); }
  void set_readers(uint32_t readers) { Set(kReadersAt, kReadersBits, readers); }
  void set_exclusive(bool on) { SetBit(kExclusive, on); }
  void set_exclusive_wanted(bool on) { SetBit(kExclusiveWanted, on); }
  void set_waiters(bool on) { SetBit(kWaiters, on); }
  void set_on_ssd(bool on) { SetBit(kOnSsd, on); }
  void set_marked(bool on) { SetBit(kMarked, on); }
  void set_mark_pending(bool on) { SetBit(kMarkPending, on); }
  void set_mark_committing(bool on) { SetBit(kMarkCommitting, on); }
  void set_queued(bool on) { SetBit(kQueued, on); }

  static constexpr uint64_t kMaxFrames = uint64_t{1} << 32;
  static constexpr uint32_t kMaxReaders = (1U << 16) - 1;

 private:
  static constexpr int kFrameAt = 0, kFrameBits = 32;
  static constexpr int kReadersAt = 32, kReadersBits = 16;
  static constexpr int kStateAt = 48, kStateBits = 3;
  static constexpr int kExclusive = 51, kExclusiveWanted = 52, kWaiters = 53, kOnSsd = 54, kMarked = 55,
                       kMarkPending = 56, kMarkCommitting = 57, kQueued = 58;

  uint64_t Get(int at, int bits) const { return (bits_ >> at) & ((uint64_t{1} << bits) - 1); }
  void Set(int at, int bits, uint64_t value) {
    const uint64_t mask = ((uint64_t{1} << bits) - 1) << at;
    bits_ = (bits_ & ~mask) | (value << at);
  }
  bool Has(int bit) const { return (bits_ >> bit & 1) != 0; }
  void SetBit(int bit, bool on) { Set(bit, 1, on ? 1 : 0); }

  uint64_t bits_ = 0;
};
static_assert(sizeof(PageEntry) == 8);

}  // namespace termfs::tlib::server

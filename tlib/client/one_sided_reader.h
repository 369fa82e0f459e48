// SPDX-License-Identifier: Apache-2.0
//
// OneSidedReader: the hot path of a channel. It divides reads into pages, leaves out those the bitmap calls absent,
// posts READs for the rest with adjacent pages in one work request, and looks for the magic pattern in what arrived.
// What is missing comes back as a list for the RPC path.
//
// A hit costs: a load of the session's word, a bit of the bitmap, one posted and polled work request, a comparison per
// line, a push onto the access ring. No lock, no shared counter, no clock.
//
// Thread-safety: the channel's thread.
// Errors:        EINVAL for a read outside of the region or of the buffer; ENOTCONN; ETIMEDOUT.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/page.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/client/access_ring.h"
#include "tlib/client/missing_pages.h"
#include "tlib/client/pattern_matcher.h"
#include "tlib/client/registered_buffer.h"
#include "tlib/client/rpc_port.h"
#include "tlib/client/session_core.h"
#include "tlib/rpc/decode.h"
#include "tlib/rpc/page_span.h"

namespace termfs::tlib::client {

class OneSidedReader {
 public:
  // ENOTSUP: the bitmap should be read live, and this RNIC cannot share memory.
  static Result<std::unique_ptr<OneSidedReader>> Create(std::shared_ptr<SessionCore> core, RpcPort& port,
                                                        ChannelCounters& counters);
  ~OneSidedReader();
  OneSidedReader(const OneSidedReader&) = delete;
  OneSidedReader& operator=(const OneSidedReader&) = delete;

  // The shortest way, for a lone read within one page where the RNIC can READ at once: true when it was a hit. False
  // says nothing; go on with Read. Instructions count here: what a processor can overlap of successive reads is what
  // fits into its window.
  [[gnu::always_inline]] bool TryHit(const ReadRequest& read) {
    const uint64_t offset = read.offset.value;
    const auto in_page = static_cast<uint32_t>(offset % kPageSize);
    if (read.length - 1 >= kPageSize - in_page || offset >= quick_bytes_ ||
        static_cast<uint64_t>(read.destination - quick_begin_) > quick_room_ || !CallsPresent(offset >> kPageBits) ||
        !pair_.ReadNow(read.destination, read.length, offset, rkey_)) [[unlikely]] {
      return false;
    }
    // An unchanged version after the READ means: none changed during it, and the session was not lost.
    if (patterns_.version() != patterns_version_ || matchers_.front().IsPattern(read.destination, in_page, read.length))
        [[unlikely]] {
      return false;
    }
    if (ring_ != nullptr) [[likely]] {
      ring_->Push(static_cast<uint32_t>(offset >> kPageBits));
    }
    return true;
  }

  // Has the RNIC learn the region's key by a first READ, so that no later one waits for the server's host. Call it
  // once, after SetBuffer.
  Status Prepare();
  // The buffer that destinations lie in from now on; kept as long as it is in use.
  void SetBuffer(std::shared_ptr<RegisteredBuffer> buffer);
  // Appends to `missing`.
  Status Read(std::span<const ReadRequest> reads, std::vector<MissingPages>& missing);
  // Takes over what a reply says about the pages of a read; only the pulled bitmap needs it.
  void Learn(const ReadRequest& read, const ReadBitmap& asked, const ReadBitmap& present);

 private:
  // What a work request brings: adjacent pages of one read.
  struct Run {
    const std::byte* data = nullptr;
    uint64_t offset = 0;  // in the region
    uint32_t length = 0;
    uint32_t read = 0;
    uint32_t first = 0;  // page, within the read's
  };

  OneSidedReader(std::shared_ptr<SessionCore> core, RpcPort& port, ChannelCounters& counters)
      : core_(std::move(core)),
        patterns_(core_->patterns()),
        port_(port),
        pair_(port.pair()),
        rkey_(core_->region().region_rkey),
        counters_(counters) {}
  Status Init();
  bool CallsPresent(uint64_t page) const {
    return page >= bitmap_pages_ || ((bitmap_[page / 64].load(std::memory_order_relaxed) >> (page % 64)) & 1) != 0;
  }
  bool InRegion(const ReadRequest& read) const {
    return read.offset.value < region_bytes_ && read.length <= region_bytes_ - read.offset.value;
  }
  // Of a read that is not in the region as it was last heard of.
  Status LearnRegionBytes(const ReadRequest& read);
  Status PlanPages(const ReadRequest& read, uint32_t index);
  void AddRun(const ReadRequest& read, uint32_t index, uint32_t first, PagePart part);
  void AddMissing(uint32_t read, uint32_t page) { client::AddMissing(*missing_, read, page); }
  Status PostRuns();
  Status WaitForRuns();
  Status DetectAbsent();
  void DetectInPages(const Run& run);
  void Hit(uint64_t page) {
    hits_++;
    if (ring_ != nullptr) {
      ring_->Push(static_cast<uint32_t>(page));
    }
  }
  bool LooksAbsent(const std::byte* data, uint32_t in_page, uint32_t length) const;
  // Takes over the patterns in force, and keeps those from before too when a READ has been posted since.
  void RefreshPatterns(bool keep);

  const std::shared_ptr<SessionCore> core_;
  const Patterns& patterns_;
  RpcPort& port_;
  driver::QueuePair& pair_;
  const driver::RKey rkey_;
  ChannelCounters& counters_;
  std::shared_ptr<AccessRing> ring_;
  const std::atomic<uint64_t>* bitmap_ = nullptr;
  uint64_t bitmap_pages_ = 0;  // those the bitmap tells of; 0: there is none. The others are READ
  uint64_t region_bytes_ = 0;

  uint64_t patterns_version_ = 0;
  bool kept_former_ = false;
  // Of TryHit.
  std::byte* quick_begin_ = nullptr;  // the buffer
  uint64_t quick_room_ = 0;           // its size less a page; conservative, so that one comparison does
  uint64_t quick_bytes_ = 0;  // region_bytes_; 0 while there is more than one pattern to recognise, or after the loss
  std::vector<PatternMatcher> matchers_;  // at least one

  std::shared_ptr<RegisteredBuffer> buffer_;
  std::array<driver::SendWorkRequest, RpcPort::kMaxReads> requests_;
  std::array<Run, RpcPort::kMaxReads> runs_;
  uint32_t count_ = 0;
  std::vector<MissingPages>* missing_ = nullptr;  // of the Read that runs
  uint64_t hits_ = 0;
};

}  // namespace termfs::tlib::client

// SPDX-License-Identifier: Apache-2.0
//
// ValidatedReader: what OneSidedReader is for an RNIC that knows no page table. For each page it goes by the entry that
// the session knows (page_table_view.h): READ the page's part of the frame, and behind a fence in the same post the
// entry. The bytes count only if that is, bit for bit, the entry that addressed the READ: then the frame was the page's
// from before the READ until after it (driver/page_table.h), so they are those of one version of the page. Otherwise
// the page is missing, and what was READ is the entry from now on. No pattern is looked for: nothing here reads absent
// pages.
//
//   entry unknown    its block is READ first
//   magic, writing   the page is missing
//   a frame          in a chunk that is known: READ; else the page is missing, and the server is asked for its chunks
//
// What an entry says is not trusted: a READ never leaves the chunk that the frame lies in, nor goes to another.
//
// Thread-safety: the channel's thread.
// Errors:        EINVAL for a read outside of the region or of the buffer; ENOTCONN; ETIMEDOUT.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "driver/nic.h"
#include "tlib/client/access_ring.h"
#include "tlib/client/frame_chunks.h"
#include "tlib/client/missing_pages.h"
#include "tlib/client/page_table_view.h"
#include "tlib/client/registered_buffer.h"
#include "tlib/client/rpc_port.h"
#include "tlib/client/session_core.h"
#include "tlib/rpc/decode.h"
#include "tlib/rpc/page_span.h"

namespace termfs::tlib::client {

class ValidatedReader {
 public:
  static Result<std::unique_ptr<ValidatedReader>> Create(std::shared_ptr<SessionCore> core, RpcPort& port,
                                                         ChannelCounters& counters);
  ~ValidatedReader();
  ValidatedReader(const ValidatedReader&) = delete;
  ValidatedReader& operator=(const ValidatedReader&) = delete;

  // The buffer that destinations lie in from now on; kept as long as it is in use.
  void SetBuffer(std::shared_ptr<RegisteredBuffer> buffer) { buffer_ = std::move(buffer); }
  // Appends to `missing`.
  Status Read(std::span<const ReadRequest> reads, std::vector<MissingPages>& missing);
  // Takes over what a reply says about the pages of a read.
  void Learn(const ReadRequest& read, const ReadBitmap& asked, const ReadBitmap& present);

 private:
  static constexpr uint32_t kMostBlocks = 16;   // READ at a time
  static constexpr uint32_t kMostChecks = 512;  // pages validated at a time

  // A page of those that are being READ.
  struct Check {
    uint64_t page = 0;
    uint64_t expected = 0;  // its entry
    uint32_t read = 0;
    uint32_t index = 0;  // of the page, in the read
  };

  ValidatedReader(std::shared_ptr<SessionCore> core, RpcPort& port, ChannelCounters& counters)
      : core_(std::move(core)), view_(*core_->table()), chunks_(core_->chunks()), port_(port), counters_(counters) {}
  Status Init();

  // READs the blocks of the pages whose entries are unknown.
  Status LearnEntries(std::span<const ReadRequest> reads);
  Status AddBlock(uint64_t block);
  Status ReadBlocks();
  driver::SendWorkRequest EntriesRequest(uint64_t first, uint64_t count, uint64_t* to) const;
  Status PlanPages(const ReadRequest& read, uint32_t index);
  // The key of the frame that `entry` names and where it is in that memory region. False: the page is not READ.
  bool Locate(uint64_t entry, driver::RKey* rkey, uint64_t* offset);
  Status AddPage(const ReadRequest& read, const Check& check, PagePart part, driver::RKey rkey, uint64_t offset);
  bool Extends(const Check& check, driver::RKey rkey, uint64_t offset) const;
  // Posts what is planned, waits, and validates.
  Status PostPlanned();
  void Validate();
  void GiveUpPlanned();
  void AskForChunks();
  Status Post(std::span<driver::SendWorkRequest> requests);
  Status WhyNot() const;  // nothing may be posted
  void RefreshKeys() { keys_ = chunks_.Get(&keys_version_); }

  const std::shared_ptr<SessionCore> core_;
  PageTableView& view_;
  FrameChunks& chunks_;
  RpcPort& port_;
  ChannelCounters& counters_;
  std::shared_ptr<FrameChunks::Reader> entered_;
  std::shared_ptr<const FrameChunks::Keys> keys_;
  uint64_t keys_version_ = 0;
  bool met_unknown_chunk_ = false;
  std::shared_ptr<AccessRing> ring_;
  std::shared_ptr<RegisteredBuffer> buffer_;

  std::unique_ptr<uint64_t[]> entries_;  // where they are READ to: of blocks, or of what is being validated
  std::unique_ptr<driver::MemoryRegion> entries_region_;
  std::array<uint64_t, kMostBlocks> blocks_{};
  uint32_t block_count_ = 0;

  // What is planned: READs of frames, then READs of entries; both together fit into the queue.
  std::array<driver::SendWorkRequest, RpcPort::kMaxReads> requests_;
  uint32_t request_count_ = 0;
  std::array<driver::SendWorkRequest, RpcPort::kMaxReads> entry_requests_;
  uint32_t entry_request_count_ = 0;
  std::array<Check, kMostChecks> checks_;
  uint32_t check_count_ = 0;

  std::vector<MissingPages>* missing_ = nullptr;  // of the Read that runs
  uint64_t hits_ = 0;
};

}  // namespace termfs::tlib::client

// SPDX-License-Identifier: Apache-2.0
//
// Region: an SSD-extended region with its DRAM tier, of any of the seven kinds: the device, the written log, the RNIC
// page table, frames, page states, pager and promoter tied together. It is RegionIo without the network: the server
// brings bytes from and to clients (PullBulk first, then Write with its check; ReadPages with a sink that posts
// WRITEs).
//
//   control thread:  Region::Open(options, environment)     workers must run by now
//   in a coroutine:  region->Start(progress)                background tasks run, kPin is loaded
//   control thread:  region->Keep()                         what it holds outlives the process
//   in a coroutine:  region->Read/ReadPages/Write/Zero/Flush ...
//                    region->Stop()                         background tasks have ended, everything is flushed
//   control thread:  destroy it, then the workers
//
// Thread-safety: everything between Start and Stop from any worker's coroutines; AddCounts, SetFrameChoice, Gauges from
//                any thread. No base Mutex may be held across a call marked "In a coroutine".
// Ownership:     what the environment refers to outlives the region.
// Errors:        EIO from the device; EINVAL for ranges beyond the region.
// Durability:    with RegionOptions::tier, what returned survives the death of the process, from Keep on; Flush and
// Zero
//                power loss.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/metrics.h"
#include "base/page.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/rpc/heat.h"
#include "tlib/server/server.h"

namespace termfs::tlib::server {

// Starts a task in a coroutine of some worker, without waiting; from any thread (Server::Spawn).
using Spawner = std::function<void(std::function<void()>)>;

// In a task: the clients that validate their READs know that chunks of frames were revoked in this epoch, and use them
// no more, or are gone. ETIMEDOUT: one is not; EAGAIN: it cannot be said yet.
using TellReaders = std::function<Status(uint64_t epoch)>;

struct RegionEnvironment {
  driver::Nic& nic;
  driver::ProtectionDomain& domain;
  MetricsRegistry& metrics;
  Spawner spawn;
  TellReaders tell_readers{};  // null: there are no clients
  // What a page belongs to, for messages: Service::OwnerOf. Null: not known.
  std::function<std::string(PageIndex)> owner_of{};
};

// Bytes of one page (or of adjacent ones) that lie still in registered memory.
struct Piece {
  const std::byte* data = nullptr;
  uint32_t length = 0;
  uint32_t at = 0;          // where they belong, in bytes from the start of the range that is read
  driver::LKey lkey;        // of the memory region that `data` is in
  bool from_frame = false;  // the page was in a frame
};

// Takes what ReadPages found, a batch at a time, in a coroutine. The pieces stay unchanged until Take returns: it may
// park, but with a deadline, and it must not touch the region. An error ends the read.
class PieceSink {
 public:
  virtual ~PieceSink() = default;
  virtual Status Take(std::span<const Piece> pieces) = 0;
};

// Whether its tasks wait for the SSD in calls and page faults, and their worker with them.
bool BlocksWorkers(driver::RegionKind kind);

class Region {
 public:
  using Progress = std::function<void(uint64_t done, uint64_t total)>;  // bytes; may be null
  using Check = std::function<Status()>;                                // may be null

  // Server::FormatRegion. Blocks.
  static Status Format(const RegionOptions& options, const Progress& progress);
  static void Remove(const RegionOptions& options);         // Server::RemoveRegion
  static Status CheckMemory(const RegionOptions& options);  // Server::CheckMemory
  // Server::CheckRegion. Blocks.
  static Status Inspect(const RegionOptions& options);
  // ENOENT: not formatted; EUCLEAN: the written log is damaged or belongs to another size; and as TierStore::Open.
  // Blocks.
  static Result<std::unique_ptr<Region>> Open(const RegionOptions& options, RegionEnvironment environment);
  virtual ~Region() = default;

  // In a coroutine. Stop is idempotent; its error is that of the last flush, what is dirty is then in the tier's
  // directory only, or lost where there is none.
  virtual Status Start(const Progress& progress) = 0;
  virtual Status Stop() = 0;
  // Instead of Stop, where no request was served: nothing is flushed, memory that was taken over stays for the next
  // server, and that of this one does not.
  virtual Status Leave() = 0;
  virtual Status Keep() = 0;  // blocks; after Start, before the first request

  // In a coroutine; as RegionIo's.
  virtual Status Read(RegionOffset offset, std::span<std::byte> to) = 0;
  // `check` is asked for each page before it changes, with the page's state held; it must not park. Its error ends the
  // write; the pages before it are written. `from` must not change meanwhile.
  virtual Status Write(RegionOffset offset, std::span<const std::byte> from, const Check& check = nullptr) = 0;
  virtual Status Zero(std::span<const PageRange> ranges) = 0;
  virtual Status Flush(std::span<const PageRange> ranges) = 0;
  // Flushes of the device that failed, whoever was told. What had been written before one may be lost.
  virtual uint64_t failed_flushes() const = 0;  // any thread
  // Bytes [offset, offset + length) of the pages whose bit is set in `missing` (bit i % 64 of word i / 64: the i-th
  // page that the range touches); an empty `missing` means all of them.
  virtual Status ReadPages(RegionOffset offset, uint32_t length, std::span<const uint64_t> missing,
                           PieceSink& sink) = 0;

  // Accesses that clients answered by one-sided READs since they last told. Those by RPC are counted when they are
  // served, and must not be in here. Page numbers are checked. Any thread.
  virtual void AddCounts(std::span<const HeatEntry> counts) = 0;
  // How many pages a client has read, one-sided and by RPC, in a period of its own: both in the same, so that their
  // ratio is one. `client`: a number of its own. Any thread.
  virtual void AddTotals(uint64_t client, uint32_t hit_pages, uint32_t missed_pages) = 0;

  // The memory that a larger ratio, or the ratio's share of a larger region, asks for is there when these return: by
  // small steps, beside the load. They block. ENOMEM, ENOSPC: there is not so much, and nothing has changed.
  virtual Status PrepareRatio(double ratio) = 0;
  virtual Status PrepareTierFor(uint64_t pages) = 0;
  virtual Status SetDramRatio(double ratio) = 0;  // in a coroutine; returns when the budget is in force
  // Growing, in this order: CheckGrowth (whether memory and tmpfs have enough), ExtendDevice (SSD, written log, label),
  // MakeRoom (page table, page states), PrepareTierFor, SetTierFor (the budget), Resize (everything else). Each leaves
  // a region that serves its old size and opens with it. Shrinking: Resize, SetTierFor, CutDevice. The errors are
  // Server::Grow's. One caller at a time.
  virtual Status CheckGrowth(uint64_t pages) = 0;
  virtual Status CheckShrink() const = 0;           // ENOTSUP
  virtual Status ExtendDevice(uint64_t pages) = 0;  // blocks
  virtual Status MakeRoom(uint64_t pages) = 0;      // blocks
  virtual Status SetTierFor(uint64_t pages) = 0;    // in a coroutine: the ratio's share of `pages`
  virtual Status Resize(uint64_t pages) = 0;        // in a coroutine
  virtual Status CutDevice(uint64_t pages) = 0;     // blocks
  virtual Status SetFrameChoice(FrameChoice choice) = 0;

  // kOdp, from the RNIC's thread: a READ met an absent page. Does not block; the page is loaded in a coroutine, not
  // before RegionOptions::odp_delay has passed.
  virtual void StartFault(PageIndex page) = 0;

  virtual driver::TermRegion& term() = 0;
  virtual uint64_t memory() const = 0;  // Server::memory
  virtual uint64_t pages() const = 0;   // any thread
  // region_pages, frames_budget, frames_used, frames_ready, frame_chunks_retiring, pages_dirty, pages_present.
  virtual std::vector<MetricValue> Gauges() const = 0;
};

}  // namespace termfs::tlib::server

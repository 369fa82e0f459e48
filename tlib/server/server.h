// SPDX-License-Identifier: Apache-2.0
//
// The server's end of tlib: an SSD-extended region, the workers that serve it, and the sessions of its clients. What is
// stored in the region is the business of the Service above (fs/server), whose requests run as coroutines on the
// workers and reach the region through RegionIo.
//
// Contexts. "In a coroutine" below means: on a worker, inside a request's coroutine; such a call may suspend it, other
// requests go on. It never blocks the worker. Everything a coroutine touches across such a call must be prepared for
// others having run in between; no base Mutex may be held across one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/page.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/nic.h"
#include "tlib/rpc/messages.h"
#include "tlib/rpc/secret.h"
#include "tlib/rpc/server_address.h"

namespace termfs::tlib::server {

struct SessionId {
  uint64_t value = 0;
  friend auto operator<=>(const SessionId&, const SessionId&) = default;
};

struct PageRange {
  PageIndex first;
  uint64_t count = 0;
};

// One request of a client, in its coroutine. Valid until Service::Handle returns.
class Call {
 public:
  virtual ~Call() = default;
  virtual SessionId session() const = 0;
  virtual uint16_t opcode() const = 0;
  virtual std::span<const std::byte> body() const = 0;  // a private copy
  virtual const RemoteBuffer& in() const = 0;
  virtual const RemoteBuffer& out() const = 0;
  virtual RequestMark mark() const = 0;

  // READs in() into `into`, whose size must be in().length. EIO: the client's memory does not allow it or it is gone.
  virtual Status PullBulk(std::span<std::byte> into) = 0;
  // WRITEs `from` to the start of out(); ERANGE when it does not fit. The reply will carry the count.
  virtual Status PushBulk(std::span<const std::byte> from) = 0;

  // Runs `task` on a thread where it may block (RocksDB), and goes on when it has ended.
  virtual void RunBlocking(std::function<void()> task) = 0;
};

struct SessionInfo {
  SessionId id;
  std::string program;
  std::string transport;
  std::string from{};  // host and port; empty: a process of this host
  uint32_t uid = 0;    // of that process, as the next
  uint32_t pid = 0;
  uint32_t queue_pairs = 0;
  uint8_t bitmap = 0;              // client::BitmapMode
  driver::ReadWay way{};           // how it READs the region
  uint64_t client = 0;             // the same in all sessions of one client; 0: it does not come back
  uint32_t reconnect_seconds = 0;  // it says that it will try for so long
  std::chrono::nanoseconds connected_for{0};
  uint64_t reads = 0;  // since then, as SessionTraffic has it; so are the next
  uint64_t read_pages = 0;
  uint64_t hit_pages = 0;
};

struct SessionEnd {
  enum class How : uint8_t {
    kGoodbye,   // the client has said so
    kExpelled,  // Server::Expel
    kLost,      // it hung up without a word: it died, or lost a connection and may come back
    kDied,      // over TCP: its kernel hung up, or that was forged; a client that may come back resets the connection
  };
  How how = How::kLost;
  std::shared_ptr<const UniqueFd> process{};  // a pidfd of the client's, readable when it has ended; may be null
};

// What runs above tlib.
class Service {
 public:
  virtual ~Service() = default;
  // In a coroutine, concurrently with others. The returned body (at most kMaxMessage - sizeof(ReplyHeader)) or the
  // error's errno is the reply.
  virtual Result<std::vector<std::byte>> Handle(Call& call) = 0;
  // On a control thread; may block.
  virtual Result<std::vector<std::byte>> HandleAdmin(uint16_t opcode, std::span<const std::byte> body) = 0;
  // A session came, or has gone for ever (its queue pairs are destroyed, no request of it is running any more).
  // On a control thread; may block. An error refuses the session; SessionClosed follows all the same.
  virtual Status SessionOpened(const SessionInfo& session) = 0;
  virtual void SessionClosed(SessionId session, const SessionEnd& end) = 0;
  // What the page belongs to, for messages: such as "inode 7 at 4096"; empty: that is not known. Any thread; quick.
  virtual std::string OwnerOf(PageIndex /*page*/) { return {}; }
  // Whether clients may kRead and kWrite the region by raw offsets. A file system allows reads only, to whom it admits.
  virtual bool AllowsRawWrites() const = 0;
};

// Reads and writes of the region, tiering IO and page states included.
// In a coroutine. Errors: EIO from the device, ENOSPC when no frame can be had because the device refuses write-back.
class RegionIo {
 public:
  virtual ~RegionIo() = default;
  // The region's bytes from and to memory of the server (any memory, any alignment).
  virtual Status Read(RegionOffset offset, std::span<std::byte> to) = 0;
  virtual Status Write(RegionOffset offset, std::span<const std::byte> from) = 0;
  // `length` bytes at `in_offset` of the client's buffer call.in() to the region. After they were pulled, for each page
  // before it changes, with its state held, `check` decides whether they may still be applied; its error ends the
  // write.
  virtual Status WriteFrom(Call& call, RegionOffset offset, uint32_t in_offset, uint32_t length,
                           const std::function<Status()>& check) = 0;
  // The region's bytes to the client's buffer call.out() + out_offset.
  virtual Status ReadTo(Call& call, RegionOffset offset, uint32_t out_offset, uint32_t length) = 0;
  // The pages read as zeros from now on, durably when this returns: I/O in flight on them has ended, their dirty bytes
  // are dropped, the written marks are cleared and synced. Costs no SSD write of the pages themselves.
  virtual Status Zero(std::span<const PageRange> ranges) = 0;
  // Flushes of the SSD that failed since the server was started, whoever was told. What had been written before one may
  // be lost, also if the next one succeeds. Any thread.
  virtual uint64_t failed_flushes() const = 0;
  // Everything written to the pages before the call is on the SSD and flushed, and marked as written, durably.
  virtual Status Flush(std::span<const PageRange> ranges) = 0;
};

enum class FrameChoice : uint8_t {  // which pages the tier keeps
  // The hottest, by page-granular counts (the default); of kinds other than kTerm and kRpcTiering, which do not go by
  // heat, it asks for kRecent.
  kHeat,
  kRecent,  // second chance on what was last accessed by RPC
  kStatic,  // whatever came first; nothing is promoted
};

// Where frames, RNIC page table and page states outlive the server's process, so that a killed one loses nothing
// (tier_store.h). Without a directory they end with it.
struct TierOptions {
  std::string directory{};  // on a tmpfs, or with own_tmpfs anywhere: one is mounted there
  bool own_tmpfs = false;
  std::string record{};        // a file beside the SSD that says where the tier of a killed server is
  std::string volume{};        // whose it is, at most 47 characters
  bool sparse_frames = false;  // as ProtectionDomain::SparseFrames says
  bool by_ratio = true;        // DRAM ratio, not the region's kind, says how much memory it takes
  uint64_t spare_bytes = 0;    // of the host's memory that must be left beside it, for the rest of the server
  // As much while it is served, where the rest has taken some of it already; from any thread. Null: spare_bytes.
  std::function<uint64_t()> spare_now{};
};

struct RegionOptions {
  driver::RegionKind kind = driver::RegionKind::kTerm;
  std::string device{};       // file or block device that holds the pages
  std::string written_log{};  // file that holds the durable written marks
  std::string volume{};       // whose region it is, at most 47 characters; the device says so, too
  uint64_t pages = 0;         // S
  uint64_t max_pages = 0;     // what S may grow to while it is served; costs address space. 0: it will not
  double dram_ratio = 0.5;    // D / S
  FrameChoice choice = FrameChoice::kHeat;
  std::chrono::milliseconds sample_period{250};
  // kOdp: how long a fault waits before the server begins to page in, as if the RNIC and its driver took that long; at
  // most 1 s. A software RNIC raises a fault in next to no time; for a hardware one the TeRM paper measured
  // 127 + 74 + 129 us. The worker serves others meanwhile. 0: no delay.
  std::chrono::microseconds odp_delay{0};
  std::chrono::milliseconds shrink_timeout{60000};  // a smaller tier is waited for so long
  TierOptions tier{};
  bool overwrite = false;  // FormatRegion only: what a block device holds may be lost
};

class Server;

struct ServerOptions {
  RegionOptions region;
  std::string socket_directory;  // the volume's directory; the control socket is `socket` in it
  uint32_t workers = 1;
  uint32_t blocking_threads = 4;            // for RunBlocking, beside one for each CPU
  uint32_t max_sessions = 4096;             // clients at a time; administrators get in all the same
  uint64_t epoch = 1;                       // of this start
  uint32_t allowed_uid = 0;                 // besides root: who may connect
  std::optional<HostPort> listen{};         // on TCP, too; for who knows the volume's secret
  std::shared_ptr<const TlsContext> tls{};  // ServerTls, with `listen`
  bool plain_data = false;                  // clients that ask for it have the data path outside of TLS
  std::optional<driver::Wire> wire{};       // no other one over a network; none: each that the RNIC speaks
  // What is to be done before clients can connect, and before the memory of this server outlives it: an error ends the
  // start, and nothing is flushed. May be null.
  std::function<Status(Server&)> prepare{};
};

// Thread-safety: any thread, once Start returned.
class Server {
 public:
  virtual ~Server() = default;  // as Stop

  // Whether the DRAM tier of such a region would fit into the host's memory if none of it were in use. ENOMEM: no;
  // the text says what would.
  static Status CheckMemory(const RegionOptions& options);

  // Makes the files of a new region: `device` preallocated to `pages` (a block device is checked for size instead),
  // an empty written log. EEXIST when they are there, or when the block device holds something that is known. Progress
  // in bytes, called now and then; may be null. After an error no file is left that it made.
  static Status FormatRegion(const RegionOptions& options, const std::function<void(uint64_t, uint64_t)>& progress);
  // Removes the files that FormatRegion made.
  static void RemoveRegion(const RegionOptions& options);

  // Looks at a region that is not served, and changes nothing: that its device is whole and this volume's, and its
  // written log intact. EUCLEAN, ENOENT: they are not.
  static Status CheckRegion(const RegionOptions& options);

  // Opens the region and serves it. `nic` and `service` outlive the server. A start that fails, or whose process is
  // killed before it returns, leaves no memory in RegionOptions::tier, but what a former server left stays.
  static Result<std::unique_ptr<Server>> Start(driver::Nic& nic, const ServerOptions& options, Service& service);

  // No new sessions or requests, the running ones end, everything dirty is flushed. Idempotent.
  virtual Status Stop() = 0;

  virtual RegionIo& region() = 0;  // for use in a coroutine
  // Names the memory that holds what was written and not flushed: the same as an earlier server's of the region when
  // this one has taken that over.
  virtual uint64_t memory() const = 0;
  // Runs `task` in a coroutine of a worker and waits for it. Not from a coroutine.
  virtual Status RunInCoroutine(std::function<Status()> task) = 0;
  // Starts `task` in a coroutine of a worker, without waiting; from anywhere.
  virtual void Spawn(std::function<void()> task) = 0;

  // Calls the client (client::CallbackHandler). In a coroutine. ENOTCONN: no such session; ETIMEDOUT.
  virtual Result<std::vector<std::byte>> CallClient(SessionId session, uint16_t opcode, std::span<const std::byte> body,
                                                    std::chrono::milliseconds timeout) = 0;
  // Cuts a session off: its queue pairs are destroyed; Service::SessionClosed follows.
  virtual void Expel(SessionId session, const std::string& why) = 0;
  // The same, as if the client had lost its connections: one of them has ended. It may come back to what it had.
  virtual void Lose(SessionId session, const std::string& why) = 0;
  virtual std::vector<SessionInfo> Sessions() const = 0;

  // Gradually, beside the load; returns when the budget is in force. Blocks; one caller at a time, here and in Grow.
  // The errors are Grow's.
  virtual Status SetDramRatio(double ratio) = 0;
  // Makes the region, its files and the tier as large as `pages` ask for, where they are not (a Shrink that failed may
  // have left them so). Blocks; one caller at a time. EINVAL: beyond max_pages; ENOSPC, ENOMEM: the SSD, the tmpfs or
  // the machine is too small. After an error nothing has changed. Until the caller has noted the new size durably, the
  // next start serves the old one.
  virtual Status Grow(uint64_t pages) = 0;
  // ENOTSUP: a region of this kind does not shrink while it is served.
  virtual Status CheckShrink() const = 0;
  // The region has only `pages` any more; the tier shrinks along, and the file is cut. REQUIRES: what lies beyond reads
  // as zeros, nobody uses it, and the caller has noted the new size durably. Blocks; one caller at a time.
  virtual Status Shrink(uint64_t pages) = 0;
  virtual Status SetFrameChoice(FrameChoice choice) = 0;
  virtual Status SetPattern(const driver::Pattern& pattern) = 0;  // clients are told first

  // Gauges: region_pages, frames_budget, frames_used, frames_ready (that have memory), pages_dirty, pages_present,
  // sessions, queue_pairs. Counters: rpc_reads_total, rpc_read_pages_total, rpc_writes_total, frame_read_pages_total,
  // ssd_reads_total, ssd_writes_total, ssd_read_bytes_total, ssd_write_bytes_total, promotions_total,
  // read_ahead_pages_total, evictions_total, write_backs_total, flushes_total, heat_reads_total, told_hit_pages_total,
  // told_missed_pages_total, faults_total (odp). Histograms: rpc_read, rpc_write, ssd_read, ssd_write.
  virtual std::vector<MetricValue> Metrics() const = 0;
};

}  // namespace termfs::tlib::server

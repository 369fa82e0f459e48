// SPDX-License-Identifier: Apache-2.0
//
// The RNIC as termfs sees it: the seam between the file system and whatever moves the bytes. Terms and meaning are
// those of libibverbs (queue pair, completion queue, memory region, work request, work completion), plus what TeRM
// adds: memory regions of more than one kind, an RNIC page table with a magic frame, and a present bitmap.
// Implementations: driver/softnic (user space, processes of one host), driver/verbs (libibverbs).
//
// Thread-safety: a Nic and a ProtectionDomain may be used from any thread. A CompletionQueue and every QueuePair bound
//                to it belong to one thread. TermRegion: see there.
// Ownership:     children hold what they need of their parents, but destroy in the order queue pairs, completion
//                queues, memory regions, protection domain, Nic. Memory outlives every region registered on it.
// Errors:        set-up returns a Status; what happens to a posted work request is told by its work completion only.
// Units:         bytes unless the type says otherwise; remote addresses are offsets into the remote memory region
//                (a zero-based memory region, in verbs terms).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/metrics.h"
#include "base/page.h"
#include "base/result.h"
#include "base/tls.h"
#include "base/unique_fd.h"
#include "driver/page_table.h"

namespace termfs::driver {

struct LKey {
  uint32_t value = 0;
};
struct RKey {
  uint32_t value = 0;
  friend bool operator==(const RKey&, const RKey&) = default;
};

// What may be done to a memory region; bits as in ibv_access_flags.
enum class Access : uint32_t {
  kLocalWrite = 1,
  kRemoteWrite = 2,
  kRemoteRead = 4,
  kRemoteAtomic = 8,
};
constexpr Access operator|(Access a, Access b) {
  return static_cast<Access>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr bool Has(Access set, Access bit) { return (static_cast<uint32_t>(set) & static_cast<uint32_t>(bit)) != 0; }

// How a region of SSD-extended memory is served; the paper's rivals, its steps, and the whole. The RNIC itself knows
// three behaviours of an absent page: there is none (pin), it faults (odp), it reads as the pattern (term). In the
// rpc kinds a one-sided READ is refused with a remote access error.
enum class RegionKind : uint8_t {
  kPin,         // every page has its frame; one-sided READs
  kOdp,         // an absent page raises an RNIC page fault, the READ waits until the server has paged it in, by a
                // CPU page fault of its own on an mmap of the SSD
  kRpc,         // the server copies from an mmap of the SSD and takes CPU page faults
  kRpcBuffer,   // the server uses buffered reads and writes
  kRpcDirect,   // the server uses O_DIRECT for every access
  kRpcTiering,  // tiering IO: frames where present, O_DIRECT where not; promotion by heat as the server counts it
                // (the paper's "+hotspot"), or with FrameChoice::kStatic none
  kTerm,        // all of it: one-sided READs, magic pattern, bitmap, tiering IO, promotion
};
constexpr bool AllowsOneSidedRead(RegionKind kind) {
  return kind == RegionKind::kPin || kind == RegionKind::kOdp || kind == RegionKind::kTerm;
}
std::string_view ToString(RegionKind kind);                 // "pin", "odp", "rpc", "rpc_buffer", ...
Result<RegionKind> ParseRegionKind(std::string_view name);  // EINVAL names the choices

// ---------------------------------------------------------------------------------------------------------------
// Work requests and completions.

enum class Opcode : uint8_t { kSend, kRdmaRead, kRdmaWrite, kRdmaWriteWithImm, kCompareSwap, kFetchAdd, kRecv };

struct ScatterGather {
  void* addr = nullptr;
  uint32_t length = 0;
  LKey lkey{};
};

struct SendWorkRequest {
  uint64_t id = 0;  // comes back in the completion
  Opcode opcode = Opcode::kSend;
  bool signaled = true;  // false: a completion only on error
  // It starts only after every READ and atomic operation posted before it has completed, so that a READ sees nothing
  // older than what those saw: IBV_SEND_FENCE. Without it READs complete in order, but may be carried out in any.
  bool send_fence = false;
  uint32_t imm = 0;       // kRdmaWriteWithImm
  ScatterGather local{};  // source of kSend and kRdmaWrite, destination of the others; atomics need 8 aligned bytes
  uint64_t remote_offset = 0;
  RKey rkey{};
  uint64_t compare = 0;      // kCompareSwap
  uint64_t swap_or_add = 0;  // kCompareSwap: the new value; kFetchAdd: the addend
};

struct RecvWorkRequest {
  uint64_t id = 0;
  ScatterGather local{};
};

// The verbs names, IBV_WC_*. After any status but kSuccess the queue pair is in the error state: what is posted later
// completes with kWrFlushErr.
enum class WcStatus : uint8_t {
  kSuccess,
  kLocLenErr,       // a message longer than the posted receive
  kLocProtErr,      // lkey does not cover the local buffer
  kWrFlushErr,      // the queue pair was in the error state
  kRemInvReqErr,    // the remote side cannot take such a request
  kRemAccessErr,    // rkey unknown, range out of bounds, access not allowed
  kRemOpErr,        // the remote side failed to carry it out
  kRetryExcErr,     // the connection is lost: the peer does not answer or is gone
  kRnrRetryExcErr,  // the peer posted no receive in time
  kFatalErr,
};
std::string_view ToString(WcStatus status);  // "IBV_WC_SUCCESS", ...

struct WorkCompletion {
  uint64_t id = 0;
  WcStatus status = WcStatus::kSuccess;
  Opcode opcode = Opcode::kSend;  // valid on success only; kRecv also for a WRITE with immediate
  bool has_imm = false;
  uint32_t imm = 0;
  uint32_t byte_len = 0;  // valid on success of kRecv: bytes received
  uint32_t qp_num = 0;    // always valid
};

// ---------------------------------------------------------------------------------------------------------------
// Objects.

// Memory that any peer may reach, and that can be mapped twice: MAP_SHARED. The seam allocates it: the software RNIC
// hands it over as a descriptor: sealed against shrinking, locked where the limits allow, every byte there before use.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* data() = 0;
  virtual size_t size() const = 0;
};

struct MemoryOptions {
  size_t bytes = 0;             // rounded up to whole pages
  std::string name = "termfs";  // shown in /proc/PID/maps
  // False: nobody will ever be able to map it writable through what a peer gets, not even root; registering it for
  // remote WRITE or atomics then fails with EPERM.
  bool peers_may_write = true;
  // The bytes are zeros that take memory when they are touched, where the RNIC does not need them all at once.
  bool on_demand = false;
};

class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual LKey lkey() const = 0;
  virtual RKey rkey() const = 0;
  virtual std::byte* data() = 0;
  virtual size_t size() const = 0;
};

// How a peer READs the pages of a region.
enum class ReadWay : uint8_t {
  kRpcOnly,     // not at all: it asks the server
  kTranslated,  // by page: the RNIC goes by the page table, an absent page reads as the pattern
  // By frame, on an RNIC that knows no page table: the peer READs the page's entry (driver/page_table.h), the frame
  // that it names, and the entry again, behind a fence; the bytes count if both entries are the same, bit for bit.
  kValidated,
};

// What a peer needs to READ a region. A key of value 0 is none.
struct RegionKeys {
  ReadWay way = ReadWay::kTranslated;
  RKey region{};  // kTranslated: page p at p * kPageSize
  RKey bitmap{};  // TermRegion::bitmap; none with kValidated, whose peers have the entries
  // kValidated. Page p's entry is the 8 bytes at entries_offset + 8 * p of the memory region `table`. Frame f is at
  // (f % chunk_frames) * kPageSize of the memory region frame_chunks[f / chunk_frames], where that is registered.
  RKey table{};  // as long as the region is now, or longer; that of a region before it grew stays good for that
  uint64_t entries_offset = 0;
  uint32_t chunk_frames = 0;  // a power of two
  std::vector<RKey> frame_chunks{};
  // Grows when a chunk is revoked: keys of an earlier epoch may name chunks that are gone.
  uint64_t chunk_epoch = 0;
};

// Frames are committed and registered by chunks: 4 MiB, or more where that would be too many keys.
inline constexpr uint64_t kMostChunks = 1 << 14;
constexpr uint32_t ChunkFramesOf(uint64_t max_frames) {
  uint32_t frames = 1024;
  while (max_frames > frames * kMostChunks) {
    frames *= 2;
  }
  return frames;
}

struct FrameIndex {
  uint32_t value = 0;
  friend auto operator<=>(const FrameIndex&, const FrameIndex&) = default;
};

// The random line that fills the magic frame, 64 times over. A 64-byte line is the unit of detection.
struct Pattern {
  std::array<std::byte, 64> line{};
  friend bool operator==(const Pattern&, const Pattern&) = default;
};

struct TermRegionOptions {
  RegionKind kind = RegionKind::kTerm;
  uint64_t pages = 0;      // S: size of the region
  uint64_t max_pages = 0;  // room to grow; >= pages. Costs address space; memory when it is grown into
  Pattern pattern;
  // How peers over the network READ it, on an RNIC that can do it either way (the software RNIC, for tests).
  ReadWay network_way = ReadWay::kTranslated;
  // Where frames and page table shall outlive the process, from Keep on: a directory on a tmpfs, this region's alone,
  // that only its owner may enter. Empty: they end with the process.
  std::string directory;
  // What an earlier process left in `directory` is taken over: frames keep their bytes, entries their generations, so
  // that peers of that process, which may still map them, go on reading whole pages. REQUIRES: that process has ended;
  // Commit, then Publish or Hide of every page, before anybody is told of the region. EUCLEAN: the files are missing or
  // of another size.
  bool resume = false;
  bool sparse_frames = false;  // where ProtectionDomain::SparseFrames does not say so already
  // kOdp: called on the RNIC's thread when a READ meets an absent page. It must not block: it starts paging in; the
  // READ goes on when Publish of that page was called, or fails with kRemOpErr when FailFault was, or after a time-out.
  std::function<void(PageIndex)> fault_handler;
};

// The table's entries and the bitmap are those of the largest region; what it has grown to has memory, of either.
struct TermRegionMemory {
  std::span<std::byte> frames;
  std::span<std::byte> table;
  std::span<std::byte> bitmap;
};

// The server's end of an SSD-extended region: frames, the RNIC page table, the present bitmap.
//
// Every page's entry is in one of three states: magic (absent), writing (readers wait or take the RPC), or a frame.
//   Hide:       any    -> magic           the frame may be reused at once: a reader that copied from it redoes the READ
//   BeginWrite: frame  -> writing         before the first byte of the frame changes
//   Publish:    any    -> frame           after the last byte has been written; with a new generation
// A READ is atomic per page across all of these.
//
// Thread-safety: different pages from different threads at will; for one page the caller serialises. Reading of the
//                counters: any thread.
class TermRegion {
 public:
  virtual ~TermRegion() = default;
  virtual RegionKind kind() const = 0;
  virtual uint64_t pages() const = 0;
  virtual RKey rkey() const = 0;
  // For a peer: of this host, or over the network. Any thread.
  virtual RegionKeys keys(bool network) const;
  virtual LKey frames_lkey() const = 0;  // local key of the frames, for SEND and RDMA from and to them

  // Frames: a dense pool; any frame holds any page. Commit allocates the memory of frames [first, first + count)
  // (ENOMEM: the tmpfs or the machine is full) and keeps the bytes of what a resumed region has there already; Decommit
  // gives the memory back, its bytes read as zeros then. Sparse frames (ProtectionDomain::SparseFrames) are committed
  // one by one, and frame p holds page p and no other; what Publish is told does not matter. With ReadWay::kValidated
  // whole chunks only are committed (but for the last one, which ends with max_frames); they are registered for peers
  // to READ before Commit returns, and deregistered before Decommit takes their memory: REQUIRES that they were revoked
  // since, and that every peer that READs by validation has said that it knows (Revoke).
  virtual uint32_t max_frames() const = 0;
  uint32_t chunk_frames() const { return ChunkFramesOf(max_frames()); }
  virtual std::byte* frame(FrameIndex frame) = 0;
  virtual Status Commit(FrameIndex first, uint32_t count) = 0;
  virtual void Decommit(FrameIndex first, uint32_t count) = 0;
  // Whole committed chunks shall be decommitted, or after all not. From Revoke on keys() do not name them, with a new
  // chunk_epoch; but they stay registered, for peers that have heard of them READ on until they are told. After Restore
  // keys() name them as before. Do nothing where there is no ReadWay::kValidated.
  virtual void Revoke(FrameIndex first, uint32_t count);
  virtual void Restore(FrameIndex first, uint32_t count);

  virtual void Publish(PageIndex page, FrameIndex frame) = 0;
  virtual void BeginWrite(PageIndex page) = 0;
  virtual void Hide(PageIndex page) = 0;
  // kOdp: the fault on `page` cannot be served.
  virtual void FailFault(PageIndex page) = 0;

  // The present bitmap, bit p % 64 of word p / 64 set when page p has its frame: a memory region that peers may READ
  // (bitmap_rkey). Updated by Publish and Hide.
  virtual RKey bitmap_rkey() const = 0;
  virtual size_t bitmap_bytes() const = 0;
  virtual std::span<const std::atomic<uint64_t>> bitmap() const = 0;

  virtual Pattern pattern() const = 0;
  // From now on absent pages read as `pattern`. While it runs a READ may return the old or the new one, never a mixture
  // of both within one page: tell the clients to recognise both first, and to forget the old one when this returned.
  virtual Status SetPattern(const Pattern& pattern) = 0;
  // S becomes `pages` (<= max_pages); new pages are hidden. Shrinking REQUIRES that the pages past the end are hidden.
  // MakeRoom allocates what Resize would, so that it cannot fail. ENOMEM: the tmpfs or the machine is full, nothing has
  // changed. One caller at a time.
  virtual Status Resize(uint64_t pages) = 0;
  virtual Status MakeRoom(uint64_t pages) = 0;

  // From now on frames and page table outlive the process; a resumed region's do so anyhow. The frames come last: where
  // their file is, everything is. Once. Does nothing without TermRegionOptions::directory.
  virtual Status Keep() { return Status::Ok(); }

  // The memory that it is made of, for a Nic that makes it reachable through another RNIC as well; frames_fd: for
  // another, read-only mapping of the frames. ENOTSUP: none such.
  virtual TermRegionMemory memory() { return {}; }
  virtual Result<UniqueFd> FramesFd() const;
};

// What one end tells the other to be connected: numbers, keys and addresses as bytes that any transport can carry, and
// for the software RNIC descriptors, which only a Unix socket can.
struct Endpoint {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
};

// An address in the network, as RoCE names it: IPv6, or IPv4 mapped into it (::ffff:a.b.c.d).
using Gid = std::array<std::byte, 16>;

// What a software RNIC speaks over a network. RoCEv2 over UDP meets RDMA devices; iWARP is RDMAP and DDP over MPA on a
// TCP connection for each queue pair. What completions promise, and what there is:
//
//                                 RoCEv2 (and devices)               iWARP
//   SEND, WRITE complete          when the peer has them             when they are handed over to TCP
//   of a bad key, a missing       the request itself fails, those    a SEND or WRITE has succeeded; the next READ
//   fails, or short receive              behind it are flushed              or what is posted later is flushed a SEND
//   without a receive      is repeated for the sender's       waits for the receiver's rnr_timeout, and with it
//                                 rnr_timeout                        all that the peer sends
//   atomics, WRITE with immediate yes                                no: PostSend returns ENOTSUP
//   a peer that closes            is noticed by what it does not     is noticed at once
//                                 answer
//
// Programs that run over either rely on the weaker promise of each line.
enum class Wire : uint8_t { kRoce, kIwarp };
constexpr uint8_t BitOf(Wire wire) { return static_cast<uint8_t>(1U << static_cast<unsigned>(wire)); }
std::string_view ToString(Wire wire);           // "roce", "iwarp"
Result<Wire> ParseWire(std::string_view name);  // EINVAL names the choices
std::string IwarpTransport(bool secure);        // as Nic::transport; `secure`: in TLS

// Where the two ends of a queue pair are that leaves the host: what getsockname and getpeername say of a connected
// socket between the two. With RoCE nothing in between may translate addresses.
struct NetworkPath {
  Gid local{};
  Gid remote{};
  uint32_t interface = 0;  // index of the interface, for link-local addresses only
  Wire wire = Wire::kRoce;
  // kIwarp: this end connects to the other one, and sends first; to `remote_port`, where the other end's path says
  // `adopts`: its connections come through Nic::Adopt. Else to a port that the other end's RNIC listens on itself.
  bool dials = false;
  uint16_t remote_port = 0;
  bool adopts = false;
  uint16_t local_port = 0;     // of an end that adopts: where its peer is to connect, instead
  uint32_t segment_limit = 0;  // bytes of a TCP segment, of an end that dials, both ways; 0: the kernel's choice
  // kIwarp: the connection is inside TLS, which the end that dials begins by this context; of the other end it says
  // only that there is TLS, and needs `adopts`. Null: there is none, and units carry a CRC instead.
  std::shared_ptr<const TlsContext> tls{};
  // This end mostly asks, and who waits for its completions may take in himself what arrives, without waking a thread
  // of the RNIC's first; the peer has to be of this kind, too. What the peer asks of it then is answered while somebody
  // polls, or within a few milliseconds.
  bool polled = false;
  // The peer names this end's memory by RKey ^ key_mask: a key that it was given is of no use to another peer. 0 unless
  // Nic::MasksKeys.
  uint32_t key_mask = 0;
};

// What a peer speaks inside TLS on a connection of the data path (ALPN).
inline constexpr std::string_view kDataProtocol = "termfs-data/1";

// A TCP connection that a peer has opened, of which nothing that is iWARP's was read.
struct AcceptedConnection {
  UniqueFd socket;
  std::unique_ptr<TlsSession> tls{};  // established; null: the connection is not inside TLS
  std::vector<std::byte> early{};     // what was received behind the handshake, still sealed
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  // Moves up to completions.size() completions out, those of one queue pair in order. Never blocks.
  virtual size_t Poll(std::span<WorkCompletion> completions) = 0;
  // After Arm() returned true, fd() becomes readable when a completion arrives; false: there are completions now, poll
  // first. Spurious wake-ups happen. The descriptor is for poll and epoll only. Where completions of receives and of
  // sends go to different queues it is another one while the queue is armed: ask for it then.
  virtual bool Arm() = 0;
  // Call after waking up from fd(), before polling.
  virtual void Disarm() = 0;
  virtual int fd() const = 0;
  // Holds `capacity` completions from now on, those that wait included: ibv_resize_cq. EINVAL: more than the RNIC has,
  // or fewer than the queue pairs bound to it may fill; the queue is as before then.
  virtual Status Resize(uint32_t capacity);
  // For who sends many messages between two Polls and always polls or arms soon again: a peer on the same host that
  // sleeps is woken by the next of those, once, and no more by each message. Where a device wakes, nothing changes.
  virtual void GatherWakeUps() {}
};

struct SharedReceiveQueueOptions {
  uint32_t max_recv = 256;      // receives posted
  uint32_t max_message = 4096;  // bytes that each of them holds; all are of this length
  bool network = false;         // for queue pairs that leave the host; else for those that do not
};

// Receives that many queue pairs take from, whichever comes first: ibv_srq. So the memory of receives
// goes by the messages that arrive at a time, and no more by the number of connections. While it is empty a message
// waits as it does for a receive of its queue pair's own.
//
// Thread-safety: one thread, that of the completion queues of its queue pairs.
// Ownership:     it outlives the queue pairs that it was given to.
class SharedReceiveQueue {
 public:
  virtual ~SharedReceiveQueue() = default;
  // ENOMEM: more than max_recv would be posted. EINVAL: one of another length than max_message.
  virtual Status PostRecv(std::span<const RecvWorkRequest> requests) = 0;
};

// The id of the completion by which a queue pair with a shared receive queue says that it is in the error state, where
// the RNIC finds out by itself that the peer is gone: opcode kRecv, status kWrFlushErr. It is of no receive: those stay
// posted. What verbs has for that is an asynchronous event, IBV_EVENT_QP_LAST_WQE_REACHED.
inline constexpr uint64_t kNoReceive = UINT64_MAX;

struct QueuePairOptions {
  CompletionQueue* send_cq = nullptr;
  CompletionQueue* recv_cq = nullptr;
  // Takes its receives from there, and posts none; null: it has its own. Each receive that a message took completes,
  // with an error at times, also after its queue pair was destroyed. In the receive completion queue there must be room
  // for max_recv of the shared queue, once, and for one completion of each of its queue pairs.
  SharedReceiveQueue* shared_receives = nullptr;
  uint32_t max_send = 64;                       // work requests in flight
  uint32_t max_recv = 64;                       // receives posted; of a shared queue: messages of the peer that wait
  uint32_t max_message = 4096;                  // bytes in a SEND
  std::chrono::milliseconds rnr_timeout{1000};  // how long a SEND waits for a receive before kRnrRetryExcErr
  // The peer's regions may be files on a tmpfs, which it could shrink while they are mapped here. Nothing for a server.
  bool maps_files = true;
  // Over the network; without it the software RNIC connects processes of one host, through shared memory.
  std::optional<NetworkPath> network{};
};

class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual uint32_t number() const = 0;
  // REQUIRES: called once, before Connect. The descriptors in it are the caller's to pass on.
  virtual Result<Endpoint> LocalEndpoint() = 0;
  // Malformed endpoints: EPROTO. After success both ends may post.
  virtual Status Connect(Endpoint remote) = 0;

  // Posts all of `requests`, in order. ENOMEM: more than max_send in flight, nothing was posted.
  // A READ of an absent page of a kTerm region delivers the pattern; so does a page that is being written, after a few
  // attempts.
  virtual Status PostSend(std::span<const SendWorkRequest> requests) = 0;
  virtual Status PostRecv(std::span<const RecvWorkRequest> requests) = 0;

  // Carries out one READ within one page here and now, without a work request and a completion, where that is possible:
  // the software RNIC copies on the caller's CPU anyway, and for a lone READ of a few hundred bytes the work request
  // costs more than the copy. `to` is any memory of the caller's. True: the bytes are there, those of one version of
  // the page or, where it is absent, those of the pattern; never a mixture. False: not now, or never; post a work
  // request, `to` may have been written to. REQUIRES: length > 0; the range does not leave its page.
  virtual bool ReadNow(std::byte* to, uint32_t length, uint64_t remote_offset, RKey rkey);

  // A read-only view of remote memory for which READ is allowed, where the peer is on the same host and its memory can
  // be mapped; ENOTSUP over a wire. Valid as long as the queue pair. Bytes change under the reader's eyes.
  virtual Result<std::span<const std::byte>> SharedView(RKey rkey) = 0;

  // To the error state: everything outstanding completes with kWrFlushErr. The peer sees the connection lost: on one
  // host at once; over a network, where nothing tells it, when something that it asks for is not answered.
  virtual void Close() = 0;
  virtual bool connected() const = 0;
};

class ProtectionDomain {
 public:
  virtual ~ProtectionDomain() = default;
  // Without remote access any memory of the process may be registered; with it the range must lie in a Memory of this
  // Nic, whose whole object is then reachable by connected peers of this protection domain with that access: the
  // mapping is the protection, so do not put two peers' data into one Memory.
  virtual Result<std::unique_ptr<MemoryRegion>> RegisterMemory(std::byte* data, size_t size, Access access) = 0;
  virtual Result<std::unique_ptr<TermRegion>> RegisterTermRegion(const TermRegionOptions& options) = 0;
  // Whether the frames of a region of that kind are sparse here: frame p is page p's, and has memory while that is
  // present.
  virtual bool SparseFrames(RegionKind /*kind*/) const { return false; }
  virtual Result<std::unique_ptr<QueuePair>> CreateQueuePair(const QueuePairOptions& options) = 0;
  virtual Result<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      const SharedReceiveQueueOptions& options);
};

class Nic {
 public:
  virtual ~Nic() = default;
  // "softnic (shared memory)", "verbs mlx5_0 port 1": what `status` shows. `network`: of queue pairs that leave the
  // host.
  virtual std::string transport(bool network = false) const = 0;
  // The same, and where that is not a matter of course how regions of that kind are READ.
  virtual std::string RegionTransport(RegionKind kind, bool network) const;
  // Whether its queue pairs can go over such a wire.
  virtual bool Speaks(Wire wire) const { return wire == Wire::kRoce; }
  virtual bool MasksKeys() const { return false; }  // as NetworkPath::key_mask says
  // What it carries begins as the set-up of iWARP does (with 'M', unlike a message of a control channel). It becomes
  // the stream of the queue pair that the peer names, or is closed.
  virtual void Adopt(AcceptedConnection /*connection*/) {}
  // What it counts of the network: nothing where it has none.
  virtual std::vector<MetricValue> Metrics() const { return {}; }
  virtual Result<std::unique_ptr<Memory>> AllocateMemory(const MemoryOptions& options) = 0;
  virtual Result<std::unique_ptr<ProtectionDomain>> CreateProtectionDomain() = 0;
  // `capacity`: completions it holds; the sum of max_send and max_recv of its queue pairs must not exceed it; see
  // CompletionQueue::Resize and QueuePairOptions::shared_receives.
  virtual Result<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(uint32_t capacity) = 0;
};

}  // namespace termfs::driver

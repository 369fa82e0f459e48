// SPDX-License-Identifier: Apache-2.0
//
// The client's end of tlib. A Session is one connection to one region server: control channel, the region's present
// bitmap, the access counts, and a thread for what the server calls. A Channel is one thread's queue pair on it, with
// registered memory of its own.
//
//   ASSIGN_OR_RETURN(auto session, Session::Connect(nic, directory, options, handler));
//   ASSIGN_OR_RETURN(auto channel, session->OpenChannel({}));
//   ReadRequest read{.offset = {4096}, .length = 4096, .destination = channel->buffer().data()};
//   RETURN_IF_ERROR(channel->Read({&read, 1}));
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/interruption.h"
#include "base/metrics.h"
#include "base/page.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/rpc/messages.h"
#include "tlib/rpc/server_address.h"

namespace termfs::tlib::client {

// Where the client learns which pages are absent before it READs them.
enum class BitmapMode : uint8_t {
  kLive,    // the server's own bitmap through shared memory (one host); Connect fails with ENOTSUP where it cannot be
  kPulled,  // READ every pull_period, pull_pages of it in turn, patched by what RPC replies report
  kOff,     // never: detection by the pattern alone
};

// Whose bits one READ can pull: of 4 TiB.
inline constexpr uint64_t kMaxPullPages = uint64_t{1} << 30;

class SegmentSize;

using driver::ParseWire;
using driver::Wire;

struct SessionOptions {
  std::string program = "client";  // shown by `status`
  BitmapMode bitmap = BitmapMode::kLive;
  std::chrono::milliseconds pull_period{1000};
  // A bit each; of a region of no more than 16 GiB that is all, every time. No more than kMaxPullPages count.
  uint64_t pull_pages = uint64_t{4} << 20;
  // How often access counts are told, up to four times as often when misses rise; 0: not at all.
  std::chrono::milliseconds heat_period{1000};
  std::chrono::milliseconds call_timeout{30000};
  std::chrono::milliseconds hello_timeout{30000};  // for the server to welcome us
  uint64_t client = 0;                 // the same in all sessions of one client, so that the server knows it again
  std::chrono::seconds reconnect{60};  // with `client`: for so long the server is asked to expect it back
  std::optional<Wire> wire{};          // of its queue pairs, over a network; none: the server chooses
  bool plain_data = false;             // those of iWARP outside of TLS, where the server allows it
  std::shared_ptr<SegmentSize> segment_size{};  // of all sessions of one client, over a network; null: of this one
};

// What the server asks of the client (revocations, notifications). Called on the session's callback thread, one at a
// time; may take its time, the server waits with a deadline of its own. Returns the reply's body.
class CallbackHandler {
 public:
  virtual ~CallbackHandler() = default;
  virtual Result<std::vector<std::byte>> HandleCallback(uint16_t opcode, std::span<const std::byte> body) = 0;
  // The connection is lost; every channel answers ENOTCONN from now on. Called at most once, on that thread.
  virtual void SessionLost(const Status& why) = 0;
};

struct ReadRequest {
  RegionOffset offset;
  uint32_t length = 0;               // 1 to kMaxTransfer
  std::byte* destination = nullptr;  // within Channel::buffer()
};

// A request to the service above tlib (fs/server). Body and reply body are at most kMaxMessage less the header.
struct CallRequest {
  uint16_t opcode = 0;  // >= kFirstServiceOpcode, < kInline
  std::span<const std::byte> body;
  std::span<const std::byte> in;         // bulk to the server; within Channel::buffer(), but for Post
  std::span<std::byte> out;              // bulk from the server; within Channel::buffer()
  std::chrono::milliseconds timeout{0};  // 0: the session's
  RequestMark mark{};
};
struct CallReply {
  std::span<const std::byte> body;  // valid until the channel's next use; Detach is none
  uint32_t out_bytes = 0;
};

// One for answers, one for the loss of the session. Negative: none.
using ReadsFds = std::array<int, 2>;

class Session;

// The reply to a call that was given up: its body, or the server's error; ENOTCONN when none will come.
using LateReply = std::function<void(const Result<std::span<const std::byte>>& reply)>;

// Thread-safety: one thread at a time; different channels at will.
// Ownership:     holds on to its session. Its buffer is registered memory, page-aligned, valid as long as it lives.
// Errors:        ENOTCONN: the session is lost; ETIMEDOUT: the deadline passed; EINTR: the channel's interruption was
//                requested; otherwise what the server answered. After ETIMEDOUT and EINTR the call is given up: it may
//                still be carried out. Its bulk buffers stay reserved until its reply has come, or the queue pair is
//                gone; the channel has a new buffer then, so take buffer() anew after an error.
class Channel {
 public:
  virtual ~Channel() = default;
  virtual std::span<std::byte> buffer() = 0;

  // All of `reads`, overlapping one another: bitmap, READ, detection, one RPC for what is absent of each. Bytes are
  // page-atomic. On error the destinations hold anything.
  virtual Status Read(std::span<const ReadRequest> reads) = 0;
  // As Read, but waits for nothing that is absent: what is in memory has been read when it returns, the destinations of
  // the other reads are appended to `under_way`. No more than kChannelCredits can be under way: the next waits for one.
  // Other calls may come in between. When one of those is given up, or one of these three fails (but for AwaitReads
  // with EINTR, which ends the wait and nothing else), all that is under way is void, and the channel has a new buffer.
  virtual Status BeginRead(std::span<const ReadRequest> reads, std::vector<std::byte*>& under_way) = 0;
  // Waits until one of those under way has been read, if there is any, and appends the destinations of all that have.
  // ETIMEDOUT: some have been under way for as long as a call may take; what is appended are their destinations, in the
  // buffer of before. That is said however many others have been read meanwhile. Nothing is appended with other errors,
  // nor with that one where the server said it.
  virtual Status AwaitReads(std::vector<std::byte*>& done) = 0;
  // The same without waiting.
  virtual Status PollReads(std::vector<std::byte*>& done) = 0;
  // For waiting together with something else: true: PollReads has nothing to say before one of `fds` is readable, which
  // are for poll and epoll only, and hold until DisarmReads; false: it has now. DisarmReads comes after the wait,
  // before the channel's next use.
  virtual bool ArmReads(ReadsFds& fds) = 0;
  virtual void DisarmReads() = 0;
  // All that is under way is void, and the channel may have a new buffer.
  virtual void DropReads() = 0;
  // How many more can be under way now before BeginRead waits for one. What was dropped counts until it is answered.
  virtual size_t ReadRoom() = 0;
  // Grows whenever what was under way has become void, and may when nothing was; and with each new buffer.
  virtual uint64_t voids() const = 0;
  // Raw write of bytes in buffer() to the region, where the server's service allows it.
  virtual Status Write(RegionOffset offset, std::span<const std::byte> data) = 0;
  virtual Result<CallReply> Call(const CallRequest& request) = 0;
  // Of the last Call, which has failed with ENOTCONN: it was not sent, so the server has nothing of it.
  virtual bool unsent() const = 0;
  // Sends a request and waits for nothing. No bulk bytes come back, and no more than kMaxInline go, which are copied.
  // `late` (may be null: the reply is of no interest) is called as AfterGivenUp's is. EAGAIN: as many calls are
  // unanswered as there are credits; `late` is not called then, nor with any other error.
  virtual Status Post(const CallRequest& request, LateReply late = nullptr) = 0;
  // Until everything posted is answered. Errors: as Call's.
  virtual Status AwaitPosted() = 0;
  // The last Call was given up: `late` is called once, on this channel's thread, during one of its next calls or when
  // it is detached or destroyed.
  virtual void AfterGivenUp(LateReply late) = 0;
  // Of a lost session: gives back everything but the buffer and the last reply's body, the server's memory among it.
  // Calls answer ENOTCONN, as before. From any thread, while no call is being made; the channel's may be reading both.
  virtual void Detach() = 0;
};

struct ChannelOptions {
  size_t buffer_bytes = (1U << 20) + (64U << 10);
  Interruption* interruption = nullptr;  // of the thread that uses the channel; may be null, outlives the channel
  // A channel that is opened by the thread that uses it, for BeginRead, which then waits no longer than that for
  // anything but room (ETIMEDOUT: nothing has begun). 0: an ordinary one.
  std::chrono::milliseconds patience{0};
};

// Thread-safety: any thread.
class Session {
 public:
  virtual ~Session() = default;

  // `address` is a volume's directory, whose socket is reached through an open directory, so the path may be long; or
  // a host and port, with the volume's secret. ENOTSUP: BitmapMode::kLive over a network.
  // `handler` may be null and must outlive the session.
  static Result<std::unique_ptr<Session>> Connect(driver::Nic& nic, const ServerAddress& address,
                                                  const SessionOptions& options, CallbackHandler* handler);

  virtual Result<std::unique_ptr<Channel>> OpenChannel(const ChannelOptions& options) = 0;
  // An administrator's request over the control channel.
  virtual Result<std::vector<std::byte>> Admin(uint16_t opcode, std::span<const std::byte> body) = 0;

  // Tells the server that this client will not come back: it need not keep anything for it.
  virtual Status Goodbye(std::chrono::milliseconds timeout) = 0;
  // Every call fails with ENOTCONN from now on, and those that wait return; the server is hung up on.
  virtual void Abandon(const Status& why) = 0;

  virtual uint64_t id() const = 0;
  virtual uint64_t epoch() const = 0;  // of the server's start
  virtual driver::RegionKind kind() const = 0;
  virtual uint64_t pages() const = 0;      // as last heard of
  virtual uint64_t max_pages() const = 0;  // what they may grow to while the session lasts
  virtual std::string transport() const = 0;
  virtual driver::ReadWay way() const = 0;  // how the region is READ
  virtual std::string volume() const = 0;   // whose region it is
  virtual bool lost() const = 0;
  // reads_total, read_pages_total, read_hit_pages_total (one-sided, accepted), absent_by_bitmap_pages_total,
  // absent_by_pattern_pages_total, validation_misses_total (pages READ by validation whose entry had changed),
  // rpc_reads_total, rpc_read_pages_total, calls_total; bitmap_pulls_total, bitmap_pulled_bytes_total (of the bitmap,
  // or where READs are validated of the page table); histograms read_hit, read_miss, call.
  virtual std::vector<MetricValue> Metrics() const = 0;
};

}  // namespace termfs::tlib::client

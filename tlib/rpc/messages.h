// SPDX-License-Identifier: Apache-2.0
//
// Layout of the requests and replies that travel by SEND and RECV between a client's channel and a server's worker.
// Little-endian, fixed, versioned by kControlVersion at connection set-up. Bulk bytes do not travel here, but for few
// that go to the server: a request names buffers of the client, into which the server WRITEs and from which it READs.
//
//   request: RequestHeader, body (kRead: ReadBody and bitmap words; kWrite: WriteBody; >= kFirstServiceOpcode: bytes),
//            with kInline the bulk bytes to the server
//   reply:   ReplyHeader, body
//
// Nothing here is trusted: tlib/rpc/decode.h is the only reader of bytes from a peer, and checks lengths, ranges and
// counts before it hands anything out.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace termfs::tlib {

inline constexpr uint32_t kControlVersion = 15;

// Over a network a client pings once in kPingPeriod, and takes its session for lost when kServerSilence has passed
// since it sent the last ping that was answered. The server takes it for lost after twice that time since the last ping
// came; so whatever the network does, the client is the first to know, and what the session granted it ends before the
// server gives it to somebody else.
inline constexpr std::chrono::seconds kPingPeriod{1};
inline constexpr std::chrono::seconds kServerSilence{5};

inline constexpr uint32_t kMaxInline = 4096;        // bulk bytes that a request may bring along
inline constexpr uint32_t kMaxMessage = 4608;       // bytes of a message, headers included
inline constexpr uint32_t kMaxTransfer = 4U << 20;  // bytes of one bulk buffer
inline constexpr uint32_t kChannelCredits = 32;     // requests in flight per queue pair

// Of sealed messages (message_seal.h): a SEND is the message, behind it the tags of bulk bytes, sealed together; behind
// that its own tag.
inline constexpr uint32_t kTagBytes = 16;
inline constexpr uint32_t kTaggedBytes = 64U << 10;  // bulk bytes to the server that have a tag
constexpr uint32_t TagsOf(uint32_t in_bytes) { return (in_bytes + kTaggedBytes - 1) / kTaggedBytes; }
inline constexpr uint32_t kMaxSealed = kMaxMessage + (TagsOf(kMaxTransfer) + 1) * kTagBytes;  // bytes of a SEND
constexpr uint32_t MaxSend(bool sealed) { return sealed ? kMaxSealed : kMaxMessage; }

// A client rings on its first data queue pair, by an empty SEND, when it has published access counts (heat.h) after a
// pause of kHeatPause or longer. The server, which does not look at those of a client that has published none for twice
// that time, looks again.
inline constexpr std::chrono::seconds kHeatPause{1};

enum Opcode : uint16_t {
  kRead = 1,                 // sparse fetch: region pages into the client's buffer
  kWrite = 2,                // client's buffer into the region; only where the service allows raw writes
  kSetPattern = 3,           // server to client: recognise these patterns (PatternBody)
  kRevokeChunks = 4,         // server to client: forget the keys of frames (RevokeChunksBody)
  kFirstServiceOpcode = 64,  // from here on: the service above tlib (fs/proto)
};

// Of RequestHeader::opcode: the bytes of `in`, of which only the length counts, follow the body.
inline constexpr uint16_t kInline = 0x8000;

// A buffer of the client, in a memory region of it. length 0: none.
struct RemoteBuffer {
  uint64_t offset = 0;  // into the memory region
  uint32_t rkey = 0;
  uint32_t length = 0;
};
static_assert(sizeof(RemoteBuffer) == 16);

struct RequestHeader {
  uint64_t call = 0;   // chosen by the caller, comes back in the reply
  uint64_t epoch = 0;  // of the session
  uint16_t opcode = 0;
  uint16_t slot = 0;  // with `mark`
  uint32_t body_bytes = 0;
  uint64_t mark = 0;  // RequestMark's sequence, and kSentBefore
  RemoteBuffer in;    // bulk bytes from the client, READ by the server
  RemoteBuffer out;   // bulk bytes to the client, WRITTEN by the server before it replies
};
static_assert(sizeof(RequestHeader) == 64);

// By what the service recognises a request that was sent before, over a connection that was lost. A client has slots;
// of one slot it has one request at a time, and its sequences rise.
struct RequestMark {
  static constexpr uint64_t kSentBefore = uint64_t{1} << 63;
  uint64_t sequence = 0;  // below 2^63; 0: the request may be carried out again
  uint16_t slot = 0;
  bool sent_before = false;

  uint64_t Packed() const { return sequence | (sent_before ? kSentBefore : 0); }
  static RequestMark Of(const RequestHeader& header) {
    return {header.mark & ~kSentBefore, header.slot, (header.mark & kSentBefore) != 0};
  }
};

struct ReplyHeader {
  uint64_t call = 0;
  int32_t error = 0;  // errno, 0 when ok
  uint32_t body_bytes = 0;
  uint32_t out_bytes = 0;  // written to RequestHeader::out
  uint32_t reserved = 0;
};
static_assert(sizeof(ReplyHeader) == 24);

// Pages missing from [offset, offset + length): bit i % 64 of word i / 64 set for the i-th page that the range touches.
// The server writes the bytes of exactly those pages to the same places of `out` that a full READ would have filled.
struct ReadBody {
  uint64_t offset = 0;  // into the region
  uint32_t length = 0;  // == out.length
  uint32_t words = 0;   // of the bitmap that follows
};
// Reply body of kRead: bitmap words of the same shape, set for the pages that were in a frame when the server served
// them; the client patches its pulled bitmap with them.

struct WriteBody {
  uint64_t offset = 0;  // into the region
  uint32_t length = 0;  // == in.length
  uint32_t reserved = 0;
};

// The patterns a client must recognise from now on, acknowledged by an empty reply. While the pattern changes there are
// two of them.
struct PatternBody {
  std::byte current[64] = {};
  std::byte former[64] = {};
  uint32_t has_former = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(PatternBody) == 136);

// To a client that validates its READs. It forgets the keys of all chunks of frames, waits for its READs of them, and
// acknowledges with an empty reply; from then on it takes keys only from a RegionInfo of this epoch or a later one.
struct RevokeChunksBody {
  uint64_t epoch = 0;  // RegionInfo.chunk_epoch
};

static_assert(std::is_trivially_copyable_v<RequestHeader> && std::is_trivially_copyable_v<ReplyHeader>);

// On a callback queue pair the server is the caller: the same headers, `in` and `out` empty, opcodes of the service.

}  // namespace termfs::tlib

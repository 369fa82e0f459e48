// SPDX-License-Identifier: Apache-2.0
#include "driver/iwarp/stream.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "base/random.h"
#include "tests/unit/driver/iwarp/end.h"

namespace termfs::driver::iwarp {
namespace {

Bytes FrameOf(Unit unit, std::span<const std::byte> payload, bool with_crc = true) {
  Bytes frame(FrameBytes(unit.op, payload.size()));
  std::copy(payload.begin(), payload.end(), frame.begin() + static_cast<ptrdiff_t>(PayloadAt(unit.op)));
  unit.payload = std::span(frame).subspan(PayloadAt(unit.op), payload.size());
  Seal(unit, with_crc, frame.data());
  return frame;
}

Bytes ReadRequestFrame(uint32_t message, const ReadRequest& request) {
  Bytes payload(kReadRequestBytes);
  Encode(request, payload.data());
  Unit unit{.op = Op::kReadRequest};
  unit.message = message;
  return FrameOf(unit, payload);
}

// What the last frame of `bytes` says.
std::optional<Error> TerminateIn(std::span<const std::byte> bytes) {
  std::optional<Error> error;
  while (const auto length = FrameLength(bytes)) {
    const auto decoded = Decode(bytes.first(*length), true);
    if (const Unit* const unit = std::get_if<Unit>(&decoded)) {
      error = unit->op == Op::kTerminate ? DecodeTerminate(unit->payload) : std::nullopt;
    }
    bytes = bytes.subspan(*length);
  }
  return error;
}

TEST(Stream, Send_ArrivesWhole) {
  Pair pair;
  Bytes text = Pattern(40000, 1);
  Bytes into(50000);
  pair.server.stream.Post(Receive(8, into));
  pair.client.stream.Post(Request(Opcode::kSend, 9, text));
  pair.Run();
  ASSERT_EQ(pair.server.received.size(), 1U);
  EXPECT_EQ(pair.server.received[0].id, 8U);
  EXPECT_EQ(pair.server.received[0].status, WcStatus::kSuccess);
  EXPECT_EQ(pair.server.received[0].byte_len, 40000U);
  EXPECT_TRUE(std::equal(text.begin(), text.end(), into.begin()));
  ASSERT_EQ(pair.client.sent.size(), 1U);
  EXPECT_EQ(pair.client.sent[0].id, 9U);
}

TEST(Stream, EmptySend_Arrives) {
  Pair pair;
  Bytes nothing;
  pair.server.stream.Post(Receive(1, nothing));
  pair.client.stream.Post(Request(Opcode::kSend, 2, nothing));
  pair.Run();
  ASSERT_EQ(pair.server.received.size(), 1U);
  EXPECT_EQ(pair.server.received[0].byte_len, 0U);
}

TEST(Stream, ReadAndWrite_OfAnyPlaceAndLength) {
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{12289}, size_t{65536}, size_t{120000}}) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{8192}}) {
      Pair pair;
      pair.server.memory = Pattern(kMemory, 3);
      Bytes written = Pattern(size, 5);
      Bytes read(size);
      pair.client.stream.Post(Request(Opcode::kRdmaWrite, 1, written, offset));
      pair.client.stream.Post(Request(Opcode::kRdmaRead, 2, read, offset));
      pair.Run();
      EXPECT_EQ(read, written) << size << " bytes at " << offset;
      ASSERT_EQ(pair.client.sent.size(), 2U);
      EXPECT_EQ(pair.client.sent[0].id, 1U);
      EXPECT_EQ(pair.client.sent[1].id, 2U);
      EXPECT_FALSE(pair.client.stream.failed() || pair.server.stream.failed());
    }
  }
}

// A server's messages and its WRITEs follow the client's first unit.
TEST(Stream, TheEndThatWasDialled_WaitsForTheFirstUnit) {
  Pair pair;
  Bytes text = Pattern(10, 1);
  Bytes into(10);
  pair.client.stream.Post(Receive(1, into));
  pair.server.stream.Post(Request(Opcode::kSend, 1, text));
  EXPECT_TRUE(pair.server.Output().empty());
  pair.Run();
  EXPECT_EQ(pair.client.received.size(), 1U);
}

TEST(Stream, Completions_ComeInOrder_WhateverTheyWaitFor) {
  Pair pair;
  Bytes buffer = Pattern(100, 1);
  Bytes into(100);
  pair.server.stream.Post(Receive(1, into));
  pair.client.stream.Post(Request(Opcode::kRdmaRead, 1, buffer));
  pair.client.stream.Post(Request(Opcode::kSend, 2, buffer));
  pair.server.Arrive(pair.client.Output());
  EXPECT_TRUE(pair.client.sent.empty()) << "the SEND waits for the READ";
  EXPECT_EQ(pair.server.received.size(), 1U);
  pair.Run();
  ASSERT_EQ(pair.client.sent.size(), 2U);
  EXPECT_EQ(pair.client.sent[0].id, 1U);
}

TEST(Stream, Fence_HoldsBackUntilTheReadsBeforeHaveCompleted) {
  Pair pair;
  Bytes buffer = Pattern(100, 1);
  Bytes into(100);
  pair.server.stream.Post(Receive(1, into));
  pair.client.stream.Post(Request(Opcode::kRdmaRead, 1, buffer));
  SendWorkRequest fenced = Request(Opcode::kSend, 2, buffer);
  fenced.send_fence = true;
  pair.client.stream.Post(fenced);
  pair.server.Arrive(pair.client.Output());
  EXPECT_TRUE(pair.server.received.empty());
  pair.Run();
  EXPECT_EQ(pair.server.received.size(), 1U);
}

TEST(Stream, Reads_AreAskedForAsManyAtATimeAsWasAgreed) {
  Pair pair({.reads_of_ours = 3});
  std::vector<Bytes> into(10, Bytes(kPageSize));
  for (size_t i = 0; i < into.size(); i++) {
    pair.client.stream.Post(Request(Opcode::kRdmaRead, i, into[i], i * kPageSize));
  }
  pair.server.memory = Pattern(kMemory, 9);
  pair.Run();
  EXPECT_FALSE(pair.server.stream.failed());
  ASSERT_EQ(pair.client.sent.size(), 10U);
  EXPECT_TRUE(std::equal(into[7].begin(), into[7].end(), pair.server.memory.begin() + 7 * kPageSize));
}

TEST(Stream, Reads_AreAskedForAsManyAtATimeAsTheSetUpSays) {
  Pair pair({.dials = true, .reads_of_ours = 8});
  pair.client.stream.SetReadsOfOurs(2);
  std::vector<Bytes> into(5, Bytes(8));
  for (size_t i = 0; i < into.size(); i++) {
    pair.client.stream.Post(Request(Opcode::kRdmaRead, i, into[i]));
  }
  EXPECT_EQ(pair.client.Output().size(),
            FrameBytes(Op::kWrite, 0) + 2 * FrameBytes(Op::kReadRequest, kReadRequestBytes));
}

TEST(Stream, MoreReadsThanAgreed_EndIt) {
  Pair pair;
  End& server = pair.server;
  for (uint32_t i = 1; i <= kMaxReads + 1; i++) {
    server.Arrive(ReadRequestFrame(i, {.sink = {i}, .length = 8, .source = kRkey}));
  }
  EXPECT_TRUE(server.stream.failed());
  EXPECT_EQ(TerminateIn(server.Output()), kNoReceive);
}

// Of a page the bytes are of one moment: the memory is asked for each once.
TEST(Stream, ReadResponse_TakesEachPageOnce) {
  Pair pair;
  int reads = 0;
  pair.server.on_read = [&] { reads++; };
  Bytes into(5 * kPageSize);
  pair.client.stream.Post(Request(Opcode::kRdmaRead, 1, into, 100));
  pair.Run();
  EXPECT_EQ(reads, 6);
}

// Requests and responses alternate.
TEST(Stream, ALongWrite_DoesNotHoldUpResponses) {
  Pair pair;
  Bytes page(kPageSize);
  pair.client.stream.Post(Request(Opcode::kRdmaRead, 1, page));
  pair.server.Arrive(pair.client.Output());
  Bytes much(kMemory / 2);
  for (uint64_t id = 2; id < 4; id++) {
    pair.server.stream.Post(Request(Opcode::kRdmaWrite, id, much));
  }
  Bytes bytes(kMostMessage + kMostMessage / 2);
  bytes.resize(pair.server.stream.Fill(bytes));
  pair.client.Arrive(bytes);
  EXPECT_EQ(pair.client.sent.size(), 1U) << "within what is sent first";
}

TEST(Stream, ASendWithoutAReceive_EndsIt) {
  Pair pair;
  Bytes text = Pattern(10, 1);
  Bytes page(100);
  pair.client.stream.Post(Request(Opcode::kSend, 1, text));
  pair.client.stream.Post(Request(Opcode::kRdmaRead, 2, page));
  pair.Run();
  EXPECT_EQ(pair.server.stream.error(), kNoReceive);
  EXPECT_TRUE(pair.client.stream.failed());
  ASSERT_EQ(pair.client.sent.size(), 2U);
  EXPECT_EQ(pair.client.sent[0].status, WcStatus::kSuccess) << "a SEND completes locally";
  EXPECT_EQ(pair.client.sent[1].status, WcStatus::kRnrRetryExcErr);
}

TEST(Stream, ASendLongerThanItsReceive_EndsIt) {
  Pair pair;
  Bytes text = Pattern(20000, 1);
  Bytes into(19999);
  pair.server.stream.Post(Receive(4, into));
  pair.client.stream.Post(Request(Opcode::kSend, 1, text));
  pair.Run();
  ASSERT_EQ(pair.server.received.size(), 1U);
  EXPECT_EQ(pair.server.received[0].status, WcStatus::kLocLenErr);
  EXPECT_EQ(pair.client.stream.error(), kMessageTooLong);
}

TEST(Stream, AReadThatIsNotAllowed_FailsBehindThoseBefore) {
  Pair pair;
  Bytes good(kPageSize);
  Bytes bad(kPageSize);
  Bytes after(kPageSize);
  pair.client.stream.Post(Request(Opcode::kRdmaRead, 1, good));
  pair.client.stream.Post(Request(Opcode::kRdmaRead, 2, bad, kMemory - 1));
  pair.client.stream.Post(Request(Opcode::kRdmaRead, 3, after));
  pair.Run();
  ASSERT_EQ(pair.client.sent.size(), 3U);
  EXPECT_EQ(pair.client.sent[0].status, WcStatus::kSuccess);
  EXPECT_EQ(pair.client.sent[1].status, WcStatus::kRemAccessErr);
  EXPECT_EQ(pair.client.sent[2].status, WcStatus::kWrFlushErr);
  EXPECT_TRUE(pair.server.stream.failed());
}

TEST(Stream, ARegionThatGoesWhileItIsRead_FailsTheRead) {
  Pair pair;
  Bytes into(5 * kPageSize);
  pair.server.on_read = [&] { pair.server.revoked = true; };
  pair.client.stream.Post(Request(Opcode::kRdmaRead, 1, into));
  pair.Run();
  ASSERT_EQ(pair.client.sent.size(), 1U);
  EXPECT_EQ(pair.client.sent[0].status, WcStatus::kRemAccessErr);
}

TEST(Stream, AWriteThatIsNotAllowed_ChangesNothing_AndEndsIt) {
  Pair pair;
  Bytes bytes = Pattern(100, 1);
  pair.client.stream.Post(Request(Opcode::kRdmaWrite, 1, bytes, kMemory / 2 - 50));
  pair.Run();
  EXPECT_EQ(pair.client.sent.at(0).status, WcStatus::kSuccess) << "a WRITE completes locally";
  EXPECT_TRUE(pair.client.stream.failed());
  EXPECT_EQ(pair.client.stream.error(), kTaggedOfInvalidKey);
  EXPECT_EQ(pair.server.memory, Bytes(kMemory));
  Bytes later(1);
  pair.client.stream.Post(Request(Opcode::kSend, 2, later));
  EXPECT_EQ(pair.client.sent.at(1).status, WcStatus::kWrFlushErr);
}

// What a peer may send as the response to a READ: the next bytes of the oldest one, and nothing else.
TEST(Stream, AReadResponse_ThatDoesNotFit_EndsIt_AndWritesNothing) {
  const auto attempt = [](uint32_t key, uint64_t offset, size_t length, bool last) {
    End client({});
    Bytes first(100);
    Bytes second(100);
    client.stream.Post(Request(Opcode::kRdmaRead, 1, first));
    client.stream.Post(Request(Opcode::kRdmaRead, 2, second));
    const Bytes requests = client.Output();
    Unit unit{.op = Op::kReadResponse, .last = last};
    unit.key = {key};
    unit.offset = offset;
    client.Arrive(FrameOf(unit, Pattern(length, 1)));
    EXPECT_EQ(first, Bytes(100));
    EXPECT_EQ(second, Bytes(100));
    EXPECT_EQ(client.sent.size(), client.stream.failed() ? 2U : 0U);
    return client.stream.failed();
  };
  EXPECT_TRUE(attempt(2, 0, 100, true)) << "the second one first";
  EXPECT_TRUE(attempt(3, 0, 100, true)) << "none that was asked for";
  EXPECT_TRUE(attempt(1, 1, 100, true)) << "not its beginning";
  EXPECT_TRUE(attempt(1, 0, 101, true)) << "too long";
  EXPECT_TRUE(attempt(1, 0, 50, true)) << "too short";
  EXPECT_TRUE(attempt(1, 0, 100, false)) << "there should be more";
}

TEST(Stream, AMessageOutOfOrder_EndsIt) {
  const auto attempt = [](uint32_t message, uint32_t offset) {
    Pair pair;
    Bytes into(100);
    pair.server.stream.Post(Receive(1, into));
    Unit unit{.op = Op::kSend};
    unit.message = message;
    unit.message_offset = offset;
    pair.server.Arrive(FrameOf(unit, Pattern(10, 1)));
    return pair.server.stream.error();
  };
  EXPECT_EQ(attempt(1, 0), std::nullopt);
  EXPECT_EQ(attempt(2, 0), kInvalidMessageNumber);
  EXPECT_EQ(attempt(0, 0), kInvalidMessageNumber);
  EXPECT_EQ(attempt(1, 10), kInvalidMessageOffset);
}

TEST(Stream, ADamagedFrame_EndsIt) {
  Pair pair;
  Bytes into(100);
  pair.server.stream.Post(Receive(1, into));
  Bytes text = Pattern(50, 1);
  pair.client.stream.Post(Request(Opcode::kSend, 1, text));
  Bytes bytes = pair.client.Output();
  bytes.back() ^= std::byte{1};
  pair.server.Arrive(bytes);
  EXPECT_EQ(pair.server.stream.error(), kWrongCrc);
  ASSERT_EQ(pair.server.received.size(), 1U);
  EXPECT_EQ(pair.server.received[0].status, WcStatus::kWrFlushErr);
}

TEST(Stream, Fail_FlushesWhatIsPosted_AndSendsNothing) {
  Pair pair;
  Bytes buffer(100);
  pair.client.stream.Post(Receive(1, buffer));
  pair.client.stream.Post(Request(Opcode::kRdmaRead, 2, buffer));
  pair.client.stream.Post(Request(Opcode::kSend, 3, buffer));
  pair.client.stream.Fail(WcStatus::kRetryExcErr);
  EXPECT_TRUE(pair.client.Output().empty());
  ASSERT_EQ(pair.client.sent.size(), 2U);
  EXPECT_EQ(pair.client.sent[0].status, WcStatus::kRetryExcErr);
  EXPECT_EQ(pair.client.sent[1].status, WcStatus::kWrFlushErr);
  ASSERT_EQ(pair.client.received.size(), 1U);
  EXPECT_EQ(pair.client.received[0].status, WcStatus::kWrFlushErr);
}

// ---------------------------------------------------------------------------------------------------------------
// Anything at random, both ways, in pieces of any length.

class Traffic {
 public:
  explicit Traffic(uint64_t seed)
      : random_(seed),
        pair_({.with_crc = random_.Below(2) == 0,
               .reads_of_ours = 1 + static_cast<uint32_t>(random_.Below(8)),
               .reads_of_peer = 1 + static_cast<uint32_t>(random_.Below(8))}) {
    for (End* const end : {&pair_.client, &pair_.server}) {
      end->memory = Pattern(kMemory, static_cast<unsigned>(seed) + (end == &pair_.server ? 1U : 0U));
    }
  }

  void Run() {
    constexpr int kRequests = 60;
    int posted = 0;
    while (posted < kRequests || busy()) {
      if (posted < kRequests && random_.Below(3) == 0) {
        Post(random_.Below(2) == 0 ? client_ : server_);
        posted++;
      }
      Move(pair_.client, to_server_, pair_.server);
      Move(pair_.server, to_client_, pair_.client);
    }
    ASSERT_FALSE(pair_.client.stream.failed() || pair_.server.stream.failed());
    Check(client_, pair_.server);
    Check(server_, pair_.client);
  }

 private:
  struct Posted {
    SendWorkRequest request;
    Bytes local;
    Bytes expected;  // of a READ, or of the peer's receive
    Bytes into;      // of the peer's receive
  };
  struct Poster {
    End& from;
    End& to;
    std::deque<Posted> posted{};  // whose elements stay where they are
    uint64_t write_at = 0;
  };

  // READs go to the half that never changes; WRITEs to new places each time, so that the end result is known.
  void Post(Poster& poster) {
    Posted& one = poster.posted.emplace_back();
    const auto size = static_cast<size_t>(random_.Below(random_.Below(2) == 0 ? 200 : 20000));
    const uint64_t id = poster.posted.size() - 1;
    switch (random_.Below(3)) {
      case 0: {
        const uint64_t offset = kMemory / 2 + random_.Below(kMemory / 2 - size);
        one.local.resize(size);
        one.expected.assign(poster.to.memory.begin() + static_cast<ptrdiff_t>(offset),
                            poster.to.memory.begin() + static_cast<ptrdiff_t>(offset + size));
        one.request = Request(Opcode::kRdmaRead, id, one.local, offset);
        break;
      }
      case 1:
        one.local = Pattern(std::min(size, kMemory / 2 - poster.write_at), static_cast<unsigned>(id) + 50);
        one.request = Request(Opcode::kRdmaWrite, id, one.local, poster.write_at);
        poster.write_at += one.local.size();
        break;
      default:
        one.local = Pattern(size, static_cast<unsigned>(id) + 90);
        one.expected = one.local;
        one.into.resize(size + random_.Below(100));
        poster.to.stream.Post(Receive(id, one.into));
        one.request = Request(Opcode::kSend, id, one.local);
    }
    one.request.signaled = true;
    one.request.send_fence = random_.Below(5) == 0;
    poster.from.stream.Post(one.request);
  }

  void Move(End& from, Bytes& way, End& to) {
    if (random_.Below(3) != 0) {
      Bytes room(kMostFrameBytes + random_.Below(60000));
      room.resize(from.stream.Fill(room));
      way.insert(way.end(), room.begin(), room.end());
    }
    const auto part = static_cast<size_t>(random_.Below(way.size() + 1));
    const size_t moved = random_.Below(4) == 0 ? way.size() : part;
    to.Arrive(std::span(way).first(moved));
    way.erase(way.begin(), way.begin() + static_cast<ptrdiff_t>(moved));
  }
  bool busy() const {
    return !to_server_.empty() || !to_client_.empty() || pair_.client.stream.has_output() ||
           pair_.server.stream.has_output();
  }

  void Check(const Poster& poster, const End& peer) {
    size_t receives = 0;
    ASSERT_EQ(poster.from.sent.size(), poster.posted.size());
    for (size_t i = 0; i < poster.posted.size(); i++) {
      const Posted& one = poster.posted[i];
      EXPECT_EQ(poster.from.sent[i].id, i);
      EXPECT_EQ(poster.from.sent[i].status, WcStatus::kSuccess);
      switch (one.request.opcode) {
        case Opcode::kRdmaRead:
          EXPECT_EQ(one.local, one.expected);
          break;
        case Opcode::kRdmaWrite:
          EXPECT_TRUE(std::equal(one.local.begin(), one.local.end(),
                                 peer.memory.begin() + static_cast<ptrdiff_t>(one.request.remote_offset)));
          break;
        default: {
          const WorkCompletion& received = peer.received.at(receives++);
          EXPECT_EQ(received.id, i);
          EXPECT_EQ(received.byte_len, one.expected.size());
          EXPECT_TRUE(std::equal(one.expected.begin(), one.expected.end(), one.into.begin()));
        }
      }
    }
    EXPECT_EQ(receives, peer.received.size());
  }

  Random random_;
  Pair pair_;
  Poster client_{pair_.client, pair_.server};
  Poster server_{pair_.server, pair_.client};
  Bytes to_server_;
  Bytes to_client_;
};

TEST(Stream, AnythingAtRandom_ArrivesAsItWasPosted) {
  for (uint64_t seed = 1; seed <= 200; seed++) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Traffic(seed).Run();
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace termfs::driver::iwarp

// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/driver/roce/simulated_link.h"

namespace termfs::driver::roce {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

SendWorkRequest ReadOf(Bytes& to, uint64_t offset) {
  SendWorkRequest request;
  request.opcode = Opcode::kRdmaRead;
  request.local = {.addr = to.data(), .length = static_cast<uint32_t>(to.size())};
  request.remote_offset = offset;
  request.rkey = kRkey;
  return request;
}

SendWorkRequest SendOf(Bytes& from) {
  SendWorkRequest request;
  request.local = {.addr = from.data(), .length = static_cast<uint32_t>(from.size())};
  return request;
}

TEST(RoceConnection, APageIsOnePacketEachWay) {
  SimulatedLink link(1, {}, 4096);
  Bytes page(kPageSize);
  link.a->requester.Post(ReadOf(page, kPageSize));
  ASSERT_TRUE(link.Run([&] { return link.a->sent.size() == 1; }));
  EXPECT_EQ(link.carried, 2U);
  EXPECT_EQ(link.a->sent[0].status, WcStatus::kSuccess);
}

// The page changes whenever some of it was read: what is lost of it is not completed with bytes of a later version.
TEST(RoceConnection, APageIsNeverAMixture) {
  for (uint64_t seed = 0; seed < 400; seed++) {
    SimulatedLink link(seed, {.loss = 0.1,
                              .doubling = seed % 4 < 2 ? 0 : 0.1,
                              .detours = 0.1,
                              .gathering = std::chrono::microseconds(seed % 2 == 0 ? 0 : 600)});
    uint8_t version = 0;
    link.b->on_read = [&] {
      std::fill(link.b->memory.begin(), link.b->memory.end(), static_cast<std::byte>(++version));
    };
    Bytes bytes(12 * kPageSize);
    link.a->requester.Post(ReadOf(bytes, 2 * kPageSize));
    ASSERT_TRUE(link.Run([&] { return link.a->sent.size() == 1; }));
    for (size_t page = 0; page < bytes.size(); page += kPageSize) {
      const auto first = bytes.begin() + static_cast<ptrdiff_t>(page);
      ASSERT_EQ(std::count(first, first + kPageSize, *first), ptrdiff_t{kPageSize}) << "seed " << seed;
    }
  }
}

// Asks an end for its first pages, each at once, by packets that the test makes.
class Asker {
 public:
  static constexpr uint32_t kMtu = 1024;
  static constexpr uint32_t kPackets = kPageSize / kMtu;  // of an answer

  Asker() {
    end_.out = [this](const Bytes& bytes) { answers_.push_back(Decode(bytes)->sequence); };
  }
  void Ask(uint32_t page, uint8_t attempt, const std::function<void(Packet&)>& change = {}) {
    Packet request;
    request.op = Op::kReadRequest;
    request.attempt = attempt;
    request.sequence = (kFirst + page * kPackets) & kSequenceMask;
    request.address = page % (kMemory / kPageSize) * kPageSize;
    request.rkey = kRkey.value;
    request.length = kPageSize;
    if (change) {
      change(request);
      request.sequence &= kSequenceMask;
    }
    end_.responder.OnPacket(request);
  }
  // The sequence numbers of the answers that come, no more than those of so many calls.
  std::vector<uint32_t> Answers(int calls = 1000) {
    while (calls-- > 0 && end_.responder.Continue()) {
    }
    end_.Flush();
    return answers_;
  }
  uint64_t dropped() const { return end_.counters.dropped; }
  bool failed() const { return end_.responder.failed(); }

 private:
  static constexpr uint32_t kFirst = kSequenceMask - 100;  // wraps on the way
  End end_{{.queue_pair = 1, .peer = 2, .first_sequence = 0, .peer_first_sequence = kFirst, .mtu = kMtu}};
  std::vector<uint32_t> answers_;
};

// A READ of that sequence number was carried out, but not this one.
TEST(RoceConnection, ARepeatedReadThatDiffersIsDropped_AndEndsNothing) {
  const auto attempt = [](const std::function<void(Packet&)>& change) {
    Asker asker;
    for (uint32_t page = 0; page < 3; page++) {
      asker.Ask(page, static_cast<uint8_t>(1 + page));
    }
    asker.Answers();
    asker.Ask(1, 50, change);
    EXPECT_FALSE(asker.failed());
    const size_t answered = asker.Answers().size() - 3 * size_t{Asker::kPackets};
    EXPECT_EQ(asker.dropped(), answered == 0 ? 1U : 0U);
    return answered;
  };
  EXPECT_EQ(attempt([](Packet&) {}), Asker::kPackets);
  EXPECT_EQ(attempt([](Packet& packet) {  // the rest of it
              packet.sequence += 3;
              packet.address += 3 * uint64_t{Asker::kMtu};
              packet.length -= 3 * Asker::kMtu;
            }),
            1U);
  EXPECT_EQ(attempt([](Packet& packet) { packet.address += kPageSize; }), 0U);
  EXPECT_EQ(attempt([](Packet& packet) { packet.length *= 2; }), 0U);
  EXPECT_EQ(attempt([](Packet& packet) { packet.rkey++; }), 0U) << "nor is the connection ended for it";
  EXPECT_EQ(attempt([](Packet& packet) { packet.sequence++; }), 0U);
  EXPECT_EQ(attempt([](Packet& packet) { packet.sequence -= 100; }), 0U) << "before the first";
}

TEST(RoceConnection, ARepeatedReadOlderThanWhatIsUnderWayIsDropped) {
  Asker asker;
  for (uint32_t page = 0; page <= kMaxReads; page++) {
    asker.Ask(page, static_cast<uint8_t>(1 + page));
    asker.Answers();
  }
  const size_t answered = asker.Answers().size();
  asker.Ask(0, 100);
  EXPECT_EQ(asker.Answers().size(), answered);
  asker.Ask(1, 101);
  EXPECT_EQ(asker.Answers().size(), answered + Asker::kPackets);
}

// By then a page may have been answered, in part or not at all, and the rest may be of another version.
TEST(RoceConnection, ADoubledRequestIsAnsweredOnce_HoweverLateItComes) {
  for (const int calls : {0, 1, 2, 1000}) {
    for (uint32_t page = 0; page < kMaxReads; page++) {
      Asker asker;
      for (uint32_t i = 0; i < kMaxReads; i++) {
        asker.Ask(i, static_cast<uint8_t>(1 + i));
      }
      asker.Answers(calls);
      asker.Ask(page, static_cast<uint8_t>(1 + page));
      std::vector<uint32_t> answers = asker.Answers();
      EXPECT_EQ(asker.dropped(), 1U) << page;
      ASSERT_EQ(answers.size(), size_t{kMaxReads} * Asker::kPackets) << page << " after " << calls;
      std::sort(answers.begin(), answers.end());
      EXPECT_EQ(std::adjacent_find(answers.begin(), answers.end()), answers.end());
    }
  }
}

TEST(RoceConnection, WhatIsAskedForAgainIsAnswered_HoweverManyRequestsWereLostInBetween) {
  for (uint32_t lost = 0; lost < kMaxReads + kMaxReads / 4; lost++) {
    for (const uint32_t first : {1U, 60U, 127U}) {
      Asker asker;
      asker.Ask(0, static_cast<uint8_t>(first));
      asker.Ask(0, static_cast<uint8_t>((first + lost) % kLastAttempt + 1));
      EXPECT_EQ(asker.dropped(), 0U) << lost;
      EXPECT_EQ(asker.Answers().size(), Asker::kPackets);
    }
  }
}

// What a validated READ stands on: the second look is not taken before the first one is complete, whatever is lost.
TEST(RoceConnection, AFencedReadStartsWhenThoseBeforeItAreComplete) {
  constexpr uint64_t kFenced = 40 * kPageSize;
  for (uint64_t seed = 0; seed < 50; seed++) {
    SimulatedLink link(seed, {.loss = seed % 2 == 0 ? 0 : 0.1, .detours = 0.1});
    Bytes data(3 * kPageSize, std::byte{0});
    Bytes word(8);
    Bytes later(8);
    bool asked = false;
    link.filter = [&](Bytes& bytes, End& to) {
      const auto packet = Decode(bytes);
      if (&to == link.b.get() && packet->op == Op::kReadRequest && packet->address >= kFenced) {
        asked = true;
        EXPECT_EQ(std::count(data.begin(), data.end(), std::byte{7}), static_cast<ptrdiff_t>(data.size()))
            << "seed " << seed;
      }
      return true;
    };
    std::fill(link.b->memory.begin(), link.b->memory.end(), std::byte{7});
    link.a->requester.Post(ReadOf(data, kPageSize));
    SendWorkRequest fenced = ReadOf(word, kFenced);
    fenced.send_fence = true;
    link.a->requester.Post(fenced);
    link.a->requester.Post(ReadOf(later, kFenced + 8));
    ASSERT_TRUE(link.Run([&] { return link.a->sent.size() == 3; }));
    EXPECT_TRUE(asked);
    EXPECT_EQ(word, Bytes(8, std::byte{7}));
  }
}

TEST(RoceConnection, ADeadPeerIsReportedAndTheRestIsFlushed) {
  SimulatedLink link(1, {.loss = 1});
  Bytes bytes(100);
  for (int i = 0; i < 3; i++) {
    link.a->requester.Post(ReadOf(bytes, 0));
  }
  const TimePoint begin = link.now;
  ASSERT_TRUE(link.Run([&] { return link.a->sent.size() == 3; }));
  EXPECT_EQ(link.a->sent[0].status, WcStatus::kRetryExcErr);
  EXPECT_EQ(link.a->sent[1].status, WcStatus::kWrFlushErr);
  EXPECT_EQ(link.a->sent[2].status, WcStatus::kWrFlushErr);
  EXPECT_GT(link.now - begin, milliseconds(500));
  EXPECT_LT(link.now - begin, seconds(20));
  link.a->requester.Post(ReadOf(bytes, 0));
  EXPECT_EQ(link.a->sent.back().status, WcStatus::kWrFlushErr);
}

TEST(RoceConnection, ASendWithoutAReceiveWaitsAndIsThenRefused) {
  SimulatedLink link(1, {}, 1024, milliseconds(300));
  Bytes bytes(100, std::byte{9});
  link.a->requester.Post(SendOf(bytes));
  EXPECT_FALSE(link.Run([&] { return !link.a->sent.empty(); }, milliseconds(200)));
  Bytes receive(100);
  link.b->responder.Post({.id = 5, .local = {.addr = receive.data(), .length = 100}});
  ASSERT_TRUE(link.Run([&] { return !link.a->sent.empty(); }));
  EXPECT_EQ(link.a->sent[0].status, WcStatus::kSuccess);
  EXPECT_EQ(receive, bytes);
  link.a->requester.Post(SendOf(bytes));
  ASSERT_TRUE(link.Run([&] { return link.a->sent.size() == 2; }));
  EXPECT_EQ(link.a->sent[1].status, WcStatus::kRnrRetryExcErr);
}

TEST(RoceConnection, AMessageLongerThanItsReceiveFailsBothEnds) {
  SimulatedLink link(1);
  Bytes bytes(3000);
  Bytes receive(2999);
  link.b->responder.Post({.id = 5, .local = {.addr = receive.data(), .length = 2999}});
  link.b->responder.Post({.id = 6, .local = {.addr = receive.data(), .length = 2999}});
  link.a->requester.Post(SendOf(bytes));
  ASSERT_TRUE(link.Run([&] { return !link.a->sent.empty() && link.b->received.size() == 2; }));
  EXPECT_EQ(link.a->sent[0].status, WcStatus::kRemInvReqErr);
  EXPECT_EQ(link.b->received[0].status, WcStatus::kLocLenErr);
  EXPECT_EQ(link.b->received[1].status, WcStatus::kWrFlushErr);
}

TEST(RoceConnection, WhatIsNotAllowedIsRefusedAndChangesNothing) {
  Bytes bytes(2 * kPageSize, std::byte{1});
  Bytes receive(10);
  SendWorkRequest read = ReadOf(bytes, 0);
  for (int kind = 0; kind < 6; kind++) {
    SCOPED_TRACE(kind);
    SimulatedLink link(1);
    SendWorkRequest request = read;
    switch (kind) {
      case 0:
        request.rkey = {kRkey.value + 1};
        break;
      case 1:
        request.remote_offset = kMemory - kPageSize;
        break;
      case 2:
        request.remote_offset = ~uint64_t{0} - kPageSize;
        break;
      case 3:
        request.opcode = Opcode::kRdmaWrite;
        request.remote_offset = kMemory / 2 - 1;
        break;
      case 4:
        request.opcode = Opcode::kFetchAdd;
        request.remote_offset = kMemory / 2;
        request.swap_or_add = 1;
        break;
      default:
        request.opcode = Opcode::kRdmaWriteWithImm;
        request.remote_offset = kMemory;
        link.b->responder.Post({.id = 1, .local = {.addr = receive.data(), .length = 10}});
    }
    const Bytes before = link.b->memory;
    link.a->requester.Post(request);
    link.a->requester.Post(read);
    ASSERT_TRUE(link.Run([&] { return link.a->sent.size() == 2; }));
    EXPECT_EQ(link.a->sent[0].status, WcStatus::kRemAccessErr);
    EXPECT_EQ(link.a->sent[1].status, WcStatus::kWrFlushErr);
    EXPECT_EQ(link.b->memory, before);
    EXPECT_TRUE(link.b->responder.failed());
  }
}

// What a requester of ours never sends: packets that do not go together.
TEST(RoceConnection, WhatContradictsItselfIsRefused) {
  constexpr uint32_t kFirst = 5;
  Bytes payload(1024, std::byte{1});
  Bytes receive(4096);
  const auto packet = [&](Op op, uint32_t sequence, size_t bytes) {
    Packet made;
    made.op = op;
    made.sequence = kFirst + sequence;
    made.address = kPageSize;
    made.rkey = kRkey.value;
    made.length = 2048;
    made.payload = std::span(payload).first(bytes);
    return made;
  };
  const std::vector<std::vector<Packet>> contradictions = {
      {packet(Op::kWriteFirst, 0, 1024), packet(Op::kWriteMiddle, 1, 1024), packet(Op::kWriteLast, 2, 1024)},
      {packet(Op::kWriteFirst, 0, 1024), packet(Op::kWriteLast, 1, 1000)},
      {packet(Op::kWriteOnly, 0, 1024)},
      {packet(Op::kWriteFirst, 0, 1000)},
      {packet(Op::kWriteFirst, 0, 1024), packet(Op::kSendMiddle, 1, 1024)},
      {packet(Op::kWriteFirst, 0, 1024), packet(Op::kReadRequest, 1, 0)},
      {packet(Op::kWriteFirst, 0, 1024), packet(Op::kFetchAdd, 1, 0)},
      {packet(Op::kSendFirst, 0, 1024), packet(Op::kSendOnly, 1, 4)},
      {packet(Op::kSendMiddle, 0, 1024)},
      {packet(Op::kWriteLast, 0, 4)},
  };
  for (size_t i = 0; i < contradictions.size(); i++) {
    End end({.queue_pair = 1, .peer = 2, .first_sequence = 0, .peer_first_sequence = kFirst, .mtu = 1024});
    end.out = [](const Bytes&) {};
    end.responder.Post({.id = 1, .local = {.addr = receive.data(), .length = 4096}});
    for (const Packet& one : contradictions[i]) {
      EXPECT_FALSE(end.responder.failed()) << i;
      end.responder.OnPacket(one);
    }
    EXPECT_TRUE(end.responder.failed()) << i;
    EXPECT_EQ(std::count(end.memory.begin() + kPageSize + 2048, end.memory.end(), std::byte{0}),
              static_cast<ptrdiff_t>(kMemory - kPageSize - 2048));
  }
}

TEST(RoceConnection, ARegionThatGoesDuringAReadFailsIt) {
  SimulatedLink link(1);
  Bytes bytes(8 * kPageSize);
  int reads = 0;
  link.b->on_read = [&] { link.b->revoked = ++reads == 3; };
  link.a->requester.Post(ReadOf(bytes, 0));
  ASSERT_TRUE(link.Run([&] { return link.a->sent.size() == 1; }));
  EXPECT_EQ(link.a->sent[0].status, WcStatus::kRemAccessErr);
}

// A peer that sends whatever it likes, with numbers that are right or nearly so.
TEST(RoceConnection, ForgedPacketsChangeNothingThatIsNotAllowed) {
  for (uint64_t seed = 0; seed < 300; seed++) {
    SimulatedLink link(seed);
    Random random(seed);
    Bytes bytes(3 * kPageSize, std::byte{1});
    Bytes receive(kPageSize);
    link.b->responder.Post({.id = 1, .local = {.addr = receive.data(), .length = kPageSize}});
    link.b->memory.assign(kMemory, std::byte{5});
    Bytes read(kPageSize);
    link.b->requester.Post(ReadOf(read, 0));
    link.filter = [&](Bytes& packet, End&) {
      if (random.Below(4) == 0) {
        packet[random.Below(packet.size())] ^= static_cast<std::byte>(1 << random.Below(8));
      }
      return Decode(packet).has_value();
    };
    for (int i = 0; i < 4; i++) {
      SendWorkRequest request = ReadOf(bytes, random.Below(kMemory));
      request.opcode = static_cast<Opcode>(random.Below(6));
      link.a->requester.Post(request);
    }
    link.Run([&] { return link.a->sent.size() == 4 && !link.b->sent.empty(); }, seconds(60));
    EXPECT_EQ(std::count(link.b->memory.begin() + kMemory / 2, link.b->memory.end(), std::byte{5}),
              ptrdiff_t{kMemory / 2});
  }
}

TEST(RoceConnection, ALossyLinkIsSlowAndNotStopped) {
  const auto time_of = [](double loss) {
    SimulatedLink link(3, {.loss = loss}, 4096);
    Bytes bytes(32 * kPageSize);
    for (int i = 0; i < 64; i++) {
      link.a->requester.Post(ReadOf(bytes, kMemory / 2));
    }
    const TimePoint begin = link.now;
    EXPECT_TRUE(link.Run([&] { return link.a->sent.size() == 64; }));
    return std::chrono::duration<double>(link.now - begin).count();
  };
  const double clean = time_of(0);
  EXPECT_LT(time_of(0.01), 60 * clean);  // of simulated time
}

}  // namespace
}  // namespace termfs::driver::roce

// SPDX-License-Identifier: Apache-2.0
//
// What two threads can do to each other: page atomicity under a writer, wake-ups that must not get lost, the pattern
// that changes under a reader.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <thread>

#include "base/random.h"
#include "base/streaming_copy.h"
#include "driver/softnic/completion_queue.h"
#include "driver/softnic/page_table.h"
#include "tests/unit/driver/softnic/connection.h"

namespace termfs::driver {
namespace {

class Races : public AnyPath {};
INSTANTIATE_TEST_SUITE_P(Paths, Races, EveryPath(), PathName);

constexpr uint32_t kPages = 4;
constexpr uint32_t kFrames = 8;

Pattern LineOf(int value) {
  Pattern pattern;
  pattern.line.fill(static_cast<std::byte>(value));
  return pattern;
}

// Fills a frame in both ways that a region's owner has, without the thread sanitizer's memcpy: a reader may be copying
// from it, and finds out.
void FillFrame(std::byte* frame, uint64_t value) {
  std::array<uint64_t, kPageSize / 8> bytes;
  bytes.fill(value);
  if ((value >> 8) % 2 == 0) {
    softnic::RacyCopy(frame, bytes.data(), kPageSize);
  } else {
    CopyPageStreaming(frame, reinterpret_cast<const std::byte*>(bytes.data()));
  }
}

// Rewrites, moves and hides pages. Every word of version v of page p is v << 8 | p.
void Churn(TermRegion& term, const std::stop_token& stop) {
  Random random(7);
  std::array<uint32_t, kPages> frame_of{};
  std::vector<uint32_t> free_frames;
  for (uint32_t i = 0; i < kFrames; i++) {
    if (i < kPages) {
      frame_of[i] = i;
    } else {
      free_frames.push_back(i);
    }
  }
  for (uint64_t version = 1; !stop.stop_requested(); version++) {
    const PageIndex page{random.Below(kPages)};
    const uint64_t value = version << 8 | page.value;
    uint32_t& frame = frame_of[page.value];
    if (random.Below(2) == 0) {
      term.BeginWrite(page);
      FillFrame(term.frame({frame}), value);
    } else {
      term.Hide(page);
      free_frames.push_back(frame);
      std::swap(free_frames[random.Below(free_frames.size())], free_frames.back());
      frame = free_frames.back();
      free_frames.pop_back();
      FillFrame(term.frame({frame}), value);
    }
    term.Publish(page, {frame});
  }
}

TEST_P(Races, Read_PageIsNeverAMixture) {
  Connection c;
  TermRegionOptions options;
  options.pages = kPages;
  options.max_pages = 16;
  options.pattern = LineOf(0xee);
  const auto term = c.server.domain->RegisterTermRegion(options).value();
  ASSERT_TRUE(term->Commit({0}, kFrames).ok());
  std::jthread writer([&](const std::stop_token& stop) { Churn(*term, stop); });
  uint64_t magic = 0;
  uint64_t data = 0;
  // Long enough that the writer has had its turns, too.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const int rounds = over_network() ? 5000 : 20000;
  for (int round = 0; round < rounds || (data * magic == 0 && std::chrono::steady_clock::now() < deadline); round++) {
    // All pages in one work request: each is atomic for itself.
    ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, kPages * kPageSize, term->rkey(), 0)),
              WcStatus::kSuccess);
    const auto* words = reinterpret_cast<const uint64_t*>(c.client.memory->data());
    for (uint64_t page = 0; page < kPages; page++) {
      const uint64_t first = words[page * 512];
      ASSERT_TRUE(first == 0xeeeeeeeeeeeeeeeeULL || (first & 0xff) == page) << std::hex << first;
      (first == 0xeeeeeeeeeeeeeeeeULL ? magic : data)++;
      for (int i = 1; i < 512; i++) {
        ASSERT_EQ(words[page * 512 + i], first);
      }
    }
  }
  EXPECT_GT(data, 0u);
  EXPECT_GT(magic, 0u);
}

// The same, in slow motion: the copy stops in the middle, at a destination page that is not there, and the page's owner
// acts at that very moment (in the signal handler; it only stores atomics, fills bytes and calls mprotect).
struct HalfWay {
  TermRegion* term = nullptr;
  std::byte* barrier = nullptr;  // the destination page that stops the copy
  std::byte* frame = nullptr;
  bool hide = false;
  int stops = 0;
};
HalfWay half_way;

void OwnerActs(int, siginfo_t*, void*) {
  half_way.stops++;
  if (half_way.hide) {
    half_way.term->Hide({0});
  } else {
    half_way.term->BeginWrite({0});
  }
  FillFrame(half_way.frame, 2);
  if (!half_way.hide) {
    half_way.term->Publish({0}, {0});
  }
  mprotect(half_way.barrier, kPageSize, PROT_READ | PROT_WRITE);
}

TEST(SoftTermRegion, Read_PageThatChangesHalfWayIsReadAgain) {
  for (const bool hide : {false, true}) {
    Connection c;
    TermRegionOptions options;
    options.pages = options.max_pages = 1;
    options.pattern = LineOf(0xee);
    const auto term = c.server.domain->RegisterTermRegion(options).value();
    ASSERT_TRUE(term->Commit({0}, 1).ok());
    FillFrame(term->frame({0}), 1);
    term->Publish({0}, {0});
    half_way = {term.get(), c.client.memory->data() + kPageSize, term->frame({0}), hide, 0};
    // Resolve the key first, so that nothing but the copy touches the barrier.
    ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, term->rkey(), 0)), WcStatus::kSuccess);
    struct sigaction handler {};
    struct sigaction before {};
    handler.sa_sigaction = OwnerActs;
    handler.sa_flags = SA_SIGINFO;
    ASSERT_EQ(sigaction(SIGSEGV, &handler, &before), 0);
    ASSERT_EQ(mprotect(half_way.barrier, kPageSize, PROT_NONE), 0);
    const WcStatus status =
        c.client.Run(c.client.Request(Opcode::kRdmaRead, kPageSize / 2, kPageSize, term->rkey(), 0));
    ASSERT_EQ(sigaction(SIGSEGV, &before, nullptr), 0);
    EXPECT_EQ(status, WcStatus::kSuccess);
    EXPECT_EQ(half_way.stops, 1);
    const auto* words = reinterpret_cast<const uint64_t*>(c.client.memory->data() + kPageSize / 2);
    for (int i = 0; i < 512; i++) {
      ASSERT_EQ(words[i], hide ? 0xeeeeeeeeeeeeeeeeULL : 2u) << i;
    }
  }
}

TEST(PageTableEntry, Generation_NeverRepeats) {
  PageTableEntry entry{MakeEntry(0, kMagicFrame)};
  uint64_t last = 0;
  for (int i = 0; i < 1000; i++) {
    PublishEntry(entry, 5);
    const uint64_t now = entry.load();
    EXPECT_EQ(FrameOf(now), 5u);
    EXPECT_GT(GenerationOf(now), last);
    last = GenerationOf(now);
    if (i % 3 == 0) {
      HideEntry(entry);
      EXPECT_EQ(FrameOf(entry.load()), kMagicFrame);
    } else if (i % 3 == 1) {
      BeginWriteEntry(entry);
      EXPECT_EQ(FrameOf(entry.load()), kWritingFrame);
    }
  }
}

TEST_P(Races, SetPattern_ReadersNeverSeeAMixture) {
  Connection c;
  TermRegionOptions options;
  options.pages = 1;
  options.max_pages = 1;
  options.pattern = LineOf(0);
  const auto term = c.server.domain->RegisterTermRegion(options).value();
  std::jthread writer([&](const std::stop_token& stop) {
    for (int value = 1; !stop.stop_requested(); value++) {
      ASSERT_TRUE(term->SetPattern(LineOf(value & 0xff)).ok());
    }
  });
  for (int round = 0; round < 20000; round++) {
    ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 256, term->rkey(), 0)), WcStatus::kSuccess);
    for (int i = 1; i < 256; i++) {
      ASSERT_EQ(c.client.memory->data()[i], c.client.memory->data()[0]);
    }
    const Pattern now = term->pattern();
    ASSERT_EQ(now, LineOf(static_cast<int>(now.line[0])));
  }
}

// Sleeps until there is a completion; false after a time that only a lost wake-up takes.
bool SleepFor(CompletionQueue& queue, WorkCompletion* completion) {
  for (;;) {
    if (queue.Poll({completion, 1}) == 1) {
      return true;
    }
    if (!queue.Arm()) {
      continue;
    }
    pollfd waiting{queue.fd(), POLLIN, 0};
    const int ready = poll(&waiting, 1, 60'000);
    queue.Disarm();
    if (ready == 0) {
      return false;
    }
  }
}

bool SleepFor(Side& side, WorkCompletion* completion) { return SleepFor(*side.queue, completion); }

void Echo(Side& side, int rounds, CompletionQueue& receives) {
  for (int i = 0; i < rounds; i++) {
    WorkCompletion completion;
    ASSERT_TRUE(SleepFor(receives, &completion)) << "lost wake-up in round " << i;
    ASSERT_EQ(completion.status, WcStatus::kSuccess);
    ASSERT_TRUE(side.Receive(1, 0, 64).ok());
    SendWorkRequest answer = side.Request(Opcode::kSend, 64, 64, {});
    answer.signaled = false;
    ASSERT_TRUE(side.Send(answer).ok());
  }
}

TEST_P(Races, Arm_NoMessageIsSleptThrough) {
  const int rounds = over_network() ? 3000 : 20000;
  Connection c;
  ASSERT_TRUE(c.server.Receive(1, 0, 64).ok());
  ASSERT_TRUE(c.client.Receive(1, 0, 64).ok());
  std::jthread server([&] { Echo(c.server, rounds, *c.server.queue); });
  SendWorkRequest first = c.client.Request(Opcode::kSend, 64, 64, {});
  first.signaled = false;
  ASSERT_TRUE(c.client.Send(first).ok());
  Echo(c.client, rounds - 1, *c.client.queue);
  WorkCompletion last;
  EXPECT_TRUE(SleepFor(c.client, &last));
}

// What it receives completes in a queue of its own, of which the socket is all there is to wait for.
struct ReceivingSide : Side {
  explicit ReceivingSide(size_t end = 0) : Side(Patient(), end), receives(nic->CreateCompletionQueue(1024).value()) {
    pair.reset();
    options.recv_cq = receives.get();
    pair = domain->CreateQueuePair(options).value();
  }
  ~ReceivingSide() { pair.reset(); }
  const std::unique_ptr<CompletionQueue> receives;
};

TEST_P(Races, Arm_OfReceivesAlone_NoMessageIsSleptThrough) {
  const int rounds = over_network() ? 3000 : 20000;
  ReceivingSide server_side(1);
  ReceivingSide client_side;
  Connect(*client_side.pair, *server_side.pair);
  ASSERT_TRUE(server_side.Receive(1, 0, 64).ok());
  ASSERT_TRUE(client_side.Receive(1, 0, 64).ok());
  std::jthread server([&] { Echo(server_side, rounds, *server_side.receives); });
  SendWorkRequest first = client_side.Request(Opcode::kSend, 64, 64, {});
  first.signaled = false;
  ASSERT_TRUE(client_side.Send(first).ok());
  Echo(client_side, rounds - 1, *client_side.receives);
  WorkCompletion last;
  EXPECT_TRUE(SleepFor(*client_side.receives, &last));
}

// At any moment of falling asleep.
TEST(SoftCompletionQueue, Arm_OfReceivesAlone_LossOfThePeerWakesUp) {
  for (int round = 0; round < 200; round++) {
    ReceivingSide server;
    ReceivingSide client;
    Connect(*client.pair, *server.pair);
    ASSERT_TRUE(client.Receive(1, 0, 8).ok());
    std::jthread closer([&] { server.pair->Close(); });
    WorkCompletion completion;
    ASSERT_TRUE(SleepFor(*client.receives, &completion)) << round;
    EXPECT_EQ(completion.status, WcStatus::kWrFlushErr);
  }
}

// Wake-ups that were sent for a sleep that ended before are no loss and no obstacle.
TEST(SoftCompletionQueue, Arm_OfReceivesAlone_AfterWakeUpsForNothing) {
  ReceivingSide server;
  ReceivingSide client;
  Connect(*client.pair, *server.pair);
  WorkCompletion completion;
  for (int i = 0; i < 40; i++) {  // armed, and never asleep
    ASSERT_TRUE(client.Receive(1, 0, 8).ok());
    ASSERT_TRUE(client.receives->Arm());
    SendWorkRequest send = server.Request(Opcode::kSend, 0, 8, {});
    send.signaled = false;
    ASSERT_TRUE(server.Send(send).ok());
    while (client.receives->Poll({&completion, 1}) == 0) {
    }
  }
  ASSERT_TRUE(client.Receive(1, 0, 8).ok());
  std::jthread closer([&] { server.pair->Close(); });
  ASSERT_TRUE(SleepFor(*client.receives, &completion));
  EXPECT_EQ(completion.status, WcStatus::kWrFlushErr);
}

// What comes through the inlet, now before the queue's thread is asleep, now while it falls asleep, and now after: each
// ends one sleep at most, so that a later one lasts until there is something.
TEST(SoftCompletionQueue, Arm_OfAnInlet_NoWakeUpOutlivesItsSleep) {
  auto queue = softnic::SoftCompletionQueue::Create(16);
  ASSERT_TRUE(queue.ok());
  softnic::SoftCompletionQueue& receives = static_cast<softnic::SoftCompletionQueue&>(**queue);
  auto inlet = receives.AttachToInlet(16);
  ASSERT_TRUE(inlet.ok());
  constexpr int kRounds = 20000;
  std::atomic<int> round{0};
  std::jthread other([&] {
    for (int i = 1; i <= kRounds; i++) {
      while (round.load() < i) {
      }
      (*inlet)->Put(nullptr, {});
      (*inlet)->Wake();
    }
  });
  for (int i = 1; i <= kRounds; i++) {
    round.store(i);
    WorkCompletion completion;
    do {
      receives.Arm();  // and it goes elsewhere, asleep or not
      receives.Disarm();
    } while (receives.Poll({&completion, 1}) == 0);
    int sleeps = 0;
    for (bool ended = true; ended; sleeps++) {
      ASSERT_LT(sleeps, 3) << "round " << i << ": a sleep ends for nothing";
      ASSERT_TRUE(receives.Arm());
      pollfd waited{.fd = receives.fd(), .events = POLLIN, .revents = 0};
      ended = poll(&waited, 1, 0) != 0;
      receives.Disarm();
    }
  }
  receives.Detach(nullptr, 16, false);
}

// The sender runs out of receives all the time and sleeps until there are some.
TEST_P(Races, Arm_NoCreditIsSleptThrough) {
  constexpr int kMessages = 20000;
  QueuePairOptions options = Patient();
  options.max_recv = 2;
  options.rnr_timeout = std::chrono::seconds(60);
  Connection c(options);
  std::jthread server([&] {
    ASSERT_TRUE(c.server.Receive(1, 0, 8).ok());
    for (int i = 0; i < kMessages; i++) {
      WorkCompletion completion;
      ASSERT_TRUE(SleepFor(c.server, &completion)) << i;
      ASSERT_EQ(completion.status, WcStatus::kSuccess);
      ASSERT_TRUE(c.server.Receive(1, 0, 8).ok());
    }
  });
  for (int i = 0; i < kMessages; i++) {
    ASSERT_TRUE(c.client.Send(c.client.Request(Opcode::kSend, 0, 8, {})).ok());
    WorkCompletion completion;
    ASSERT_TRUE(SleepFor(c.client, &completion)) << i;
    ASSERT_EQ(completion.status, WcStatus::kSuccess);
  }
}

TEST_P(Races, Arm_RnrDeadlineWakesUp) {
  if (over_iwarp()) {
    GTEST_SKIP() << "a SEND has completed by then: iwarp_test.cc";
  }
  QueuePairOptions options = Patient();
  options.rnr_timeout = std::chrono::milliseconds(20);
  Connection c(options);
  ASSERT_TRUE(c.client.Send(c.client.Request(Opcode::kSend, 0, 8, {})).ok());
  WorkCompletion completion;
  ASSERT_TRUE(SleepFor(c.client, &completion));
  EXPECT_EQ(completion.status, WcStatus::kRnrRetryExcErr);
}

TEST(SoftCompletionQueue, Arm_LossOfThePeerWakesUp) {
  Connection c;
  ASSERT_TRUE(c.client.Receive(1, 0, 8).ok());
  std::jthread closer([&] { c.server.pair->Close(); });
  WorkCompletion completion;
  ASSERT_TRUE(SleepFor(c.client, &completion));
  EXPECT_EQ(completion.status, WcStatus::kWrFlushErr);
}

TEST(SoftCompletionQueue, Arm_FaultOfAnOdpRegionWakesUp) {
  Connection c;
  TermRegion* region = nullptr;
  TermRegionOptions options;
  options.kind = RegionKind::kOdp;
  options.pages = 512;
  options.max_pages = 512;
  options.fault_handler = [&](PageIndex page) { region->Publish(page, {0}); };
  const auto term = c.server.domain->RegisterTermRegion(options).value();
  region = term.get();
  ASSERT_TRUE(term->Commit({0}, 1).ok());
  for (uint64_t page = 0; page < 512; page++) {
    ASSERT_TRUE(c.client.Send(c.client.Request(Opcode::kRdmaRead, 0, 64, term->rkey(), page * kPageSize)).ok());
    WorkCompletion completion;
    ASSERT_TRUE(SleepFor(c.client, &completion)) << page;
    ASSERT_EQ(completion.status, WcStatus::kSuccess);
  }
}

TEST(SoftCompletionQueue, Poll_ServesManyQueuePairsInTurn) {
  Side server;
  std::vector<std::unique_ptr<Side>> clients;
  std::vector<std::unique_ptr<QueuePair>> pairs;
  QueuePairOptions options = Patient();
  options.max_send = 4;
  options.max_recv = 4;
  for (int i = 0; i < 20; i++) {
    clients.push_back(std::make_unique<Side>(options));
    QueuePairOptions mine = options;
    mine.send_cq = mine.recv_cq = server.queue.get();
    pairs.push_back(server.domain->CreateQueuePair(mine).value());
    Connect(*clients.back()->pair, *pairs.back());
    const RecvWorkRequest receives[2] = {{1, server.Local(0, 8)}, {2, server.Local(0, 8)}};
    ASSERT_TRUE(pairs.back()->PostRecv(receives).ok());
    ASSERT_TRUE(clients.back()->Send(clients.back()->Request(Opcode::kSend, 0, 8, {})).ok());
    ASSERT_TRUE(clients.back()->Send(clients.back()->Request(Opcode::kSend, 0, 8, {})).ok());
  }
  std::map<uint32_t, int> got;
  for (int i = 0; i < 40; i++) {
    const auto completion = server.Wait();
    ASSERT_TRUE(completion);
    got[completion->qp_num]++;
    if (i == 19) {
      EXPECT_EQ(got.size(), 20u) << "one queue pair was served twice before all had their turn";
    }
  }
}

}  // namespace
}  // namespace termfs::driver

// SPDX-License-Identifier: Apache-2.0
//
// What a server with many queue pairs needs: receives that they share, completion queues that grow, queue pairs that
// rest, and inboxes that take memory by what is under way.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

#include "tests/unit/driver/softnic/connection.h"

namespace termfs::driver {
namespace {

constexpr uint32_t kMessage = 1024;

class ManyQueuePairs : public AnyPath {};
INSTANTIATE_TEST_SUITE_P(Paths, ManyQueuePairs, EveryPath(), PathName);

QueuePairOptions Small() {
  QueuePairOptions options = Patient();
  options.max_send = 16;
  options.max_recv = 16;
  options.max_message = kMessage;
  return options;
}

// One end with a completion queue and a shared receive queue, and many queue pairs.
struct SharingSide {
  explicit SharingSide(uint32_t receives, uint32_t capacity = 1024) {
    nic = MakeNic(1);
    path = PathOf(1);
    acceptor = AcceptorFor(*nic, path);
    domain = nic->CreateProtectionDomain().value();
    queue = nic->CreateCompletionQueue(capacity).value();
    memory = nic->AllocateMemory({.bytes = size_t{receives} * kMessage}).value();
    region = domain->RegisterMemory(memory->data(), memory->size(), Access::kLocalWrite).value();
    shared = domain
                 ->CreateSharedReceiveQueue(
                     {.max_recv = receives, .max_message = kMessage, .network = test_path.has_value()})
                 .value();
  }

  Status Post(uint64_t id) {
    const RecvWorkRequest request{id, {memory->data() + id * kMessage, kMessage, region->lkey()}};
    return shared->PostRecv({&request, 1});
  }
  Result<std::unique_ptr<QueuePair>> Create() {
    QueuePairOptions options = Small();
    options.send_cq = options.recv_cq = queue.get();
    options.shared_receives = shared.get();
    options.network = path;
    return domain->CreateQueuePair(options);
  }
  // The other end of `client`.
  QueuePair& Accept(Side& client) {
    pairs.push_back(Create().value());
    Connect(*client.pair, *pairs.back());
    return *pairs.back();
  }
  std::string Message(const WorkCompletion& completion) {
    return {reinterpret_cast<const char*>(memory->data()) + completion.id * kMessage, completion.byte_len};
  }
  std::optional<WorkCompletion> Wait() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    WorkCompletion completion;
    while (std::chrono::steady_clock::now() < deadline) {
      if (queue->Poll({&completion, 1}) == 1) {
        return completion;
      }
      if (queue->Arm()) {
        pollfd waiting{queue->fd(), POLLIN, 0};
        poll(&waiting, 1, 100);
      }
      queue->Disarm();
    }
    ADD_FAILURE() << "no completion";
    return std::nullopt;
  }

  std::unique_ptr<Nic> nic;
  std::optional<NetworkPath> path;
  std::unique_ptr<TlsAcceptor> acceptor;
  std::unique_ptr<ProtectionDomain> domain;
  std::unique_ptr<CompletionQueue> queue;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<MemoryRegion> region;
  std::unique_ptr<SharedReceiveQueue> shared;
  std::vector<std::unique_ptr<QueuePair>> pairs;
};

void SendText(Side& client, const std::string& text) {
  memcpy(client.memory->data(), text.data(), text.size());
  ASSERT_EQ(client.Run(client.Request(Opcode::kSend, 0, static_cast<uint32_t>(text.size()), {})), WcStatus::kSuccess);
}

TEST_P(ManyQueuePairs, SharedReceives_AreTakenByAnyQueuePair) {
  SharingSide server(2);
  ASSERT_TRUE(server.Post(0).ok());
  ASSERT_TRUE(server.Post(1).ok());
  EXPECT_EQ(server.Post(1).code(), ENOMEM);
  std::vector<std::unique_ptr<Side>> clients;
  for (int i = 0; i < 3; i++) {
    clients.push_back(std::make_unique<Side>(Small()));
    server.Accept(*clients.back());
  }
  for (int round = 0; round < 40; round++) {
    const size_t from = static_cast<size_t>(round) % clients.size();
    const std::string text(round % 2 == 0 ? 10 : 900, static_cast<char>('a' + round % 26));
    SendText(*clients[from], text);
    const auto received = server.Wait();
    ASSERT_TRUE(received.has_value());
    ASSERT_EQ(received->status, WcStatus::kSuccess);
    EXPECT_EQ(received->qp_num, server.pairs[from]->number());
    EXPECT_EQ(server.Message(*received), text);
    ASSERT_TRUE(server.Post(received->id).ok());
  }
}

TEST_P(ManyQueuePairs, SharedReceives_WhileThereIsNoneMessagesWait) {
  SharingSide server(1);
  ASSERT_TRUE(server.Post(0).ok());
  Side one(Small());
  Side two(Small());
  server.Accept(one);
  server.Accept(two);
  ASSERT_TRUE(one.Send(one.Request(Opcode::kSend, 0, 100, {})).ok());
  ASSERT_TRUE(two.Send(two.Request(Opcode::kSend, 0, 100, {})).ok());
  const auto first = server.Wait();
  ASSERT_TRUE(first && first->status == WcStatus::kSuccess);
  WorkCompletion none;
  EXPECT_EQ(server.queue->Poll({&none, 1}), 0U);
  ASSERT_TRUE(server.Post(0).ok());
  const auto second = server.Wait();
  ASSERT_TRUE(second && second->status == WcStatus::kSuccess);
  EXPECT_NE(first->qp_num, second->qp_num);
}

TEST_P(ManyQueuePairs, SharedReceives_AQueuePairPostsNone) {
  SharingSide server(1);
  Side client(Small());
  QueuePair& pair = server.Accept(client);
  const RecvWorkRequest own{1, {server.memory->data(), kMessage, server.region->lkey()}};
  EXPECT_EQ(pair.PostRecv({&own, 1}).code(), EINVAL);
  const RecvWorkRequest shorter{1, {server.memory->data(), kMessage - 1, server.region->lkey()}};
  EXPECT_EQ(server.shared->PostRecv({&shorter, 1}).code(), EINVAL);
}

// No receive is lost with a queue pair: those that its messages took complete also when it is gone.
TEST(SharedReceives, QueuePairIsGone_TakenReceivesComplete) {
  SetPath("");
  SharingSide server(8);
  for (uint64_t id = 0; id < 8; id++) {
    ASSERT_TRUE(server.Post(id).ok());
  }
  auto client = std::make_unique<Side>(Small());
  server.Accept(*client);
  for (int i = 0; i < 3; i++) {
    SendText(*client, "message");
  }
  client.reset();
  WorkCompletion completion;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (server.pairs[0]->connected() && std::chrono::steady_clock::now() < deadline) {
    usleep(1000);
  }
  std::set<uint64_t> ids;
  ASSERT_EQ(server.queue->Poll({&completion, 1}), 1U);
  ids.insert(completion.id);
  server.pairs.clear();
  while (server.queue->Poll({&completion, 1}) == 1) {
    EXPECT_NE(completion.id, kNoReceive);
    ids.insert(completion.id);
  }
  EXPECT_EQ(ids.size(), 3U);
}

TEST(SharedReceives, PeerIsGone_OneCompletionSaysSo) {
  SetPath("");
  SharingSide server(2);
  ASSERT_TRUE(server.Post(0).ok());
  auto client = std::make_unique<Side>(Small());
  QueuePair& pair = server.Accept(*client);
  client.reset();
  const auto told = server.Wait();
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->id, kNoReceive);
  EXPECT_EQ(told->status, WcStatus::kWrFlushErr);
  EXPECT_EQ(told->qp_num, pair.number());
  WorkCompletion none;
  EXPECT_EQ(server.queue->Poll({&none, 1}), 0U) << "the receive is still posted";
  Side another(Small());
  server.Accept(another);
  SendText(another, "still there");
  const auto received = server.Wait();
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(server.Message(*received), "still there");
}

TEST_P(ManyQueuePairs, CompletionQueue_GrowsAndShrinks) {
  SharingSide server(1, /*capacity=*/20);
  auto first = server.Create();  // 16 sends, and one for its end
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(server.Create().status().code(), ENOMEM);
  ASSERT_TRUE(server.queue->Resize(1000).ok());
  auto second = server.Create();
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_EQ(server.queue->Resize(20).code(), EINVAL) << "the two may fill more";
  EXPECT_EQ(server.queue->Resize(UINT32_MAX).code(), EINVAL);
  second->reset();
  EXPECT_TRUE(server.queue->Resize(20).ok());
}

// More completions than the ring began with, none polled meanwhile.
TEST(CompletionQueue, HoldsAllThatWait) {
  SetPath("");
  QueuePairOptions options = Patient();
  options.max_send = 1000;
  auto nic = CreateSoftNic().value();
  auto domain = nic->CreateProtectionDomain().value();
  auto queue = nic->CreateCompletionQueue(4096).value();
  auto memory = nic->AllocateMemory({.bytes = 4096}).value();
  auto region = domain->RegisterMemory(memory->data(), memory->size(), kAllAccess).value();
  options.send_cq = options.recv_cq = queue.get();
  auto one = domain->CreateQueuePair(options).value();
  auto two = domain->CreateQueuePair(options).value();
  Connect(*one, *two);
  uint64_t posted = 0;
  uint64_t polled = 0;
  const auto post = [&](uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
      SendWorkRequest write{.id = posted++, .opcode = Opcode::kRdmaWrite};
      write.local = {memory->data(), 8, region->lkey()};
      write.rkey = region->rkey();
      ASSERT_TRUE(one->PostSend({&write, 1}).ok());
    }
  };
  const auto poll_some = [&](uint64_t until) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (polled < until && std::chrono::steady_clock::now() < deadline) {
      WorkCompletion completion;
      if (queue->Poll({&completion, 1}) == 1) {
        ASSERT_EQ(completion.id, polled);
        ASSERT_EQ(completion.status, WcStatus::kSuccess);
        polled++;
      }
    }
  };
  post(100);
  poll_some(37);
  post(900);
  poll_some(posted);
  EXPECT_EQ(polled, 1000U);
}

// A queue pair that rests is not looked at; what its peer sends is taken all the same, by a queue that is polled and by
// one that sleeps.
TEST(RestingQueuePairs, AreWokenByTheirPeers) {
  SetPath("");
  SharingSide server(32);
  for (uint64_t id = 0; id < 32; id++) {
    ASSERT_TRUE(server.Post(id).ok());
  }
  std::vector<std::unique_ptr<Side>> clients;
  for (int i = 0; i < 24; i++) {
    clients.push_back(std::make_unique<Side>(Small()));
    server.Accept(*clients.back());
  }
  WorkCompletion completion;
  const auto let_rest = [&] {
    for (int i = 0; i < 1 << 18; i++) {
      ASSERT_EQ(server.queue->Poll({&completion, 1}), 0U);
    }
  };
  const auto take = [&](size_t from) {
    ASSERT_EQ(completion.status, WcStatus::kSuccess);
    EXPECT_EQ(completion.qp_num, server.pairs[from]->number());
    ASSERT_TRUE(server.Post(completion.id).ok());
  };
  for (size_t round = 0; round < 3; round++) {
    let_rest();
    for (size_t from = 0; from < clients.size(); from++) {  // polled
      SendText(*clients[from], "rested");
      int polls = 0;
      while (server.queue->Poll({&completion, 1}) == 0) {
        ASSERT_LT(++polls, 1 << 16) << "never seen";
      }
      take(from);
    }
    let_rest();
    for (size_t from = 0; from < clients.size(); from += 5) {  // asleep
      ASSERT_TRUE(server.queue->Arm());
      SendText(*clients[from], "rested");
      pollfd waiting{server.queue->fd(), POLLIN, 0};
      ASSERT_EQ(poll(&waiting, 1, 60'000), 1) << "not woken";
      server.queue->Disarm();
      ASSERT_EQ(server.queue->Poll({&completion, 1}), 1U);
      take(from);
    }
  }
  // One that rests sends, and finds no receive at its peer at first.
  let_rest();
  ASSERT_TRUE(server.memory != nullptr);
  const SendWorkRequest send{
      .id = 1, .opcode = Opcode::kSend, .local = {server.memory->data(), 8, server.region->lkey()}};
  ASSERT_TRUE(server.pairs[3]->PostSend({&send, 1}).ok());
  EXPECT_EQ(server.queue->Poll({&completion, 1}), 0U);
  ASSERT_TRUE(clients[3]->Receive(9, 0, 64).ok());
  const auto sent = server.Wait();
  ASSERT_TRUE(sent && sent->status == WcStatus::kSuccess);
  // And the end of one that rests is noticed.
  let_rest();
  clients[7].reset();
  const auto gone = server.Wait();
  ASSERT_TRUE(gone.has_value());
  EXPECT_EQ(gone->id, kNoReceive);
  EXPECT_EQ(gone->qp_num, server.pairs[7]->number());
}

// Bytes of all inboxes that are in memory, as this process maps them: each by its owner and by the peer.
size_t InboxBytes() {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inbox = false;
  size_t kib = 0;
  while (std::getline(maps, line)) {
    if (line.find('-') < line.find(' ')) {
      inbox = line.find("softnic-inbox") != std::string::npos;
    } else if (inbox && line.starts_with("Rss:")) {
      kib += std::stoul(line.substr(4));
    }
  }
  return kib << 10;
}

TEST(Inbox, TakesMemoryByWhatIsUnderWay) {
  SetPath("");
  const size_t before = InboxBytes();
  QueuePairOptions options = Patient();
  options.max_recv = 64;
  options.max_message = 4608;
  Connection c(options);
  const auto exchange = [&](uint32_t length, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
      ASSERT_TRUE(c.server.Receive(i, 8192 * i, 4608).ok());
    }
    for (uint64_t i = 0; i < count; i++) {
      ASSERT_TRUE(c.client.Send(c.client.Request(Opcode::kSend, i, length, {})).ok());
    }
    for (uint64_t i = 0; i < count; i++) {
      ASSERT_EQ(c.client.WaitStatus(), WcStatus::kSuccess);
    }
    for (uint64_t i = 0; i < count; i++) {
      const auto received = c.server.Wait();
      ASSERT_TRUE(received && received->status == WcStatus::kSuccess);
      ASSERT_EQ(received->id, i);
      ASSERT_EQ(memcmp(c.server.memory->data() + 8192 * i, c.client.memory->data() + i, length), 0) << i;
    }
  };
  for (size_t i = 0; i < c.client.memory->size(); i++) {
    c.client.memory->data()[i] = static_cast<std::byte>(i * 31 >> 3);
  }
  for (int round = 0; round < 200; round++) {
    exchange(4000, 1);
  }
  EXPECT_LE(InboxBytes() - before, 128U << 10);
  exchange(4608, 50);  // each lies in a place of its own
  EXPECT_GE(InboxBytes() - before, 2 * 50 * 4096U);
  for (int round = 0; round < 20; round++) {
    exchange(4001, 7);
    exchange(224, 9);
    exchange(225, 64);
  }
}

}  // namespace
}  // namespace termfs::driver

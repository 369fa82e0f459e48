// SPDX-License-Identifier: Apache-2.0
//
// Every operation and every completion status, between two RNICs of one process: software RNICs through shared memory
// and over the loopback interface; and where there is an RDMA device (connection.h), that with itself and with a
// software RNIC.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/unit/driver/softnic/connection.h"

namespace termfs::driver {
namespace {

class QueuePairs : public AnyPath {};
INSTANTIATE_TEST_SUITE_P(Paths, QueuePairs, EveryPath(), PathName);

void Put(Side& side, size_t offset, const std::string& text) {
  memcpy(side.memory->data() + offset, text.data(), text.size());
}
std::string Get(Side& side, size_t offset, size_t length) {
  return {reinterpret_cast<const char*>(side.memory->data()) + offset, length};
}
uint64_t& Word(Side& side, size_t offset) { return *reinterpret_cast<uint64_t*>(side.memory->data() + offset); }

TEST_P(QueuePairs, Read_DeliversRemoteBytes) {
  Connection c;
  Put(c.server, 5000, "fetched");
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 100, 7, c.server.region->rkey(), 5000)),
            WcStatus::kSuccess);
  EXPECT_EQ(Get(c.client, 100, 7), "fetched");
}

TEST_P(QueuePairs, Write_ChangesRemoteBytesOnlyThere) {
  Connection c;
  Put(c.server, 0, "aaaaaaaa");
  Put(c.client, 0, "bb");
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaWrite, 0, 2, c.server.region->rkey(), 3)), WcStatus::kSuccess);
  // Over iWARP the WRITE was only sent by now.
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 8, 1, c.server.region->rkey(), 0)), WcStatus::kSuccess);
  EXPECT_EQ(Get(c.server, 0, 8), "aaabbaaa");
}

TEST_P(QueuePairs, CompareSwap_SwapsOnlyWhenEqual) {
  if (over_iwarp()) {
    GTEST_SKIP() << "iWARP has none: iwarp_test.cc";
  }
  Connection c;
  Word(c.server, 64) = 7;
  SendWorkRequest request = c.client.Request(Opcode::kCompareSwap, 0, 8, c.server.region->rkey(), 64);
  request.compare = 8;
  request.swap_or_add = 9;
  EXPECT_EQ(c.client.Run(request), WcStatus::kSuccess);
  EXPECT_EQ(Word(c.client, 0), 7u);
  EXPECT_EQ(Word(c.server, 64), 7u);
  request.compare = 7;
  EXPECT_EQ(c.client.Run(request), WcStatus::kSuccess);
  EXPECT_EQ(Word(c.client, 0), 7u);
  EXPECT_EQ(Word(c.server, 64), 9u);
}

TEST_P(QueuePairs, FetchAdd_AddsAndReturnsTheValueBefore) {
  if (over_iwarp()) {
    GTEST_SKIP() << "iWARP has none: iwarp_test.cc";
  }
  Connection c;
  Word(c.server, 8) = 40;
  SendWorkRequest request = c.client.Request(Opcode::kFetchAdd, 0, 8, c.server.region->rkey(), 8);
  request.swap_or_add = 2;
  EXPECT_EQ(c.client.Run(request), WcStatus::kSuccess);
  EXPECT_EQ(Word(c.client, 0), 40u);
  EXPECT_EQ(Word(c.server, 8), 42u);
}

TEST_P(QueuePairs, Atomic_MisalignedIsInvalid) {
  if (over_iwarp()) {
    GTEST_SKIP() << "iWARP has none: iwarp_test.cc";
  }
  Connection c;
  const WcStatus status = c.client.Run(c.client.Request(Opcode::kFetchAdd, 0, 8, c.server.region->rkey(), 4));
  if (test_ends) {
    EXPECT_NE(status, WcStatus::kSuccess);  // Soft-RoCE says it in another way, or not at all
  } else {
    EXPECT_EQ(status, WcStatus::kRemInvReqErr);
  }
}

TEST_P(QueuePairs, Atomic_WrongLengthIsALengthError) {
  if (over_iwarp()) {
    GTEST_SKIP() << "iWARP has none: iwarp_test.cc";
  }
  Connection c;
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kFetchAdd, 0, 4, c.server.region->rkey(), 8)), WcStatus::kLocLenErr);
}

TEST_P(QueuePairs, Send_ArrivesInOrderOfPostedReceives) {
  Connection c;
  ASSERT_TRUE(c.server.Receive(70, 0, 64).ok());
  ASSERT_TRUE(c.server.Receive(71, 64, 64).ok());
  Put(c.client, 0, "firstsecond");
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kSend, 0, 5, {})), WcStatus::kSuccess);
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kSend, 5, 6, {})), WcStatus::kSuccess);
  const auto first = c.server.Wait();
  const auto second = c.server.Wait();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->id, 70u);
  EXPECT_EQ(first->opcode, Opcode::kRecv);
  EXPECT_EQ(first->byte_len, 5u);
  EXPECT_EQ(first->qp_num, c.server.pair->number());
  EXPECT_FALSE(first->has_imm);
  EXPECT_EQ(second->id, 71u);
  EXPECT_EQ(Get(c.server, 0, 5), "first");
  EXPECT_EQ(Get(c.server, 64, 6), "second");
}

TEST_P(QueuePairs, Send_ManyTimesRoundTheRing) {
  QueuePairOptions options = Patient();
  options.max_recv = 3;  // not a power of two
  Connection c(options);
  for (uint64_t i = 0; i < 1000; i++) {
    Word(c.client, 0) = i;
    ASSERT_TRUE(c.server.Receive(i, 8 * (i % 5), 8).ok());
    ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kSend, 0, 8, {})), WcStatus::kSuccess);
    const auto got = c.server.Wait();
    ASSERT_TRUE(got);
    EXPECT_EQ(got->id, i);
    EXPECT_EQ(Word(c.server, 8 * (i % 5)), i);
  }
}

TEST_P(QueuePairs, Send_EmptyMessage) {
  Connection c;
  ASSERT_TRUE(c.server.Receive(1, 0, 0).ok());
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kSend, 0, 0, {})), WcStatus::kSuccess);
  const auto got = c.server.Wait();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->status, WcStatus::kSuccess);
  EXPECT_EQ(got->byte_len, 0u);
}

TEST_P(QueuePairs, Send_UnsignaledCompletesSilently) {
  Connection c;
  for (int i = 0; i < 1000; i++) {  // many times max_send
    ASSERT_TRUE(c.server.Receive(1, 0, 8).ok());
    SendWorkRequest request = c.client.Request(Opcode::kSend, 0, 8, {});
    request.signaled = false;
    Status sent = c.client.Send(request);
    WorkCompletion none;
    while (over_network() && sent.code() == ENOMEM) {  // acknowledges are on their way
      ASSERT_EQ(c.client.queue->Poll({&none, 1}), 0u);
      sent = c.client.Send(request);
    }
    ASSERT_TRUE(sent.ok());
    ASSERT_EQ(c.server.WaitStatus(), WcStatus::kSuccess);
  }
  WorkCompletion none;
  EXPECT_EQ(c.client.queue->Poll({&none, 1}), 0u);
}

TEST_P(QueuePairs, WriteWithImm_WritesAndConsumesAReceive) {
  if (over_iwarp()) {
    GTEST_SKIP() << "iWARP has none: iwarp_test.cc";
  }
  Connection c;
  ASSERT_TRUE(c.server.Receive(5, 0, 0).ok());
  Put(c.client, 0, "imm");
  SendWorkRequest request = c.client.Request(Opcode::kRdmaWriteWithImm, 0, 3, c.server.region->rkey(), 900);
  request.imm = 0xfeed;
  EXPECT_EQ(c.client.Run(request), WcStatus::kSuccess);
  const auto got = c.server.Wait();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->opcode, Opcode::kRecv);
  EXPECT_TRUE(got->has_imm);
  EXPECT_EQ(got->imm, 0xfeedu);
  EXPECT_EQ(got->byte_len, 3u);
  EXPECT_EQ(Get(c.server, 900, 3), "imm");
}

TEST_P(QueuePairs, Send_WaitsForALateReceive) {
  if (over_iwarp()) {
    GTEST_SKIP() << "a SEND or WRITE has completed by then: iwarp_test.cc";
  }
  Connection c;
  Put(c.client, 0, "late");
  ASSERT_TRUE(c.client.Send(c.client.Request(Opcode::kSend, 0, 4, {})).ok());
  SendWorkRequest read = c.client.Request(Opcode::kRdmaRead, 8, 4, c.server.region->rkey(), 0);
  ASSERT_TRUE(c.client.Send(read).ok());  // stays behind the SEND
  WorkCompletion none;
  EXPECT_EQ(c.client.queue->Poll({&none, 1}), 0u);
  ASSERT_TRUE(c.server.Receive(1, 0, 16).ok());
  const auto sent = c.client.Wait();
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->opcode, Opcode::kSend);
  EXPECT_EQ(c.client.WaitStatus(), WcStatus::kSuccess);
  EXPECT_EQ(c.server.WaitStatus(), WcStatus::kSuccess);
  EXPECT_EQ(Get(c.server, 0, 4), "late");
}

TEST_P(QueuePairs, Send_NoReceiveInTimeIsRnr) {
  if (over_iwarp()) {
    GTEST_SKIP() << "a SEND or WRITE has completed by then: iwarp_test.cc";
  }
  QueuePairOptions options = Patient();
  options.rnr_timeout = std::chrono::milliseconds(5);
  Connection c(options);
  ASSERT_TRUE(c.client.Send(c.client.Request(Opcode::kSend, 0, 4, {})).ok());
  ASSERT_TRUE(c.client.Send(c.client.Request(Opcode::kSend, 0, 4, {})).ok());
  WorkCompletion completion;
  while (c.client.queue->Poll({&completion, 1}) == 0) {  // sooner than who sleeps for it
  }
  EXPECT_FALSE(c.client.pair->connected());
  EXPECT_EQ(completion.status, WcStatus::kRnrRetryExcErr);
  EXPECT_EQ(c.client.WaitStatus(), WcStatus::kWrFlushErr);
}

TEST_P(QueuePairs, Send_LongerThanTheReceiveFailsOnBothSides) {
  Connection c;
  ASSERT_TRUE(c.server.Receive(1, 0, 8).ok());
  const WcStatus status = c.client.Run(c.client.Request(Opcode::kSend, 0, 9, {}));
  const WcStatus received = c.server.WaitStatus();
  if (test_ends && test_ends->verbs[1]) {  // Soft-RoCE has other words for it
    EXPECT_NE(status, WcStatus::kSuccess);
    EXPECT_NE(received, WcStatus::kSuccess);
  } else {
    EXPECT_EQ(status, over_iwarp() ? WcStatus::kSuccess : WcStatus::kRemInvReqErr);
    EXPECT_EQ(received, WcStatus::kLocLenErr);
  }
}

TEST_P(QueuePairs, Send_LongerThanMaxMessageIsALengthError) {
  Connection c;
  ASSERT_TRUE(c.server.Receive(1, 0, 8192).ok());
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kSend, 0, 4097, {})), WcStatus::kLocLenErr);
}

TEST_P(QueuePairs, PostSend_MoreThanMaxSendPostsNothing) {
  QueuePairOptions options = Patient();
  options.max_send = 4;
  Connection c(options);
  std::vector<SendWorkRequest> requests;
  for (int i = 0; i < 3; i++) {
    requests.push_back(c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0));
  }
  ASSERT_TRUE(c.client.pair->PostSend(requests).ok());
  EXPECT_EQ(c.client.pair->PostSend(requests).code(), ENOMEM);
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(c.client.WaitStatus(), WcStatus::kSuccess);
  }
  ASSERT_TRUE(c.client.pair->PostSend(requests).ok());
}

TEST_P(QueuePairs, PostRecv_MoreThanMaxRecvPostsNothing) {
  QueuePairOptions options = Patient();
  options.max_recv = 2;
  Connection c(options);
  ASSERT_TRUE(c.server.Receive(1, 0, 8).ok());
  ASSERT_TRUE(c.server.Receive(2, 0, 8).ok());
  EXPECT_EQ(c.server.Receive(3, 0, 8).code(), ENOMEM);
}

TEST_P(QueuePairs, CreateQueuePair_BeyondTheCompletionQueueFails) {
  Side side;
  QueuePairOptions options = side.options;
  options.max_send = 1000;
  EXPECT_EQ(side.domain->CreateQueuePair(options).status().code(), ENOMEM);
}

TEST_P(QueuePairs, Local_KeyMustCoverTheBuffer) {
  for (const size_t length : {size_t{1} << 20, (size_t{1} << 20) + 1}) {
    Connection c;
    const WcStatus status = c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, length, c.server.region->rkey(), 0));
    if (length > size_t{1} << 20 && test_ends) {
      EXPECT_NE(status, WcStatus::kSuccess);  // too long at both ends: one of them says so first
    } else {
      EXPECT_EQ(status, length == (size_t{1} << 20) ? WcStatus::kSuccess : WcStatus::kLocProtErr);
    }
  }
}

TEST_P(QueuePairs, Local_ReadIntoMemoryWithoutLocalWriteFails) {
  Connection c;
  auto read_only = c.client.domain->RegisterMemory(c.client.memory->data(), 4096, Access::kRemoteRead).value();
  SendWorkRequest request = c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0);
  request.local.lkey = read_only->lkey();
  EXPECT_EQ(c.client.Run(request), WcStatus::kLocProtErr);
}

TEST_P(QueuePairs, Local_KeyOfADeregisteredRegionFails) {
  Connection c;
  SendWorkRequest request = c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0);
  EXPECT_EQ(c.client.Run(request), WcStatus::kSuccess);
  c.client.region.reset();
  EXPECT_EQ(c.client.Run(request), WcStatus::kLocProtErr);
}

TEST_P(QueuePairs, Remote_UnknownKeyIsAnAccessError) {
  Connection c;
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, RKey{c.server.region->rkey().value ^ 1}, 0)),
            WcStatus::kRemAccessErr);
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0)),
            WcStatus::kWrFlushErr);  // the error state lasts
}

TEST_P(QueuePairs, Remote_OutOfBoundsIsAnAccessError) {
  const uint64_t size = uint64_t{1} << 20;
  for (const uint64_t offset : {size - 7, size, ~uint64_t{0} - 3}) {
    Connection c;
    EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), offset)),
              WcStatus::kRemAccessErr);
  }
}

TEST_P(QueuePairs, Remote_AccessThatTheOwnerDoesNotGrantFails) {
  if (over_iwarp()) {
    GTEST_SKIP() << "a SEND or WRITE has completed by then: iwarp_test.cc";
  }
  for (const Opcode opcode : {Opcode::kRdmaWrite, Opcode::kFetchAdd, Opcode::kCompareSwap}) {
    Connection c;
    auto region = c.server.domain->RegisterMemory(c.server.memory->data(), 4096, Access::kRemoteRead).value();
    EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, region->rkey(), 0)), WcStatus::kSuccess);
    EXPECT_EQ(c.client.Run(c.client.Request(opcode, 0, 8, region->rkey(), 0)), WcStatus::kRemAccessErr);
  }
}

TEST_P(QueuePairs, Remote_KeyOfAnotherProtectionDomainFails) {
  Connection c;
  auto other = c.server.nic->CreateProtectionDomain().value();
  auto region = other->RegisterMemory(c.server.memory->data(), 4096, kAllAccess).value();
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, region->rkey(), 0)), WcStatus::kRemAccessErr);
}

TEST_P(QueuePairs, Remote_DeregisteredRegionFailsAfterUse) {
  Connection c;
  const RKey rkey = c.server.region->rkey();
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, rkey, 0)), WcStatus::kSuccess);
  c.server.region.reset();
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, rkey, 0)), WcStatus::kRemAccessErr);
}

TEST_P(QueuePairs, Remote_SlotOfADeregisteredRegionReusedStaysInvalid) {
  if (test_ends && test_ends->verbs[1]) {
    GTEST_SKIP() << "keys are the device's";
  }
  Connection c;
  auto first = c.server.domain->RegisterMemory(c.server.memory->data(), 4096, kAllAccess).value();
  const RKey rkey = first->rkey();
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, rkey, 0)), WcStatus::kSuccess);
  first.reset();
  for (int i = 0; i < (1 << 16); i++) {  // once through all slots of the validity table
    first = c.server.domain->RegisterMemory(c.server.memory->data(), 4096, kAllAccess).value();
  }
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, rkey, 0)), WcStatus::kRemAccessErr);
}

TEST_P(QueuePairs, SharedView_FollowsRemoteBytes) {
  if (over_network()) {
    GTEST_SKIP() << "nothing tells a peer over the network, nor can its memory be mapped";
  }
  Connection c;
  const Result<std::span<const std::byte>> view = c.client.pair->SharedView(c.server.region->rkey());
  ASSERT_TRUE(view.ok()) << view.status().ToString();
  EXPECT_EQ(view->size(), c.server.memory->size());
  Put(c.server, 77, "x");
  EXPECT_EQ((*view)[77], std::byte{'x'});
  EXPECT_EQ(c.client.pair->SharedView(RKey{1}).status().code(), EACCES);
}

TEST_P(QueuePairs, Close_FlushesHereAndIsALossThere) {
  if (over_network()) {
    GTEST_SKIP() << "nothing tells a peer over the network, nor can its memory be mapped";
  }
  Connection c;
  ASSERT_TRUE(c.client.Receive(1, 0, 8).ok());
  ASSERT_TRUE(c.server.Receive(2, 0, 8).ok());
  c.client.pair->Close();
  EXPECT_EQ(c.client.WaitStatus(), WcStatus::kWrFlushErr);
  EXPECT_EQ(c.server.WaitStatus(), WcStatus::kWrFlushErr);
  EXPECT_FALSE(c.server.pair->connected());
  EXPECT_EQ(c.server.Run(c.server.Request(Opcode::kSend, 0, 8, {})), WcStatus::kRetryExcErr);
  EXPECT_EQ(c.server.Run(c.server.Request(Opcode::kSend, 0, 8, {})), WcStatus::kWrFlushErr);
}

TEST_P(QueuePairs, Close_MessagesThatArrivedBeforeAreDelivered) {
  if (over_network() && !over_iwarp()) {
    GTEST_SKIP() << "nothing tells a peer over the network, nor can its memory be mapped";
  }
  Connection c;
  ASSERT_TRUE(c.server.Receive(1, 0, 8).ok());
  ASSERT_TRUE(c.server.Receive(2, 0, 8).ok());
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kSend, 0, 8, {})), WcStatus::kSuccess);
  c.client.pair.reset();
  EXPECT_EQ(c.server.WaitStatus(), WcStatus::kSuccess);
  EXPECT_EQ(c.server.WaitStatus(), WcStatus::kWrFlushErr);
}

TEST_P(QueuePairs, Destroy_TakesItsCompletionsAlong) {
  Connection c;
  ASSERT_TRUE(c.client.Send(c.client.Request(Opcode::kRdmaWrite, 0, 8, c.server.region->rkey(), 0)).ok());
  c.client.pair.reset();
  WorkCompletion none;
  EXPECT_EQ(c.client.queue->Poll({&none, 1}), 0u);
}

bool Readable(const CompletionQueue& queue) {
  pollfd waiting{queue.fd(), POLLIN, 0};
  return poll(&waiting, 1, 0) == 1;
}

TEST(SoftCompletionQueue, GatherWakeUps_OneForAllMessagesByTheNextPoll) {
  Connection connection;
  Side& sender = connection.server;
  Side& sleeper = connection.client;
  sender.queue->GatherWakeUps();
  for (int i = 0; i < 8; i++) {
    ASSERT_TRUE(sleeper.Receive(1, 0, 64).ok());
  }
  WorkCompletion completions[8];
  for (const bool by_arming : {false, true}) {
    ASSERT_TRUE(sleeper.queue->Arm());
    for (int i = 0; i < 3; i++) {
      SendWorkRequest request = sender.Request(Opcode::kSend, 0, 64, {});
      request.signaled = false;
      ASSERT_TRUE(sender.Send(request).ok());
    }
    EXPECT_FALSE(Readable(*sleeper.queue));
    if (by_arming) {
      EXPECT_TRUE(sender.queue->Arm());
      sender.queue->Disarm();
    } else {
      EXPECT_EQ(sender.queue->Poll(completions), 0U);
    }
    EXPECT_TRUE(Readable(*sleeper.queue));
    sleeper.queue->Disarm();
    EXPECT_EQ(sleeper.queue->Poll(completions), 3U);
    EXPECT_FALSE(Readable(*sleeper.queue)) << "one wake-up, not three";
  }
}

TEST(SoftCompletionQueue, GatherWakeUps_OfAPairThatIsGoneAreForgotten) {
  Connection connection;
  connection.server.queue->GatherWakeUps();
  ASSERT_TRUE(connection.client.Receive(1, 0, 64).ok());
  ASSERT_TRUE(connection.client.queue->Arm());
  SendWorkRequest request = connection.server.Request(Opcode::kSend, 0, 64, {});
  ASSERT_TRUE(connection.server.Send(request).ok());
  connection.server.pair.reset();
  WorkCompletion completion;
  EXPECT_EQ(connection.server.queue->Poll({&completion, 1}), 0U);
  connection.client.queue->Disarm();
}

// A region of memory of its own, which `client` has reached.
std::unique_ptr<MemoryRegion> Reached(Connection& c, std::unique_ptr<Memory>& memory) {
  memory = c.server.nic->AllocateMemory({.bytes = 4096}).value();
  auto region = c.server.domain->RegisterMemory(memory->data(), memory->size(), kAllAccess).value();
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaWrite, 0, 8, region->rkey(), 0)), WcStatus::kSuccess);
  return region;
}

TEST(SoftQueuePair, Remote_RegionsThatAreGoneAreUnmapped) {
  const auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n');
  };
  Connection c;
  const Result<std::span<const std::byte>> view = c.client.pair->SharedView(c.server.region->rkey());
  ASSERT_TRUE(view.ok());
  Put(c.server, 77, "x");
  c.server.region.reset();
  std::unique_ptr<Memory> memory;
  Reached(c, memory);
  const auto before = mappings();
  for (int i = 0; i < 1000; i++) {
    Reached(c, memory);
  }
  EXPECT_LE(mappings(), before + 100);
  EXPECT_EQ((*view)[77], std::byte{'x'}) << "a view is there as long as the queue pair";
}

TEST(SoftQueuePair, Remote_RegionsThatAreUsedStayMapped) {
  Connection c;
  std::vector<std::unique_ptr<Memory>> memories(10);
  std::vector<std::unique_ptr<MemoryRegion>> regions;
  for (std::unique_ptr<Memory>& memory : memories) {
    regions.push_back(Reached(c, memory));
  }
  const RKey gone = regions.front()->rkey();
  regions.erase(regions.begin());
  std::unique_ptr<Memory> memory;
  for (int i = 0; i < 100; i++) {
    Reached(c, memory);
  }
  for (size_t i = 0; i < regions.size(); i++) {
    Word(c.client, 0) = i;
    EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaWrite, 0, 8, regions[i]->rkey(), 0)), WcStatus::kSuccess);
    EXPECT_EQ(*reinterpret_cast<uint64_t*>(regions[i]->data()), i);
  }
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaWrite, 0, 8, gone, 0)), WcStatus::kRemAccessErr);
}

// Behind a send that waits until the peer has said what its key is, which is when others are forgotten.
TEST(SoftQueuePair, Remote_RegionThatGoesWhileASendOfItWaitsIsAnAccessError) {
  Connection c;
  std::unique_ptr<Memory> memories[3];
  auto first = Reached(c, memories[0]);
  auto second = Reached(c, memories[1]);
  memories[2] = c.server.nic->AllocateMemory({.bytes = 4096}).value();
  const auto unknown = c.server.domain->RegisterMemory(memories[2]->data(), 4096, kAllAccess).value();
  const SendWorkRequest requests[] = {c.client.Request(Opcode::kRdmaWrite, 0, 8, unknown->rkey(), 0),
                                      c.client.Request(Opcode::kRdmaWrite, 0, 8, second->rkey(), 0),
                                      c.client.Request(Opcode::kRdmaWrite, 0, 8, first->rkey(), 0)};
  first.reset();
  ASSERT_TRUE(c.client.pair->PostSend(requests).ok());
  EXPECT_EQ(c.client.WaitStatus(), WcStatus::kSuccess);
  EXPECT_EQ(c.client.WaitStatus(), WcStatus::kSuccess);
  EXPECT_EQ(c.client.WaitStatus(), WcStatus::kRemAccessErr);
}

TEST(SoftQueuePair, Connect_MalformedEndpointIsEproto) {
  for (int broken = 0; broken < 6; broken++) {
    Side a;
    Side b;
    Endpoint endpoint = b.pair->LocalEndpoint().value();
    if (broken == 0) {
      endpoint.bytes.pop_back();
    } else if (broken == 1) {
      endpoint.bytes[0] ^= std::byte{1};
    } else if (broken == 2) {
      endpoint.bytes[8] ^= std::byte{1};  // version
    } else if (broken == 3) {
      endpoint.bytes[16] = std::byte{63};  // slots: no power of two
    } else if (broken == 4) {
      std::swap(endpoint.fds[0], endpoint.fds[1]);
    } else {
      endpoint.fds.pop_back();
    }
    EXPECT_EQ(a.pair->Connect(std::move(endpoint)).code(), EPROTO) << broken;
  }
}

TEST(SoftProtectionDomain, RegisterMemory_RemoteAccessNeedsSharedMemory) {
  Side side;
  std::vector<std::byte> heap(4096);
  EXPECT_TRUE(side.domain->RegisterMemory(heap.data(), heap.size(), Access::kLocalWrite).ok());
  EXPECT_EQ(side.domain->RegisterMemory(heap.data(), heap.size(), Access::kRemoteRead).status().code(), EINVAL);
  EXPECT_EQ(
      side.domain->RegisterMemory(side.memory->data() + 1, side.memory->size(), Access::kRemoteRead).status().code(),
      EINVAL);
}

TEST(SoftProtectionDomain, RegisterMemory_ReadOnlyMemoryRefusesRemoteWriting) {
  Side side;
  auto memory = side.nic->AllocateMemory({.bytes = 4096, .name = "ro", .peers_may_write = false}).value();
  EXPECT_TRUE(side.domain->RegisterMemory(memory->data(), 4096, Access::kRemoteRead).ok());
  EXPECT_EQ(side.domain->RegisterMemory(memory->data(), 4096, kAllAccess).status().code(), EPERM);
}

}  // namespace
}  // namespace termfs::driver

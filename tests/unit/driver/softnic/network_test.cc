// SPDX-License-Identifier: Apache-2.0
//
// The software RNIC over a network that is not kind: packets lost, doubled, late and changed; peers that are gone;
// datagrams that nobody of us has sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>

#include "base/random.h"
#include "driver/softnic/network/fault_injection.h"
#include "driver/softnic/network/flow.h"
#include "tests/unit/driver/softnic/connection.h"

namespace termfs::driver {
namespace {

class Network : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { SetPath(GetParam()); }
  void TearDown() override {
    SetPath("");
    test_nic = {};
  }
};
INSTANTIATE_TEST_SUITE_P(Families, Network, testing::Values("::1", "127.0.0.1", "::1 polled", "127.0.0.1 polled"),
                         PathName);

uint64_t Metric(Nic& nic, const std::string& name) {
  for (const MetricValue& value : nic.Metrics()) {
    if (value.name == name) {
      return value.value;
    }
  }
  ADD_FAILURE() << "no metric " << name;
  return 0;
}

TEST_P(Network, BadNetwork_EveryOperationHappensOnceAndInOrder) {
  test_nic.network_faults = "loss=0.02,duplication=0.02,reordering=0.02,corruption=0.01,replay=0.02,seed=3";
  Connection c;
  constexpr uint32_t kBytes = 20000;  // several packets of any MTU
  uint64_t* const counter = reinterpret_cast<uint64_t*>(c.server.memory->data() + (512 << 10));
  *counter = 0;
  for (uint32_t round = 0; round < 300; round++) {
    std::fill_n(c.client.memory->data(), kBytes, static_cast<std::byte>(round));
    ASSERT_TRUE(c.server.Receive(round, 256 << 10, kBytes).ok());
    const SendWorkRequest requests[] = {
        c.client.Request(Opcode::kRdmaWrite, 0, kBytes, c.server.region->rkey(), 0),
        c.client.Request(Opcode::kFetchAdd, 64 << 10, 8, c.server.region->rkey(), 512 << 10),
        c.client.Request(Opcode::kRdmaRead, 128 << 10, kBytes, c.server.region->rkey(), 0),
        c.client.Request(Opcode::kSend, 0, 4096, {}),
    };
    SendWorkRequest add = requests[1];
    add.swap_or_add = 1;
    for (const SendWorkRequest& request : {requests[0], add, requests[2], requests[3]}) {
      ASSERT_TRUE(c.client.Send(request).ok());
    }
    for (const SendWorkRequest& request : requests) {
      const auto completion = c.client.Wait();
      ASSERT_TRUE(completion);
      ASSERT_EQ(completion->status, WcStatus::kSuccess) << round;
      ASSERT_EQ(completion->id, request.id);
    }
    const auto received = c.server.Wait();
    ASSERT_TRUE(received && received->status == WcStatus::kSuccess);
    ASSERT_EQ(received->id, round);
    ASSERT_EQ(*reinterpret_cast<uint64_t*>(c.client.memory->data() + (64 << 10)), round);
    for (uint32_t i = 0; i < kBytes; i++) {
      ASSERT_EQ(c.client.memory->data()[(128 << 10) + i], static_cast<std::byte>(round));
      ASSERT_EQ(c.server.memory->data()[i], static_cast<std::byte>(round));
      ASSERT_EQ(c.server.memory->data()[(256 << 10) + std::min(i, 4095U)], static_cast<std::byte>(round));
    }
  }
  EXPECT_EQ(*counter, 300u);
  EXPECT_GT(Metric(*c.client.nic, "network_retransmissions_total"), 0u);
  EXPECT_GT(Metric(*c.server.nic, "network_packets_wrong_crc_total"), 0u);
}

TEST_P(Network, Read_LargeIsWhole) {
  Connection c;
  Random random(1);
  for (size_t at = 0; at < c.server.memory->size(); at += sizeof(uint64_t)) {
    const uint64_t word = random();
    memcpy(c.server.memory->data() + at, &word, sizeof(word));
  }
  for (const uint32_t length : {1U << 20, 300001U, 4097U, 1U}) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{(1 << 20) - length}}) {
      ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, length, c.server.region->rkey(), offset)),
                WcStatus::kSuccess);
      ASSERT_EQ(memcmp(c.client.memory->data(), c.server.memory->data() + offset, length), 0);
    }
  }
}

TEST_P(Network, KeyMask_AKeyOfAnotherPeerOpensNothing) {
  constexpr uint32_t kMask = 0x80000421;
  test_path->key_mask = kMask;
  for (const uint32_t mask : {kMask, uint32_t{0}, kMask ^ 0x400}) {
    Connection c;
    const RKey key{c.server.region->rkey().value ^ mask};
    EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, key, 0)),
              mask == kMask ? WcStatus::kSuccess : WcStatus::kRemAccessErr)
        << mask;
  }
}

TEST_P(Network, PeerGone_IsReportedAfterTheRetries) {
  Connection c;
  ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0)), WcStatus::kSuccess);
  ASSERT_TRUE(c.client.Receive(9, 0, 8).ok());
  c.server.pair.reset();
  ASSERT_TRUE(c.client.Send(c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0)).ok());
  ASSERT_TRUE(c.client.Send(c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0)).ok());
  std::map<WcStatus, int> statuses;
  for (int i = 0; i < 3; i++) {
    statuses[c.client.WaitStatus()]++;
  }
  EXPECT_EQ(statuses[WcStatus::kRetryExcErr], 1);
  EXPECT_EQ(statuses[WcStatus::kWrFlushErr], 2);  // the other READ, and the receive
  EXPECT_FALSE(c.client.pair->connected());
  if (!test_path->polled) {  // else the port has gone with the queue pair
    EXPECT_GT(Metric(*c.server.nic, "network_packets_no_connection_total"), 0u);
  }
}

TEST_P(Network, Close_LeavesMemoryAlone) {
  Connection c;
  for (int round = 0; round < 100; round++) {
    Connection d;
    ASSERT_TRUE(d.client.Send(d.client.Request(Opcode::kRdmaRead, 0, 1 << 20, d.server.region->rkey(), 0)).ok());
    d.client.pair->Close();
    std::fill_n(d.client.memory->data(), 1 << 20, std::byte{0x55});
    const WcStatus status = d.client.WaitStatus();
    ASSERT_TRUE(status == WcStatus::kWrFlushErr || status == WcStatus::kSuccess);  // it may have been faster
    ASSERT_TRUE(std::all_of(d.client.memory->data(), d.client.memory->data() + (1 << 20),
                            [](std::byte byte) { return byte == std::byte{0x55}; }));
  }
}

// Pauses as long as it takes the RNIC thread to watch the port in the place of its owner, or not: whoever takes in what
// arrives, the owner wakes up.
TEST_P(Network, Arm_AfterPausesNoWakeUpIsLost) {
  Connection c;
  Random random(5);
  for (int round = 0; round < 500; round++) {
    std::this_thread::sleep_for(std::chrono::microseconds(random.Below(8000)));
    ASSERT_TRUE(c.client.Send(c.client.Request(Opcode::kRdmaRead, 0, 64, c.server.region->rkey(), 0)).ok());
    WorkCompletion completion;
    while (c.client.queue->Poll({&completion, 1}) == 0) {
      if (c.client.queue->Arm()) {
        pollfd waiting{c.client.queue->fd(), POLLIN, 0};
        ASSERT_EQ(poll(&waiting, 1, 60000), 1) << "lost wake-up in round " << round;
        c.client.queue->Disarm();
      }
    }
    ASSERT_EQ(completion.status, WcStatus::kSuccess);
  }
}

TEST_P(Network, Odp_IsRefused) {
  Connection c;
  TermRegionOptions options;
  options.kind = RegionKind::kOdp;
  options.pages = options.max_pages = 4;
  options.fault_handler = [](PageIndex) { FAIL() << "a packet does not fault"; };
  const auto term = c.server.domain->RegisterTermRegion(options).value();
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, term->rkey(), 0)), WcStatus::kRemAccessErr);
}

// Where the fields of an endpoint lie (network/queue_pair.cc).
TEST_P(Network, Connect_MalformedEndpointIsEproto) {
  const std::map<std::string, std::pair<size_t, uint8_t>> broken = {
      {"magic", {0, 1}},  // a byte, and the bits of it that change
      {"queue pair", {11, 1}}, {"MTU", {16, 1}}, {"address", {39, 3}}, {"link layer", {42, 3}},
  };
  for (const auto& [what, change] : broken) {
    Side a;
    Side b;
    Endpoint endpoint = b.pair->LocalEndpoint().value();
    endpoint.bytes[change.first] ^= std::byte{change.second};
    EXPECT_EQ(a.pair->Connect(std::move(endpoint)).code(), EPROTO) << what;
  }
  Side a;
  Side b;
  Endpoint endpoint = b.pair->LocalEndpoint().value();
  endpoint.bytes.pop_back();
  EXPECT_EQ(a.pair->Connect(std::move(endpoint)).code(), EPROTO);
}

// Datagrams by somebody who guesses numbers of queue pairs, and by a network that changes and truncates those that are
// for the right one.
TEST_P(Network, ForgedDatagrams_ChangeNothing) {
  Connection c;
  ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaWrite, 0, 8, c.server.region->rkey(), 0)), WcStatus::kSuccess);
  const Endpoint endpoint = c.server.pair->LocalEndpoint().value();
  uint32_t queue_pair = 0;
  uint16_t port = 0;
  memcpy(&queue_pair, endpoint.bytes.data() + 8, sizeof(queue_pair));
  memcpy(&port, endpoint.bytes.data() + 40, sizeof(port));
  const softnic::SocketAddress to(test_path->remote, port, 0);
  const UniqueFd forger(socket(to.storage.ss_family, SOCK_DGRAM, 0));
  const softnic::SocketAddress from(test_path->local, 0, 0);
  ASSERT_EQ(bind(forger.get(), from.get(), from.length), 0);
  softnic::SocketAddress bound;
  bound.length = sizeof(bound.storage);
  ASSERT_EQ(getsockname(forger.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length), 0);
  const auto forger_port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
  const int forbid = IP_PMTUDISC_DO;
  setsockopt(forger.get(), IPPROTO_IP, IP_MTU_DISCOVER, &forbid, sizeof(forbid));
  const softnic::Flow flow(test_path->local, forger_port, test_path->remote, port);
  Random random(11);
  const auto before =
      std::vector<std::byte>(c.server.memory->data(), c.server.memory->data() + c.server.memory->size());
  for (int i = 0; i < 20000; i++) {
    roce::Packet packet;
    packet.op = static_cast<roce::Op>(random.Below(roce::kOps));
    const uint64_t fault = random.Below(4);
    packet.queue_pair = fault < 2 ? queue_pair : static_cast<uint32_t>(random.Below(1 << 24));
    packet.sequence = static_cast<uint32_t>(random.Below(1 << 24));
    packet.rkey = static_cast<uint32_t>(random());
    packet.length = static_cast<uint32_t>(random.Below(5000));
    std::vector<std::byte> bytes(roce::HeaderBytes(packet.op) + roce::kCrcBytes);
    roce::EncodeHeaders(packet, bytes.data());
    const auto crc = flow.CrcOf({bytes.data(), bytes.size() - roce::kCrcBytes});
    std::copy(crc.begin(), crc.end(), bytes.end() - roce::kCrcBytes);
    if (fault == 0) {  // not in the byte that routers may change
      const size_t at = random.Below(bytes.size());
      bytes[at == 4 ? 5 : at] ^= static_cast<std::byte>(1 + random.Below(255));
    } else if (fault == 1) {
      bytes.resize(random.Below(bytes.size()));
    }
    sendto(forger.get(), bytes.data(), bytes.size(), 0, to.get(), to.length);
    if (i % 1000 == 0) {
      ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8192, c.server.region->rkey(), 0)),
                WcStatus::kSuccess);
    }
  }
  EXPECT_TRUE(std::equal(before.begin(), before.end(), c.server.memory->data()));
  for (const char* name :
       {"network_packets_malformed_total", "network_packets_wrong_crc_total", "network_packets_no_connection_total"}) {
    EXPECT_GT(Metric(*c.server.nic, name), 0u) << name;
  }
}

TEST(NetworkFaults, Parse) {
  using softnic::ParseFaults;
  const auto options = ParseFaults("loss=0.5,seed=9,corruption=1,replay=0.25");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->loss, 0.5);
  EXPECT_EQ(options->corruption, 1);
  EXPECT_EQ(options->replay, 0.25);
  EXPECT_EQ(options->seed, 9u);
  for (const char* wrong : {"loss", "loss=", "loss=2", "loss=-1", "gain=0.1", "loss=x", "loss=0.1x"}) {
    EXPECT_EQ(ParseFaults(wrong).status().code(), EINVAL) << wrong;
  }
  EXPECT_EQ(CreateSoftNic({.network_faults = "nonsense"}).status().code(), EINVAL);
}

}  // namespace
}  // namespace termfs::driver

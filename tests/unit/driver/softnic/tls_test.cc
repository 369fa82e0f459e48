// SPDX-License-Identifier: Apache-2.0
//
// Streams of iWARP inside TLS: what an end that has the token and not the key gets, and the other way round; keys that
// are replaced under load.
#include <functional>

#include "tests/unit/driver/softnic/connection.h"

namespace termfs::driver {
namespace {

class StreamsInTls : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { SetPath(GetParam()); }
  void TearDown() override { SetPath(""); }
};
INSTANTIATE_TEST_SUITE_P(Paths, StreamsInTls,
                         testing::Values("::1 iwarp tls", "127.0.0.1 iwarp tls", "::1 iwarp tls polled"), PathName);

uint64_t MetricOf(Nic& nic, const std::string& name) {
  for (const MetricValue& metric : nic.Metrics()) {
    if (metric.name == name) {
      return static_cast<uint64_t>(metric.value);
    }
  }
  ADD_FAILURE() << name;
  return 0;
}

std::unique_ptr<QueuePair> PairOf(Side& side, const std::function<void(NetworkPath&)>& change) {
  NetworkPath path = side.options.network.value();
  change(path);
  QueuePairOptions options = Patient();
  options.send_cq = options.recv_cq = side.queue.get();
  options.network = path;
  return side.domain->CreateQueuePair(options).value();
}

TEST_P(StreamsInTls, KeysAreReplacedUnderLoad_BothWays) {
  constexpr uint64_t kRecords = 5;
  test_records_of_key = kRecords;
  Connection c;
  test_records_of_key = TlsContext::kRecordsOfKey;
  constexpr uint32_t kBytes = 100'000;
  constexpr uint32_t kFrom = 400'000;
  for (uint32_t i = 0; i < kBytes; i++) {
    c.client.memory->data()[i] = static_cast<std::byte>(i * 7);
  }
  for (int round = 0; round < 30; round++) {
    c.client.memory->data()[0] = static_cast<std::byte>(round);
    ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaWrite, 0, kBytes, c.server.region->rkey())),
              WcStatus::kSuccess);
    ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, kFrom, kBytes, c.server.region->rkey())),
              WcStatus::kSuccess);
    ASSERT_EQ(std::memcmp(c.client.memory->data(), c.client.memory->data() + kFrom, kBytes), 0) << round;
  }
  EXPECT_GT(MetricOf(*c.client.nic, "network_tls_key_updates_total"), 20U);
  EXPECT_GT(MetricOf(*c.server.nic, "network_tls_key_updates_total"), 20U);
}

// It has overheard the token, or was told it by who may know it.
TEST_P(StreamsInTls, ATokenWithoutTheKeyIsRefused) {
  Side server(Patient(), 1);
  Side client;
  const auto stranger = PairOf(client, [](NetworkPath& path) {
    path.tls = TlsContext::ForClient(DeriveTlsKey(std::array<std::byte, 32>{}, "another").value()).value();
  });
  EXPECT_EQ(stranger->Connect(server.pair->LocalEndpoint().value()).code(), EACCES);
  Connect(*client.pair, *server.pair);
  EXPECT_EQ(client.Run(client.Request(Opcode::kRdmaRead, 0, 100, server.region->rkey())), WcStatus::kSuccess);
}

// Such as a man in between who has taken TLS away.
TEST_P(StreamsInTls, AStreamIsInsideTlsWhereItsEndSaysSo) {
  Side server(Patient(), 1);
  Side client;
  for (const bool looked : {true, false}) {
    server.acceptor->GivePlain(!looked);  // as of a server that does not look what comes
    const auto plain = PairOf(client, [](NetworkPath& path) { path.tls = nullptr; });
    EXPECT_FALSE(plain->Connect(server.pair->LocalEndpoint().value()).ok());
  }
}

TEST_P(StreamsInTls, AnEndpointWithoutATokenOfThisNicIsRefused) {
  Side server(Patient(), 1);
  Side client;
  Endpoint endpoint = server.pair->LocalEndpoint().value();
  endpoint.bytes.back() ^= std::byte{1};
  EXPECT_FALSE(client.pair->Connect(std::move(endpoint)).ok());
}

TEST(StreamsInTlsOfOwnPorts, AreRefused) {
  SetPath("::1 iwarp tls");
  Side server(Patient(), 1);
  const auto pair = PairOf(server, [](NetworkPath& path) { path.adopts = false; });
  EXPECT_EQ(pair->LocalEndpoint().status().code(), ENOTSUP);
  SetPath("");
}

}  // namespace
}  // namespace termfs::driver

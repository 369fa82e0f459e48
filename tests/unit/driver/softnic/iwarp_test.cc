// SPDX-License-Identifier: Apache-2.0
//
// What is iWARP's own over real sockets: connections that are none of ours, sockets that are full, peers that are gone,
// and messages that find no receive. What every wire does is in operations_test.cc.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <thread>

#include "driver/iwarp/setup.h"
#include "driver/iwarp/unit.h"
#include "driver/softnic/network/flow.h"
#include "driver/softnic/network/streams.h"
#include "tests/unit/driver/softnic/connection.h"

namespace termfs::driver {
namespace {

class Iwarp : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { SetPath(GetParam()); }
  void TearDown() override {
    SetPath("");
    test_nic = {};
  }
};
INSTANTIATE_TEST_SUITE_P(Families, Iwarp,
                         testing::Values("::1 iwarp", "127.0.0.1 iwarp", "::1 iwarp polled", "127.0.0.1 iwarp polled"),
                         PathName);

class IwarpStrangers : public testing::Test {
 protected:
  void SetUp() override { SetPath("::1 iwarp"); }
  void TearDown() override { SetPath(""); }
};

// Of an endpoint of the end that is dialled: magic, port, token.
constexpr size_t kPortAt = 4;
constexpr size_t kTokenAt = 6;

class Caller {
 public:
  explicit Caller(const Endpoint& endpoint) {
    const auto byte = [&](size_t at) { return std::to_integer<unsigned>(endpoint.bytes.at(at)); };
    const auto port = static_cast<uint16_t>(byte(kPortAt) << 8 | byte(kPortAt + 1));
    token_.assign(endpoint.bytes.begin() + kTokenAt, endpoint.bytes.end());
    const softnic::SocketAddress to(test_path->remote, port, 0);
    socket_ = UniqueFd(socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(socket_.get(), to.get(), to.length), 0);
  }
  void Say(std::span<const std::byte> bytes) {
    EXPECT_EQ(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void Ask(std::vector<std::byte> token) {
    iwarp::MpaSetUp request;
    request.reads_in = request.reads_out = 8;
    request.private_data = std::move(token);
    Say(Encode(iwarp::SetUpFrame::kRequest, request));
  }
  // Bytes of an answer; 0: the other end closes.
  size_t Answer() {
    pollfd waiting{socket_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, 120'000), 1);
    std::array<std::byte, 1000> bytes;
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    return got > 0 ? static_cast<size_t>(got) : 0;
  }
  const std::vector<std::byte>& token() const { return token_; }

 private:
  UniqueFd socket_;
  std::vector<std::byte> token_;
};

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST_F(IwarpStrangers, AConnectionThatIsNoneOfOurs_IsClosed) {
  Side server(Patient(), 1);
  const Endpoint endpoint = server.pair->LocalEndpoint().value();
  Caller web(endpoint);
  web.Say(BytesOf("GET / HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(web.Answer(), 0u);
  Caller guesses(endpoint);
  auto wrong = guesses.token();
  wrong.at(0) ^= std::byte{1};
  guesses.Ask(wrong);
  EXPECT_EQ(guesses.Answer(), 0u);
  Caller knows_nothing(endpoint);
  knows_nothing.Ask({});
  EXPECT_EQ(knows_nothing.Answer(), 0u);
  Caller silent(endpoint);
  silent.Say(BytesOf("MPA ID Req Fr"));
  EXPECT_EQ(silent.Answer(), 0u) << "after some seconds";
}

// A peer that replies to the set-up, and to nothing after that.
class Frozen {
 public:
  // `endpoint` of some end; becomes this one's.
  Frozen(Endpoint& endpoint, uint16_t reads_in) : listener_(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    softnic::SocketAddress at(test_path->local, 0, 0);
    EXPECT_EQ(bind(listener_.get(), at.get(), at.length), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    EXPECT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at.storage), &at.length), 0);
    const uint16_t port = softnic::PortOf(at.storage);
    endpoint.bytes[kPortAt] = static_cast<std::byte>(port >> 8);
    endpoint.bytes[kPortAt + 1] = static_cast<std::byte>(port & 0xff);
    thread_ = std::jthread([this, reads_in] {
      accepted_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      iwarp::MpaSetUp reply;
      reply.reads_in = reply.reads_out = reads_in;
      const auto bytes = Encode(iwarp::SetUpFrame::kReply, reply);
      EXPECT_EQ(send(accepted_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    });
  }
  // Bytes that have come behind the request of the set-up.
  size_t Received() {
    thread_.join();
    size_t received = 0;
    std::array<std::byte, 10'000> bytes;
    while (true) {
      const ssize_t got = recv(accepted_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (got <= 0) {
        constexpr size_t kRequestBytes = 20 + 4 + sizeof(softnic::StreamToken);
        return received - std::min(received, kRequestBytes);
      }
      received += static_cast<size_t>(got);
    }
  }

 private:
  const UniqueFd listener_;
  UniqueFd accepted_;
  std::jthread thread_;
};

// The peer's machine is there, and its RNIC is not.
TEST_F(IwarpStrangers, AReadThatIsNotAnswered_FailsAfterSomeSeconds) {
  Side server(Patient(), 1);
  Endpoint endpoint = server.pair->LocalEndpoint().value();
  Frozen frozen(endpoint, 8);
  Side client;
  ASSERT_TRUE(client.pair->Connect(std::move(endpoint)).ok());
  EXPECT_EQ(client.Run(client.Request(Opcode::kRdmaRead, 0, 8, server.region->rkey(), 0)), WcStatus::kRetryExcErr);
}

TEST_F(IwarpStrangers, AnEndThatQueuesTwoReads_GetsTwoAtATime) {
  Side server(Patient(), 1);
  Endpoint endpoint = server.pair->LocalEndpoint().value();
  Frozen frozen(endpoint, 2);
  Side client;
  ASSERT_TRUE(client.pair->Connect(std::move(endpoint)).ok());
  for (int i = 0; i < 5; i++) {
    ASSERT_TRUE(client.Send(client.Request(Opcode::kRdmaRead, 0, 8, server.region->rkey(), 0)).ok());
  }
  EXPECT_EQ(client.WaitStatus(), WcStatus::kRetryExcErr);
  EXPECT_EQ(frozen.Received(), iwarp::FrameBytes(iwarp::Op::kWrite, 0) +
                                   2 * iwarp::FrameBytes(iwarp::Op::kReadRequest, iwarp::kReadRequestBytes));
}

TEST_F(IwarpStrangers, AToken_IsGoodForOneConnection) {
  Side server(Patient(), 1);
  const Endpoint endpoint = server.pair->LocalEndpoint().value();
  Caller first(endpoint);
  first.Ask(first.token());
  EXPECT_GT(first.Answer(), 0u);
  Caller second(endpoint);
  second.Ask(second.token());
  EXPECT_EQ(second.Answer(), 0u);
}

TEST_F(IwarpStrangers, MoreThanMayWait_DoNotKeepAPeerAway) {
  Side server(Patient(), 1);
  const Endpoint endpoint = server.pair->LocalEndpoint().value();
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < 900; i++) {
    callers.push_back(std::make_unique<Caller>(endpoint));
  }
  Side client;
  const Status connected = client.pair->Connect(server.pair->LocalEndpoint().value());
  EXPECT_TRUE(connected.ok()) << connected.ToString();
  EXPECT_EQ(callers.front()->Answer(), 0u) << "the oldest is closed";
}

TEST_P(Iwarp, BothWaysFull_WithTinySocketBuffers_NothingIsStuck) {
  test_nic.socket_bytes = 128 << 10;  // smaller ones TCP fills only every 0.2 s
  Connection c;
  constexpr uint32_t kBytes = 200'000;  // of each of 40 requests
  for (Side* const side : {&c.client, &c.server}) {
    std::fill_n(side->memory->data(), 1 << 20, side == &c.client ? std::byte{1} : std::byte{2});
  }
  for (int round = 0; round < 10; round++) {
    for (const auto& [from, to] : {std::pair(&c.client, &c.server), std::pair(&c.server, &c.client)}) {
      ASSERT_TRUE(from->Send(from->Request(Opcode::kRdmaRead, 0, kBytes, to->region->rkey(), 800'000)).ok());
      ASSERT_TRUE(from->Send(from->Request(Opcode::kRdmaWrite, 200'000, kBytes, to->region->rkey(), 400'000)).ok());
    }
  }
  std::thread other([&] {
    for (int i = 0; i < 20; i++) {
      EXPECT_EQ(c.server.WaitStatus(), WcStatus::kSuccess);
    }
  });
  for (int i = 0; i < 20; i++) {
    EXPECT_EQ(c.client.WaitStatus(), WcStatus::kSuccess);
  }
  other.join();
  EXPECT_TRUE(std::all_of(c.client.memory->data(), c.client.memory->data() + kBytes,
                          [](std::byte byte) { return byte == std::byte{2}; }));
  EXPECT_TRUE(std::all_of(c.server.memory->data(), c.server.memory->data() + kBytes,
                          [](std::byte byte) { return byte == std::byte{1}; }));
}

// The RNIC thread goes on serving others while a peer does not take what it has asked for.
TEST_P(Iwarp, APeerThatStopsReading_HoldsUpNoOther) {
  test_nic.socket_bytes = 128 << 10;
  Connection slow;
  SetPath(GetParam());
  Side client(Patient(), 0);
  std::unique_ptr<QueuePair> served;
  QueuePairOptions options = Patient();
  options.network = test_path;
  options.send_cq = options.recv_cq = slow.server.queue.get();
  served = slow.server.domain->CreateQueuePair(options).value();
  Connect(*client.pair, *served);
  // The slow one asks for much, and then stops polling; where it does not poll itself its RNIC thread takes it all in.
  for (int i = 0; i < 30; i++) {
    ASSERT_TRUE(
        slow.client.Send(slow.client.Request(Opcode::kRdmaRead, 0, 1 << 20, slow.server.region->rkey(), 0)).ok());
  }
  for (int i = 0; i < 100; i++) {
    ASSERT_EQ(client.Run(client.Request(Opcode::kRdmaRead, 0, 4096, slow.server.region->rkey(), 0)),
              WcStatus::kSuccess);
  }
}

TEST_P(Iwarp, APeerThatGoes_IsNoticedWithoutBeingAsked) {
  Connection c;
  ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0)), WcStatus::kSuccess);
  ASSERT_TRUE(c.client.Receive(9, 0, 8).ok());
  c.server.pair.reset();
  EXPECT_EQ(c.client.WaitStatus(), WcStatus::kWrFlushErr);
  EXPECT_FALSE(c.client.pair->connected());
}

TEST_P(Iwarp, ARead_OfAPeerThatGoes_Fails) {
  Connection c;
  c.server.pair.reset();
  const Status posted = c.client.Send(c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0));
  ASSERT_TRUE(posted.ok());
  const WcStatus status = c.client.WaitStatus();
  EXPECT_TRUE(status == WcStatus::kRetryExcErr || status == WcStatus::kWrFlushErr) << ToString(status);
}

TEST_P(Iwarp, ASendThatFindsNoReceive_WaitsForOne) {
  Connection c;
  std::memcpy(c.client.memory->data(), "late", 4);
  ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kSend, 0, 4, {})), WcStatus::kSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_TRUE(c.server.Receive(5, 100, 64).ok());
  EXPECT_EQ(c.server.WaitStatus(), WcStatus::kSuccess);
  EXPECT_EQ(std::memcmp(c.server.memory->data() + 100, "late", 4), 0);
  ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0)), WcStatus::kSuccess);
}

TEST_P(Iwarp, ASendThatFindsNoReceiveInTime_EndsTheConnection) {
  QueuePairOptions options;
  options.rnr_timeout = std::chrono::milliseconds(50);
  Connection c(options);
  ASSERT_EQ(c.client.Run(c.client.Request(Opcode::kSend, 0, 4, {})), WcStatus::kSuccess);
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0)),
            WcStatus::kRnrRetryExcErr);
  EXPECT_FALSE(c.server.pair->connected());
}

TEST_P(Iwarp, AWriteThatIsNotAllowed_ChangesNothing_AndEndsTheConnection) {
  Connection c;
  auto region = c.server.domain->RegisterMemory(c.server.memory->data(), 4096, Access::kRemoteRead).value();
  std::fill_n(c.client.memory->data(), 8, std::byte{7});
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaWrite, 0, 8, region->rkey(), 0)), WcStatus::kSuccess);
  EXPECT_NE(c.client.Run(c.client.Request(Opcode::kRdmaRead, 100, 8, region->rkey(), 0)), WcStatus::kSuccess);
  EXPECT_TRUE(std::all_of(c.server.memory->data(), c.server.memory->data() + 8,
                          [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_P(Iwarp, WhatIwarpDoesNotHave_IsRefused_AndNothingIsPosted) {
  Connection c;
  for (const Opcode opcode : {Opcode::kFetchAdd, Opcode::kCompareSwap, Opcode::kRdmaWriteWithImm}) {
    EXPECT_EQ(c.client.Send(c.client.Request(opcode, 0, 8, c.server.region->rkey(), 0)).code(), ENOTSUP);
  }
  EXPECT_EQ(c.client.Run(c.client.Request(Opcode::kRdmaRead, 0, 8, c.server.region->rkey(), 0)), WcStatus::kSuccess);
}

TEST_P(Iwarp, Connect_WhereNoServerListens_IsRefused) {
  auto server = std::make_unique<Side>(Patient(), 1);
  Endpoint endpoint = server->pair->LocalEndpoint().value();
  server.reset();  // and its port
  Side client;
  EXPECT_EQ(client.pair->Connect(std::move(endpoint)).code(), ECONNREFUSED);
}

TEST_P(Iwarp, Connect_OfMalformedEndpoints_IsRefused) {
  Side client;
  EXPECT_EQ(client.pair->Connect({}).code(), EPROTO);
  Side other;
  EXPECT_EQ(client.pair->Connect(other.pair->LocalEndpoint().value()).code(), EPROTO) << "both dial";
}

}  // namespace
}  // namespace termfs::driver

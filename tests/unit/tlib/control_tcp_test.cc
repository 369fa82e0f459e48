// SPDX-License-Identifier: Apache-2.0
//
// The control channel over TCP: who knows the volume's secret is served, and nobody else learns or changes anything.
#include <netinet/in.h>
#include <poll.h>

#include <fstream>
#include <functional>

#include "base/stream_socket.h"
#include "tests/unit/tlib/raw_control.h"
#include "tlib/client/control_client.h"
#include "tlib/rpc/secret.h"
#include "tlib/rpc/tcp_socket.h"

namespace termfs::tlib {
namespace {

using client::ControlClient;
using std::chrono::seconds;
using std::chrono::steady_clock;

steady_clock::time_point Soon() { return steady_clock::now() + seconds(120); }

// A client of the volume's secret that sends what it likes.
struct ByHand {
  explicit ByHand(const HostPort& place) : socket(ConnectTcp(place, Soon()).value()) {}

  void SendBytes(std::span<const std::byte> bytes) { EXPECT_TRUE(SendAll(socket.get(), bytes, Soon()).ok()); }
  void Send(std::span<const std::byte> bytes) {
    EXPECT_TRUE(SendFrame(socket.get(), bytes, {}, Soon(), tls.get()).ok());
  }
  Result<Frame> Receive() { return reader.Wait(socket.get(), Soon()); }
  // All that comes until the server hangs up.
  size_t BytesUntilHungUp() {
    size_t bytes = 0;
    while (true) {
      std::array<std::byte, 4096> some;
      EXPECT_TRUE(WaitFor(socket.get(), POLLIN, Soon()).ok());
      const auto got = ReceiveSome(socket.get(), some);
      if (!got.ok()) {
        EXPECT_EQ(got.status().code(), ECONNRESET) << got.status().ToString();
        return bytes;
      }
      bytes += got.value();
    }
  }
  Status ShakeHands(const TlsContext& context, std::string_view protocol = kControlProtocol) {
    tls = TlsSession::Connect(context, protocol).value();
    ASSIGN_OR_RETURN(const auto early, termfs::ShakeHands(socket.get(), *tls, Soon()));
    return reader.Secure(*tls, early);
  }
  std::vector<std::byte> Sealed(std::span<const std::byte> bytes) const {
    std::vector<std::byte> sealed(TlsSession::SealedBytes(bytes.size()));
    sealed.resize(tls->Seal(bytes, sealed).value());
    return sealed;
  }

  UniqueFd socket;
  std::unique_ptr<TlsSession> tls;
  FrameReader reader;
};

wire::ControlMessageT HelloMessage() {
  wire::HelloT hello;
  hello.version = kControlVersion;
  hello.program = "by hand";
  wire::ControlMessageT message;
  message.body.Set(std::move(hello));
  return message;
}

class ControlTcpTest : public HostileTest {
 protected:
  void SetUp() override {
    volume_.options().listen = place_;
    ASSERT_TRUE(MakeSecret(SecretFile()).ok());
    volume_.options().tls = ServerTls(SecretFile()).value();
    HostileTest::SetUp();
  }
  std::string SecretFile() { return volume_.path() + "/secret"; }
  std::shared_ptr<const TlsContext> OwnKey() { return ClientTls(SecretFile()).value(); }
  std::shared_ptr<const TlsContext> AnotherKey() {
    const std::string other = volume_.path() + "/other";
    EXPECT_TRUE(MakeSecret(other).ok());
    return ClientTls(other).value();
  }
  Result<std::unique_ptr<ControlClient>> Connect() { return ControlClient::Connect({place_, SecretFile()}); }
  static Result<wire::WelcomeT> SayHello(ControlClient& control) {
    wire::HelloT hello;
    hello.version = kControlVersion;
    return control.Call<wire::WelcomeT>(std::move(hello), Soon());
  }

  const HostPort place_{"127.0.0.1", FreePort()};
};

TEST_F(ControlTcpTest, AnAdministratorIsServed) {
  const auto control = Connect();
  ASSERT_TRUE(control.ok()) << control.status().ToString();
  const auto welcome = SayHello(**control);
  ASSERT_TRUE(welcome.ok()) << welcome.status().ToString();
  EXPECT_EQ(welcome->transport, "softnic (RoCEv2 over UDP)");
  for (const size_t size : {size_t{0}, size_t{5}, size_t{900'000}}) {
    wire::AdminT request;
    request.opcode = 2;
    request.body.assign(size, 7);
    const auto reply = (*control)->Call<wire::AdminReplyT>(std::move(request), Soon());
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->body, std::vector<uint8_t>(size, 7));
  }
  for (const server::SessionInfo& session : volume_.server().Sessions()) {
    EXPECT_EQ(session.from.empty(), session.pid != 0);
    EXPECT_TRUE(session.from.empty() || session.from.starts_with("127.0.0.1:")) << session.from;
  }
}

TEST_F(ControlTcpTest, AnAnswerThatIsTooLong_IsAnErrorAndNotTheEnd) {
  const auto control = Connect();
  ASSERT_TRUE(control.ok() && SayHello(**control).ok());
  for (const size_t size : {size_t{kMaxControlMessage} - 2048, size_t{5}}) {
    wire::AdminT request;
    request.opcode = 2;
    request.body.assign(size, 7);
    const auto reply = (*control)->Call<wire::AdminReplyT>(std::move(request), Soon());
    EXPECT_EQ(reply.status().code(), size > 5 ? EMSGSIZE : 0) << reply.status().ToString();
  }
}

// Queue pairs over the network are made of bytes: descriptors of this host's memory cannot be had this way.
TEST_F(ControlTcpTest, EndpointThatIsNoneIsRefused) {
  const auto control = Connect();
  ASSERT_TRUE(control.ok() && SayHello(**control).ok());
  EXPECT_EQ((*control)->Call<wire::QueuePairOpenedT>(wire::OpenQueuePairT(), Soon()).status().code(), EPROTO);
  wire::ExportHeatT heat;
  heat.rkey = 1;
  heat.bytes = 4096;
  EXPECT_FALSE((*control)->Call<wire::DoneT>(std::move(heat), Soon()).ok());
}

TEST_F(ControlTcpTest, AnotherSecretIsRefused) {
  const std::string other = volume_.path() + "/other";
  ASSERT_TRUE(MakeSecret(other).ok());
  const int opened = volume_.service().opened;
  EXPECT_EQ(ControlClient::Connect({place_, other}).status().code(), EACCES);
  EXPECT_EQ(ControlClient::Connect({place_, volume_.path() + "/none"}).status().code(), ENOENT);
  EXPECT_EQ(volume_.service().opened, opened);
}

// Whatever it says, it gets an alert at most, and no session.
TEST_F(ControlTcpTest, AStrangerLearnsNothing) {
  constexpr size_t kAlertBytes = 7;
  const int opened = volume_.service().opened;
  {
    ByHand plain(place_);
    plain.Send(EncodeControl(HelloMessage()));
    EXPECT_LE(plain.BytesUntilHungUp(), kAlertBytes);
  }
  {
    ByHand guesses(place_);
    EXPECT_EQ(guesses.ShakeHands(*AnotherKey()).code(), EACCES);
    EXPECT_EQ(guesses.BytesUntilHungUp(), 0U);
  }
  {
    ByHand hostile(place_);
    std::vector<std::byte> long_record(16 << 10, std::byte{1});  // a handshake of 16 MiB, it says
    const uint8_t begin[] = {0x16, 3, 3, 0x3f, 0xf0, 1, 0xff, 0xff, 0xf0};
    std::memcpy(long_record.data(), begin, sizeof(begin));
    hostile.SendBytes(long_record);
    EXPECT_LE(hostile.BytesUntilHungUp(), kAlertBytes);
  }
  EXPECT_EQ(volume_.service().opened, opened);
}

TEST_F(ControlTcpTest, WhatIsSpokenInsideTlsIsNamed) {
  ByHand other(place_);
  EXPECT_EQ(other.ShakeHands(*OwnKey(), "http/1.1").code(), EPROTO);
  EXPECT_EQ(other.BytesUntilHungUp(), 0U);
  ByHand data(place_);  // of the data path, without a token
  ASSERT_TRUE(data.ShakeHands(*OwnKey(), driver::kDataProtocol).ok());
  data.Send(EncodeControl(HelloMessage()));
  EXPECT_EQ(data.BytesUntilHungUp(), 0U);
}

TEST_F(ControlTcpTest, AnotherVersionLearnsOurs) {
  ByHand control(place_);
  ASSERT_TRUE(control.ShakeHands(*OwnKey()).ok());
  wire::HelloT hello;
  hello.version = kControlVersion + 1;
  wire::ControlMessageT message;
  message.body.Set(std::move(hello));
  control.Send(EncodeControl(message));
  const auto received = control.Receive();
  ASSERT_TRUE(received.ok());
  wire::ControlMessageT answer;
  ASSERT_TRUE(DecodeControl(received->bytes, answer).ok());
  ASSERT_NE(answer.body.AsError(), nullptr);
  EXPECT_EQ(answer.body.AsError()->code, EPROTO);
  EXPECT_NE(answer.body.AsError()->text.find("server version " + std::to_string(kControlVersion)), std::string::npos);
  EXPECT_EQ(control.BytesUntilHungUp(), 0U);
}

TEST_F(ControlTcpTest, AClientThatConnectsAgain_EndsItsFormerSession) {
  const auto say_hello = [](ControlClient& control, uint64_t client) {
    wire::HelloT hello;
    hello.version = kControlVersion;
    hello.client = client;
    return control.Call<wire::WelcomeT>(std::move(hello), Soon()).status();
  };
  const auto another = Connect().value();
  const auto former = Connect().value();
  ASSERT_TRUE(say_hello(*another, 6).ok() && say_hello(*former, 7).ok());
  const auto again = Connect().value();
  ASSERT_TRUE(say_hello(*again, 7).ok());
  EXPECT_EQ(former->Call<wire::DoneT>(wire::PingT(), Soon()).status().code(), ENOTCONN);
  for (ControlClient* const left : {another.get(), again.get()}) {
    EXPECT_TRUE(left->Call<wire::DoneT>(wire::PingT(), Soon()).ok());
  }
}

TEST_F(ControlTcpTest, ProbePath_SegmentsArriveBothWays) {
  const auto control = Connect().value();
  ASSERT_TRUE(SayHello(*control).ok());
  EXPECT_TRUE(control->ProbePath(Soon()).ok());
  wire::PingT ping;
  ping.padding.resize(1);
  const auto done = control->Call<wire::DoneT>(std::move(ping), Soon());
  ASSERT_TRUE(done.ok());
  EXPECT_GT(done->padding.size(), 1000U) << "the server's own segment";
  EXPECT_TRUE(control->Call<wire::DoneT>(wire::PingT(), Soon())->padding.empty());
}

TEST_F(ControlTcpTest, Connect_WithALimit_SendsSmallSegments) {
  const auto control = ControlClient::Connect({place_, SecretFile()}, 1220).value();
  ASSERT_TRUE(SayHello(*control).ok());
  EXPECT_LE(FullSegment(control->fd()).size(), 1220U);
  wire::PingT ping;
  ping.padding.resize(1);
  const auto done = control->Call<wire::DoneT>(std::move(ping), Soon());
  ASSERT_TRUE(done.ok());
  EXPECT_LE(done->padding.size(), 1220U) << "nor does the server send larger ones";
  EXPECT_GT(done->padding.size(), 1000U);
}

TEST_F(ControlTcpTest, AForgedOrRepeatedMessageEndsTheSession) {
  for (const bool repeated : {false, true}) {
    ByHand control(place_);
    ASSERT_TRUE(control.ShakeHands(*OwnKey()).ok());
    control.Send(EncodeControl(HelloMessage()));
    ASSERT_TRUE(control.Receive().ok());
    EXPECT_EQ(volume_.server().Sessions().size(), 2U);
    auto sealed = control.Sealed(EncodeControl(HelloMessage()));
    if (!repeated) {
      sealed.back() ^= std::byte{1};
    }
    control.SendBytes(sealed);
    if (repeated) {
      control.SendBytes(sealed);
    }
    control.BytesUntilHungUp();
    EXPECT_TRUE(Eventually([&] { return volume_.server().Sessions().size() == 1; }));
  }
}

// Its kernel hangs up for a process that has ended; one that is alive, and may come back, says so by a reset.
TEST_F(ControlTcpTest, WhoDiedAndWhoMayComeBack) {
  using How = server::SessionEnd::How;
  const auto end_of = [this](const std::function<void()>& end) {
    const int before = volume_.service().closed;
    end();
    EXPECT_TRUE(Eventually([&] { return volume_.service().closed == before + 1; }));
    return volume_.service().last_end.load();
  };
  auto control = Connect().value();
  ASSERT_TRUE(SayHello(*control).ok());
  EXPECT_EQ(end_of([&] { control->Shutdown(); }), How::kLost);
  EXPECT_EQ(control->Call<wire::DoneT>(wire::PingT(), Soon()).status().code(), ENOTCONN);
  control = Connect().value();
  ASSERT_TRUE(SayHello(*control).ok());
  EXPECT_EQ(end_of([&] { control.reset(); }), How::kLost);
  control = Connect().value();
  ASSERT_TRUE(SayHello(*control).ok());
  ASSERT_TRUE(control->Call<wire::DoneT>(wire::GoodbyeT(), Soon()).ok());
  EXPECT_EQ(end_of([&] { control.reset(); }), How::kGoodbye);
  for (int i = 0; i < 20; i++) {  // the server reads the end, or hears of it first
    ByHand by_hand(place_);
    ASSERT_TRUE(by_hand.ShakeHands(*OwnKey()).ok());
    by_hand.Send(EncodeControl(HelloMessage()));
    ASSERT_TRUE(by_hand.Receive().ok());
    EXPECT_EQ(end_of([&] { by_hand.socket = UniqueFd(); }), How::kDied);
  }
}

// Somebody who sits in between and does not know the secret.
TEST_F(ControlTcpTest, AServerWithoutTheSecretIsRefused) {
  const HostPort place{"127.0.0.1", FreePort()};
  const auto listeners = ListenTcp(place);
  ASSERT_TRUE(listeners.ok()) << listeners.status().ToString();
  std::thread impostor([&] {
    UniqueFd socket;
    ASSERT_TRUE(Eventually([&] {
      socket = UniqueFd(accept4(listeners->front().get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      return socket.valid();
    }));
    const TlsKey guess = DeriveTlsKey(std::vector<std::byte>(32), "a client and server 0").value();
    const std::string_view protocols[] = {kControlProtocol};
    const auto tls = TlsSession::Accept(*TlsContext::ForServer({&guess, 1}, protocols).value()).value();
    EXPECT_TRUE(WaitFor(socket.get(), POLLIN, Soon()).ok());
    std::array<std::byte, 4096> some;
    std::span<const std::byte> received = std::span(some).first(ReceiveSome(socket.get(), some).value());
    EXPECT_FALSE(tls->Handshake(received).ok());
    EXPECT_TRUE(SendAll(socket.get(), tls->TakeOutput(), Soon()).ok());
  });
  EXPECT_EQ(ControlClient::Connect({place, SecretFile()}).status().code(), EACCES);
  impostor.join();
}

TEST_F(ControlTcpTest, APortInUseIsAnError) {
  EXPECT_EQ(ListenTcp(place_).status().code(), EADDRINUSE);
  const HostPort nobody{"127.0.0.1", FreePort()};
  EXPECT_EQ(ConnectTcp(nobody, Soon()).status().code(), ECONNREFUSED);
}

// Its queue pair is gone, and nothing that it would send would ever tell it: as after a link that was cut for too long
// for the server alone.
TEST_F(ControlTcpTest, ReplyThatDoesNotArrive_EndsTheSession) {
  TestClient far;
  ASSERT_TRUE(far.Connect(ServerAddress(place_, SecretFile()), {.bitmap = client::BitmapMode::kPulled}).ok());
  const auto body = BytesOf(1);
  const auto reply = far.channel->Call(
      {.opcode = kWithhold, .body = body, .in = {}, .out = {}, .timeout = std::chrono::milliseconds(20)});
  ASSERT_EQ(reply.status().code(), ETIMEDOUT);
  ASSERT_TRUE(Eventually([&] { return volume_.service().withholding == 1; }));
  far.channel.reset();
  EXPECT_EQ(volume_.service().closed, 0);
  volume_.service().withheld = false;
  EXPECT_TRUE(Eventually([&] { return volume_.service().closed == 1; }));
  EXPECT_TRUE(
      Eventually([&] { return far.session->OpenChannel({.buffer_bytes = kPageSize}).status().code() == ENOTCONN; }));
}

// Nothing may reach it, and then it goes on by what it holds until its own pings are not answered.
TEST_F(ControlTcpTest, AnExpelledClient_HasNotEndedBeforeItKnows) {
  steady_clock::duration took[2];
  for (const bool hangs_up : {false, true}) {
    auto control = Connect();
    ASSERT_TRUE(control.ok()) << control.status().ToString();
    const auto welcome = SayHello(**control);
    ASSERT_TRUE(welcome.ok());
    const auto pinged = steady_clock::now();
    ASSERT_TRUE((*control)->Call<wire::DoneT>(wire::PingT(), Soon()).ok());
    const int closed = volume_.service().closed;
    volume_.server().Expel({welcome->session}, "test");
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_EQ(volume_.service().closed, closed);
    if (hangs_up) {
      control->reset();
    }
    EXPECT_TRUE(Eventually([&] { return volume_.service().closed == closed + 1; }));
    took[hangs_up ? 1 : 0] = steady_clock::now() - pinged;
  }
  EXPECT_GE(took[0], kServerSilence);
  EXPECT_LT(took[1], took[0]);
}

}  // namespace
}  // namespace termfs::tlib

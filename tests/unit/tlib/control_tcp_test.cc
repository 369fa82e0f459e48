// SPDX-License-Identifier: Apache-2.0
//
// The control channel over TCP: who knows the volume's secret is served, and nobody else learns or changes anything.
#include <netinet/in.h>

#include <fstream>
#include <functional>

#include "tests/unit/tlib/raw_control.h"
#include "tlib/client/control_client.h"
#include "tlib/rpc/sealed_channel.h"
#include "tlib/rpc/tcp_socket.h"

namespace termfs::tlib {
namespace {

using client::ControlClient;
using std::chrono::seconds;
using std::chrono::steady_clock;

steady_clock::time_point Soon() { return steady_clock::now() + seconds(120); }

uint16_t FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return LocalPlaceOf(fd.get()).port;
}

// A client of the volume's secret that sends what it likes.
struct ByHand {
  explicit ByHand(const HostPort& place) : socket(ConnectTcp(place, Soon()).value()) {}

  void Send(std::span<const std::byte> bytes) { EXPECT_TRUE(SendFrame(socket.get(), bytes, {}, Soon()).ok()); }
  Result<Frame> Receive() { return reader.Wait(socket.get(), Soon()); }
  // All that comes until the server hangs up.
  size_t BytesUntilHungUp() {
    size_t bytes = 0;
    while (true) {
      const auto frame = Receive();
      if (!frame.ok()) {
        EXPECT_EQ(frame.status().code(), ENOTCONN) << frame.status().ToString();
        return bytes;
      }
      bytes += frame->bytes.size();
    }
  }
  void ShakeHands(const Secret& secret) {
    seal = SealedChannel::Create(SealedChannel::End::kClient, secret, kControlVersion).value();
    Send(seal->Greeting());
    ASSERT_TRUE(seal->TakeGreeting(Receive()->bytes).ok());
    Send(seal->Proof().value());
    ASSERT_TRUE(seal->TakeProof(Receive()->bytes).ok());
  }
  std::vector<std::byte> Sealed(wire::ControlMessageT message) { return seal->Seal(EncodeControl(message)).value(); }

  UniqueFd socket;
  FrameReader reader;
  std::optional<SealedChannel> seal;
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
    volume_.options().secret = LoadOrMakeSecret(SecretFile()).value();
    HostileTest::SetUp();
  }
  std::string SecretFile() { return volume_.path() + "/secret"; }
  const Secret& OwnSecret() { return *volume_.options().secret; }
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
  ASSERT_TRUE(LoadOrMakeSecret(other).ok());
  const int opened = volume_.service().opened;
  EXPECT_EQ(ControlClient::Connect({place_, other}).status().code(), EACCES);
  EXPECT_EQ(ControlClient::Connect({place_, volume_.path() + "/none"}).status().code(), ENOENT);
  EXPECT_EQ(volume_.service().opened, opened);
}

TEST_F(ControlTcpTest, AStrangerLearnsNothing) {
  {
    ByHand plain(place_);
    plain.Send(EncodeControl(HelloMessage()));
    EXPECT_LE(plain.BytesUntilHungUp(), kLongestOfHandshake);
  }
  {
    ByHand guesses(place_);
    const auto seal = SealedChannel::Create(SealedChannel::End::kClient, Secret{}, kControlVersion);
    guesses.Send(seal->Greeting());
    guesses.Send(std::vector<std::byte>(kTagBytes));
    EXPECT_LE(guesses.BytesUntilHungUp(), kLongestOfHandshake);
  }
}

// Refused for what it announces, not when patience ends with it: one that came before and says nothing is still there.
TEST_F(ControlTcpTest, AStrangerGetsNoMemory) {
  const ByHand silent(place_);
  ByHand greedy(place_);
  const uint32_t length = kLongestOfHandshake + 1;
  ASSERT_EQ(send(greedy.socket.get(), &length, sizeof(length), MSG_NOSIGNAL), ssize_t{sizeof(length)});
  EXPECT_EQ(greedy.BytesUntilHungUp(), 0U);
  char byte = 0;
  EXPECT_EQ(recv(silent.socket.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(ControlTcpTest, AnotherVersionLearnsOurs) {
  ByHand control(place_);
  SealedChannel seal = SealedChannel::Create(SealedChannel::End::kClient, OwnSecret(), kControlVersion + 1).value();
  control.Send(seal.Greeting());
  const auto greeting = control.Receive();
  ASSERT_TRUE(greeting.ok());
  const Status refused = seal.TakeGreeting(greeting->bytes);
  EXPECT_NE(refused.message().find("version " + std::to_string(kControlVersion)), std::string_view::npos);
  EXPECT_EQ(control.BytesUntilHungUp(), 0U);
}

TEST_F(ControlTcpTest, AForgedOrRepeatedMessageEndsTheSession) {
  for (const bool repeated : {false, true}) {
    ByHand control(place_);
    control.ShakeHands(OwnSecret());
    auto hello = control.Sealed(HelloMessage());
    control.Send(hello);
    EXPECT_TRUE(control.seal->Open(control.Receive()->bytes).ok());
    EXPECT_EQ(volume_.server().Sessions().size(), 2U);
    if (!repeated) {
      hello = control.Sealed(HelloMessage());
      hello.back() ^= std::byte{1};
    }
    control.Send(hello);
    const auto answer = control.Receive();
    ASSERT_TRUE(answer.ok());
    wire::ControlMessageT message;
    ASSERT_TRUE(DecodeControl(control.seal->Open(answer->bytes).value(), message).ok());
    ASSERT_NE(message.body.AsError(), nullptr);
    EXPECT_EQ(message.body.AsError()->code, EBADMSG);
    EXPECT_EQ(control.BytesUntilHungUp(), 0U);
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
    by_hand.ShakeHands(OwnSecret());
    by_hand.Send(by_hand.Sealed(HelloMessage()));
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
    FrameReader reader;
    const auto greeting = reader.Wait(socket.get(), Soon());
    const auto seal = SealedChannel::Create(SealedChannel::End::kServer, Secret{}, kControlVersion);
    ASSERT_TRUE(SendFrame(socket.get(), seal->Greeting(), {}, Soon()).ok());
    const auto proof = reader.Wait(socket.get(), Soon());
    ASSERT_TRUE(proof.ok());
    ASSERT_TRUE(SendFrame(socket.get(), proof->bytes, {}, Soon()).ok());  // its own, played back
    [[maybe_unused]] const auto gone = reader.Wait(socket.get(), Soon());
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

}  // namespace
}  // namespace termfs::tlib

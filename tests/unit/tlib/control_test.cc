// SPDX-License-Identifier: Apache-2.0
//
// Clients that do not keep to the control channel's protocol, or want too much of it.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "tests/unit/tlib/raw_control.h"

namespace termfs::tlib {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

class ControlTest : public HostileTest {};

TEST_F(ControlTest, OtherVersionIsRefusedAndBothAreNamed) {
  RawControl control(volume_.path());
  wire::HelloT hello;
  hello.version = kControlVersion + 7;
  control.Send(std::move(hello));
  const Status refused = control.Receive();
  EXPECT_EQ(refused.code(), EPROTO);
  EXPECT_NE(refused.message().find(std::to_string(kControlVersion)), std::string_view::npos);
  EXPECT_NE(refused.message().find(std::to_string(kControlVersion + 7)), std::string_view::npos);
  EXPECT_TRUE(control.HungUp());
}

TEST_F(ControlTest, RequestBeforeHelloIsRefused) {
  RawControl control(volume_.path());
  control.Send(wire::GetRegionInfoT());
  EXPECT_EQ(control.Receive().code(), EPROTO);
  EXPECT_TRUE(control.HungUp());
}

TEST_F(ControlTest, SecondHelloIsRefused) {
  RawControl control(volume_.path());
  control.Send(Hello());
  EXPECT_TRUE(control.Receive().ok());
  control.Send(Hello());
  EXPECT_EQ(control.Receive().code(), EPROTO);
  EXPECT_TRUE(control.HungUp());
}

TEST_F(ControlTest, GarbageIsRefused) {
  Random random(1);
  for (int round = 0; round < 50; round++) {
    RawControl control(volume_.path());
    if (round % 2 == 0) {
      control.Send(Hello());
    }
    std::vector<std::byte> bytes(random.Below(3000));
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    if (round % 3 == 0) {  // a plausible length first
      const uint32_t length = static_cast<uint32_t>(random.Below(bytes.size() + 1));
      control.SendBytes(std::as_bytes(std::span(&length, 1)));
    }
    control.SendBytes(bytes);
  }
}

TEST_F(ControlTest, CutMessagesAreRefused) {
  wire::ControlMessageT message;
  message.body.Set(Hello());
  const auto whole = EncodeControl(message);
  for (uint32_t length = 0; length < whole.size(); length++) {
    RawControl control(volume_.path());
    control.SendBytes(std::as_bytes(std::span(&length, 1)));
    control.SendBytes(std::span(whole).first(length));
    EXPECT_EQ(control.Receive().code(), EPROTO) << length;
  }
}

TEST_F(ControlTest, TooLongIsRefused) {
  RawControl control(volume_.path());
  const uint32_t length = kMaxControlMessage + 1;
  control.SendBytes(std::as_bytes(std::span(&length, 1)));
  EXPECT_TRUE(control.HungUp());
}

TEST_F(ControlTest, QueuePairWithAGarbageEndpointIsAnError) {
  RawControl control(volume_.path());
  control.Send(Hello());
  ASSERT_TRUE(control.Receive().ok());
  for (const size_t size : {0U, 10U, 24U, 1000U}) {
    wire::OpenQueuePairT open;
    open.endpoint.resize(size, 0xab);
    control.Send(std::move(open));
    EXPECT_EQ(control.Receive().code(), EPROTO) << size;
  }
  control.Send(wire::GetRegionInfoT());
  EXPECT_TRUE(control.Receive().ok());
}

TEST_F(ControlTest, DescriptorsThatNobodyWantsAreClosed) {
  const auto count = [] {
    size_t open_now = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      open_now++;
    }
    return open_now;
  };
  RawControl control(volume_.path());
  control.Send(Hello());
  ASSERT_TRUE(control.Receive().ok());
  wire::ControlMessageT message;
  message.body.Set(wire::GetRegionInfoT());
  const size_t before = count();
  for (int i = 0; i < 20; i++) {
    std::vector<UniqueFd> fds;
    for (size_t k = 0; k < kMaxControlFds; k++) {
      fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
    ASSERT_TRUE(SendFrame(control.fd(), EncodeControl(message), fds, steady_clock::now() + seconds(120)).ok());
    ASSERT_TRUE(control.Receive().ok());
  }
  EXPECT_TRUE(Eventually([&] { return count() <= before; }));
}

TEST_F(ControlTest, AFloodOfRequestsWithoutReadingAnswersIsCutOff) {
  RawControl control(volume_.path());
  control.Send(Hello());
  ASSERT_TRUE(control.Receive().ok());
  wire::ControlMessageT message;
  message.body.Set(wire::GetRegionInfoT());
  const auto bytes = EncodeControl(message);
  const auto deadline = steady_clock::now() + seconds(120);
  Status sent;
  while (sent.ok() && steady_clock::now() < deadline) {
    sent = SendFrame(control.fd(), bytes, {}, deadline);
  }
  EXPECT_EQ(sent.code(), ENOTCONN);
}

TEST(Control, AnotherUserIsRefused) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "needs root to become somebody else";
  }
  TestVolume volume({.pages = 256, .dram_ratio = 0.5});
  std::array<int, 2> go{};
  ASSERT_EQ(pipe2(go.data(), O_CLOEXEC), 0);
  const pid_t child = fork();  // before this process has an RNIC
  if (child == 0) {
    char byte = 0;
    if (read(go[0], &byte, 1) != 1 || setgid(65534) != 0 || setuid(65534) != 0) {
      _exit(99);
    }
    TestClient client;
    _exit(client.Connect(volume.path()).code());
  }
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  // Even where the file's mode would let everybody in.
  ASSERT_EQ(chmod(volume.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod((volume.path() + "/socket").c_str(), 0666), 0);
  ASSERT_EQ(write(go[1], "g", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), EACCES);
  EXPECT_EQ(volume.service().opened, 0);
}

// The connection that is cut off may be this one, and the next must be served.
TEST_F(ControlTest, AFloodOfStrangersKeepsNobodyOut) {
  std::vector<std::unique_ptr<RawControl>> strangers;
  for (int i = 0; i < 200; i++) {
    strangers.push_back(std::make_unique<RawControl>(volume_.path()));
  }
  EXPECT_TRUE(strangers.front()->HungUp()) << "the oldest made room";
  RawControl control(volume_.path());
  control.Send(Hello());
  EXPECT_TRUE(control.Receive().ok());
}

TEST_F(ControlTest, OneProcessHasABoundedNumberOfSessions) {
  std::vector<std::unique_ptr<RawControl>> sessions;
  size_t refused = 0;
  for (int i = 0; i < 300; i++) {
    sessions.push_back(std::make_unique<RawControl>(volume_.path()));
    sessions.back()->Send(Hello());
    refused += sessions.back()->Receive().ok() ? 0 : 1;
  }
  EXPECT_EQ(refused, 300U - 255U) << "all but 256, one of them the bystander's";
  sessions.clear();
  EXPECT_TRUE(Eventually([&] {
    RawControl control(volume_.path());
    control.Send(Hello());
    return control.Receive().ok();
  })) << "who leaves makes room";
}

TEST_F(ControlTest, HalfAMessageIsWaitedForABoundedTime) {
  RawControl stranger(volume_.path());
  RawControl control(volume_.path());
  control.Send(Hello());
  ASSERT_TRUE(control.Receive().ok());
  const uint32_t length = 1000;
  for (RawControl* sender : {&stranger, &control}) {
    sender->SendBytes(std::as_bytes(std::span(&length, 1)));
    sender->SendBytes(std::vector<std::byte>(10));
  }
  EXPECT_TRUE(stranger.HungUp());
  EXPECT_TRUE(control.HungUp());
}

TEST_F(ControlTest, ABusyClientLeavesTurnsToOthers) {
  RawControl busy(volume_.path());
  busy.Send(Hello());
  ASSERT_TRUE(busy.Receive().ok());
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop.load() && busy.Receive().code() != ENOTCONN) {
    }
  });
  std::thread writer([&] {
    while (!stop.load()) {
      busy.Send(wire::GetRegionInfoT());
    }
  });
  for (int i = 0; i < 20; i++) {
    RawControl control(volume_.path());
    control.Send(Hello());
    EXPECT_TRUE(control.Receive().ok());
  }
  stop.store(true);
  shutdown(busy.fd(), SHUT_RDWR);
  writer.join();
  reader.join();
}

TEST_F(ControlTest, ANameForTheTerminalIsMadeHarmless) {
  RawControl control(volume_.path());
  wire::HelloT hello = Hello();
  hello.program = "x\x1b]0;y\n\xff" + std::string(100000, 'z');
  control.Send(std::move(hello));
  ASSERT_TRUE(control.Receive().ok());
  bool found = false;
  for (const server::SessionInfo& session : volume_.server().Sessions()) {
    found |= session.program.starts_with("x?]0;y??zzz") && session.program.size() <= 128;
  }
  EXPECT_TRUE(found);
}

TEST_F(ControlTest, QueuePairsOfASessionAreBounded) {
  RawControl control(volume_.path());
  control.Send(Hello());
  ASSERT_TRUE(control.Receive().ok());
  auto nic = driver::CreateSoftNic();
  auto domain = (*nic)->CreateProtectionDomain();
  auto queue = (*nic)->CreateCompletionQueue(1 << 14);
  std::vector<std::unique_ptr<driver::QueuePair>> pairs;
  std::vector<std::vector<UniqueFd>> held;  // what the server opened stays connected
  Status opened;
  while (opened.ok() && pairs.size() < 1000) {
    pairs.push_back((*domain)
                        ->CreateQueuePair({.send_cq = queue->get(),
                                           .recv_cq = queue->get(),
                                           .max_send = 8,
                                           .max_recv = 8,
                                           .max_message = kMaxMessage})
                        .value());
    auto local = pairs.back()->LocalEndpoint().value();
    wire::OpenQueuePairT open;
    const auto* bytes = reinterpret_cast<const uint8_t*>(local.bytes.data());
    open.endpoint.assign(bytes, bytes + local.bytes.size());
    wire::ControlMessageT message;
    message.body.Set(std::move(open));
    ASSERT_TRUE(SendFrame(control.fd(), EncodeControl(message), local.fds, steady_clock::now() + seconds(120)).ok());
    wire::ControlMessageT answer;
    opened = control.Receive(answer, &held.emplace_back());
  }
  EXPECT_EQ(opened.code(), EUSERS);
  EXPECT_EQ(pairs.size(), 601U);
  TestClient another;
  EXPECT_TRUE(another.Connect(volume_.path()).ok());
}

// A server that is out of descriptors turns nobody's session into an error, and serves again when there are some.
TEST_F(ControlTest, OutOfDescriptors_TheServerWaitsAndGoesOn) {
#if defined(__has_feature)
#if __has_feature(undefined_behavior_sanitizer) || __has_feature(address_sanitizer)
  GTEST_SKIP() << "the sanitizer takes descriptors itself to see whether an object's type can be read";
#endif
#endif
  std::vector<UniqueFd> hoard;
  RawControl early(volume_.path());
  early.Send(Hello());
  ASSERT_TRUE(early.Receive().ok());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  UniqueFd kept(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const rlimit none{.rlim_cur = static_cast<rlim_t>(kept.get()) + 1, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  while (true) {  // whatever is free below
    UniqueFd fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) {
      break;
    }
    hoard.push_back(std::move(fd));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (volume_.path() + "/socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(connect(kept.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  early.Send(wire::GetRegionInfoT());
  EXPECT_TRUE(early.Receive().ok()) << "who is there is served";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  hoard.clear();
  RawControl late(volume_.path());
  late.Send(Hello());
  EXPECT_TRUE(late.Receive().ok());
}

}  // namespace
}  // namespace termfs::tlib

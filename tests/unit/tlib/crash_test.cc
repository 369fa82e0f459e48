// SPDX-License-Identifier: Apache-2.0
//
// Clients and servers that die at any instant. The processes that are to die are forked before this one has an RNIC.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <future>

#include "tests/unit/tlib/volume_fixture.h"

namespace termfs::tlib {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A child that runs `body` when it is told to, and is killed in the end.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    std::array<int, 2> to{};
    std::array<int, 2> from{};
    EXPECT_EQ(pipe2(to.data(), O_CLOEXEC) | pipe2(from.data(), O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(to[1]);
      close(from[0]);
      said_ = from[1];
      char go = 0;
      if (read(to[0], &go, 1) == 1) {
        body();
      }
      _exit(0);
    }
    close(to[0]);
    close(from[1]);
    go_ = UniqueFd(to[1]);
    heard_ = UniqueFd(from[0]);
  }
  ~Child() { Kill(); }
  Child(Child&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), go_(std::move(other.go_)), heard_(std::move(other.heard_)) {}

  void Go() { ASSERT_EQ(write(go_.get(), "g", 1), 1); }
  // In the child: tells the parent that it got somewhere.
  static void Say() {
    if (write(said_, "s", 1) != 1) {
      _exit(1);
    }
  }
  bool Heard() {
    char byte = 0;
    return read(heard_.get(), &byte, 1) == 1;
  }
  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }

 private:
  static inline int said_ = -1;
  pid_t pid_ = -1;
  UniqueFd go_;
  UniqueFd heard_;
};

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    count++;
  }
  return count;
}

// Mappings of shared memory; those of stacks and heaps come and go.
size_t SharedMappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:") != std::string::npos;
  }
  return count;
}

// Reads, writes, calls and is called, with two channels, until it is killed.
void Hammer(const std::string& path) {
  class Handler final : public client::CallbackHandler {
   public:
    Result<std::vector<std::byte>> HandleCallback(uint16_t, std::span<const std::byte> body) override {
      return std::vector<std::byte>(body.begin(), body.end());
    }
    void SessionLost(const Status&) override {}
  };
  static Handler handler;
  TestClient client;
  if (!client.Connect(path, {.bitmap = client::BitmapMode::kOff, .heat_period = milliseconds(1)}, &handler).ok()) {
    _exit(1);
  }
  Child::Say();
  std::thread second([&] {
    auto channel = client.session->OpenChannel({});
    while (channel.ok()) {
      const auto reply = (*channel)->Call({.opcode = kCallBack, .body = BytesOf(1), .in = {}, .out = {}});
      if (!reply.ok()) {
        _exit(1);
      }
    }
  });
  Random random(static_cast<uint64_t>(getpid()));
  std::vector<std::byte> bytes(50'000);
  while (true) {
    const uint64_t offset = random.Below(900) * kPageSize;
    if (!client.Write(offset, bytes).ok() || !client.Read(random.Below(900) * kPageSize, bytes).ok()) {
      _exit(1);
    }
  }
}

TEST(Crash, Client_KilledAtAnyInstantLeavesNothing) {
  TestVolume volume({.pages = 1024, .dram_ratio = 0.2, .sample_period = milliseconds(1)});
  std::vector<Child> children;
  for (int i = 0; i < 16; i++) {
    children.emplace_back([&] { Hammer(volume.path()); });
  }
  ASSERT_TRUE(volume.Format().ok());
  ASSERT_TRUE(volume.Start().ok());
  Random random(1);
  size_t descriptors = 0;
  size_t mappings = 0;
  int round = 0;
  for (Child& child : children) {
    child.Go();
    ASSERT_TRUE(child.Heard());
    const auto life = std::chrono::microseconds(random.Below(30'000));
    const auto end = steady_clock::now() + life;
    while (steady_clock::now() < end) {
    }
    child.Kill();
    ASSERT_TRUE(Eventually([&] { return volume.service().closed == round + 1; })) << round;
    ASSERT_TRUE(Eventually([&] { return MetricOf(volume.server().Metrics(), "queue_pairs") == 0; }));
    if (round == 1) {  // what is made once is there
      descriptors = OpenDescriptors();
      mappings = SharedMappings();
    }
    round++;
  }
  EXPECT_TRUE(volume.server().Sessions().empty());
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= descriptors; })) << OpenDescriptors() << " " << descriptors;
  EXPECT_TRUE(Eventually([&] { return SharedMappings() <= mappings; })) << SharedMappings() << " " << mappings;
}

TEST(Crash, Server_KilledIsENOTCONNAndNoTimeout) {
  auto volume = std::make_unique<TestVolume>(server::RegionOptions{.pages = 1024, .dram_ratio = 0.5});
  Child server([&] {
    if (!volume->Format().ok() || !volume->Start().ok()) {
      _exit(1);
    }
    Child::Say();
    pause();
  });
  server.Go();
  ASSERT_TRUE(server.Heard());
  TestClient client;
  ASSERT_TRUE(client.Connect(volume->path()).ok());
  auto other = client.session->OpenChannel({});
  ASSERT_TRUE(other.ok());
  auto asleep = std::async(std::launch::async, [&] {
    return client.channel->Call({.opcode = kWithhold, .body = {}, .in = {}, .out = {}}).status().code();
  });
  auto reading = std::async(std::launch::async, [&] {
    const client::ReadRequest read{.offset = {0}, .length = 100, .destination = (*other)->buffer().data()};
    while (true) {
      if (const Status status = (*other)->Read({&read, 1}); !status.ok()) {
        return status.code();
      }
    }
  });
  ASSERT_TRUE(Eventually([&] { return MetricOf(client.session->Metrics(), "calls_total") == 1; }));
  server.Kill();
  EXPECT_EQ(asleep.get(), ENOTCONN);
  EXPECT_EQ(reading.get(), ENOTCONN);
  EXPECT_TRUE(Eventually([&] { return client.session->lost(); }));
}

TEST(Crash, Server_KilledLeavesASocketThatIsReplaced) {
  auto volume = std::make_unique<TestVolume>(server::RegionOptions{.pages = 256, .dram_ratio = 0.5});
  Child first([&] {
    if (!volume->Format().ok() || !volume->Start().ok()) {
      _exit(1);
    }
    Child::Say();
    pause();
  });
  first.Go();
  ASSERT_TRUE(first.Heard());
  {
    TestClient client;
    ASSERT_TRUE(client.Connect(volume->path()).ok());
  }
  first.Kill();
  ASSERT_TRUE(volume->Start().ok());  // the socket that was left behind is replaced
  TestClient client;
  EXPECT_TRUE(client.Connect(volume->path()).ok());
}

}  // namespace
}  // namespace termfs::tlib

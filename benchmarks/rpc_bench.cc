// SPDX-License-Identifier: Apache-2.0
//
// rpc_bench [PAIRS]: the round trip of a request of 64 bytes and its reply between two processes, beside a bare
// ping-pong of one cache line in shared memory; then the same with a pause before each round trip, so that both sides
// sleep, beside a ping-pong of two eventfds. Each side has a processor of its own. Turns of the two alternate. Prints
// JSON: medians of each pair in nanoseconds.
#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/page.h"
#include "benchmarks/must.h"
#include "driver/softnic/softnic.h"
#include "tlib/client/session.h"
#include "tlib/server/server.h"

namespace termfs::benchmarks {
namespace {

using std::chrono::steady_clock;

constexpr uint16_t kEcho = 64;
static_assert(kEcho >= tlib::kFirstServiceOpcode);
constexpr size_t kBytes = 64;
constexpr uint64_t kRegionPages = 1024;
constexpr int kTripsPerTurn = 2000;
constexpr int kSleptTripsPerTurn = 50;
constexpr std::chrono::milliseconds kPause{2};  // longer than anybody spins
constexpr uint64_t kStop = ~uint64_t{0};

class EchoService final : public tlib::server::Service {
 public:
  Result<std::vector<std::byte>> Handle(tlib::server::Call& call) override {
    return std::vector<std::byte>(call.body().begin(), call.body().end());
  }
  Result<std::vector<std::byte>> HandleAdmin(uint16_t, std::span<const std::byte>) override {
    return Status::Error(ENOSYS, "none");
  }
  Status SessionOpened(const tlib::server::SessionInfo&) override { return Status::Ok(); }
  void SessionClosed(tlib::server::SessionId, const tlib::server::SessionEnd&) override {}
  bool AllowsRawWrites() const override { return false; }
};

// What the bare ping-pongs share.
struct Shared {
  alignas(64) std::atomic<uint64_t> line{0};  // odd: the server's turn
};

struct Peers {
  Shared* shared = nullptr;
  int ping = -1;
  int pong = -1;
};

void ServeLine(Shared& shared) {
  for (uint64_t seen = 0; seen != kStop; seen = shared.line.load(std::memory_order_acquire)) {
    if ((seen & 1) != 0) {
      shared.line.store(seen + 1, std::memory_order_release);
    }
    __builtin_ia32_pause();
  }
}

void ServeEvents(const Peers& peers) {
  uint64_t count = 0;
  while (read(peers.ping, &count, sizeof(count)) == sizeof(count) && count < kStop / 2) {
    const uint64_t one = 1;
    if (write(peers.pong, &one, sizeof(one)) != sizeof(one)) {
      return;
    }
  }
}

// On one processor two that spin would only be in each other's way, and there the scheduler leaves them.
void RunOn(size_t cpu) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  CPU_SET(cpu, &allowed);
  if (std::thread::hardware_concurrency() > 1 && sched_setaffinity(0, sizeof(allowed), &allowed) != 0) {
    Die(ErrnoStatus("choose a processor"));
  }
}

pid_t Fork(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    RunOn(1);
    body();
    _exit(0);
  }
  return child;
}

void ServeCalls(const std::string& directory, int ready) {
  tlib::server::ServerOptions options;
  options.region.device = directory + "/region";
  options.region.written_log = directory + "/written";
  options.region.pages = kRegionPages;
  options.region.kind = driver::RegionKind::kPin;
  options.socket_directory = directory;
  Must(tlib::server::Server::FormatRegion(options.region, nullptr));
  const auto nic = Must(driver::CreateSoftNic());
  EchoService service;
  const auto server = Must(tlib::server::Server::Start(*nic, options, service));
  char byte = 1;
  if (write(ready, &byte, 1) != 1 || read(ready, &byte, 1) < 0) {
    Die(ErrnoStatus("tell that the server runs"));
  }
}

// Nanoseconds for one trip: the median of a turn of `trips`.
double Turn(int trips, std::chrono::milliseconds pause, const std::function<void()>& trip) {
  std::vector<double> times;
  for (int i = 0; i < trips; i++) {
    if (pause.count() > 0) {
      std::this_thread::sleep_for(pause);
    }
    const auto begin = steady_clock::now();
    trip();
    times.push_back(static_cast<double>((steady_clock::now() - begin).count()));
  }
  std::nth_element(times.begin(), times.begin() + trips / 2, times.end());
  return times[static_cast<size_t>(trips) / 2];
}

void TripOfLine(Shared& shared) {
  const uint64_t turn = shared.line.load(std::memory_order_relaxed) + 1;
  shared.line.store(turn, std::memory_order_release);
  while (shared.line.load(std::memory_order_acquire) == turn) {
    __builtin_ia32_pause();
  }
}

void TripOfEvents(const Peers& peers) {
  uint64_t count = 1;
  if (write(peers.ping, &count, sizeof(count)) != sizeof(count) ||
      read(peers.pong, &count, sizeof(count)) != sizeof(count)) {
    Die(ErrnoStatus("eventfd ping-pong"));
  }
}

void PrintPairs(const char* name, int pairs, const std::function<std::array<double, 2>()>& measure, bool last) {
  std::printf("\"%s\": [", name);
  measure();  // to warm up
  for (int i = 0; i < pairs; i++) {
    const auto [rpc, bare] = measure();
    std::printf("%s[%.1f, %.1f]", i == 0 ? "" : ", ", rpc, bare);
  }
  std::printf("]%s", last ? "" : ", ");
}

void Measure(const std::string& directory, const Peers& peers, int pairs) {
  const auto nic = Must(driver::CreateSoftNic());
  const auto session = Must(tlib::client::Session::Connect(*nic, directory, {}, nullptr));
  const auto channel = Must(session->OpenChannel({.buffer_bytes = kPageSize}));
  const std::array<std::byte, kBytes> body{};
  const auto call = [&] {
    const auto reply = channel->Call({.opcode = kEcho, .body = body, .in = {}, .out = {}});
    if (!reply.ok() || reply->body.size() != kBytes) {
      Die(reply.ok() ? Status::Error(EPROTO, "not an echo") : reply.status());
    }
  };
  std::printf("{");
  PrintPairs(
      "spinning", pairs,
      [&]() -> std::array<double, 2> {
        const double rpc = Turn(kTripsPerTurn, {}, call);
        const pid_t line = Fork([&] { ServeLine(*peers.shared); });
        const double bare = Turn(kTripsPerTurn, {}, [&] { TripOfLine(*peers.shared); });
        peers.shared->line.store(kStop, std::memory_order_release);
        waitpid(line, nullptr, 0);
        peers.shared->line.store(0, std::memory_order_release);
        return {rpc, bare};
      },
      false);
  PrintPairs(
      "sleeping", pairs,
      [&]() -> std::array<double, 2> {
        return {Turn(kSleptTripsPerTurn, kPause, call), Turn(kSleptTripsPerTurn, kPause, [&] { TripOfEvents(peers); })};
      },
      true);
  std::printf("}\n");
}

int Main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;  // NOLINT(cert-err34-c): at least one
  std::string directory = "/var/tmp/termfs-rpc-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    Die(ErrnoStatus("make a directory"));
  }
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int ready[2];
  Peers peers{.shared = nullptr, .ping = eventfd(0, EFD_CLOEXEC), .pong = eventfd(0, EFD_CLOEXEC)};
  if (memory == MAP_FAILED || peers.ping < 0 || peers.pong < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, ready) != 0) {
    Die(ErrnoStatus("set up the processes"));
  }
  peers.shared = new (memory) Shared;
  const pid_t server = Fork([&] {
    close(ready[0]);
    ServeCalls(directory, ready[1]);
  });
  const pid_t events = Fork([&] {
    close(ready[0]);
    ServeEvents(peers);
  });
  close(ready[1]);
  RunOn(0);
  char byte = 0;
  if (read(ready[0], &byte, 1) == 1) {
    Measure(directory, peers, pairs);
  }
  close(ready[0]);
  const uint64_t stop = kStop / 2;
  const bool told = write(peers.ping, &stop, sizeof(stop)) == sizeof(stop);
  int status = 0;
  waitpid(server, &status, 0);
  if (told) {
    waitpid(events, nullptr, 0);
  }
  std::filesystem::remove_all(directory);
  return byte == 1 && status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace termfs::benchmarks

int main(int argc, char** argv) { return termfs::benchmarks::Main(argc, argv); }

// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/load.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <thread>

#include "benchmarks/must.h"
#include "driver/softnic/softnic.h"

namespace termfs::benchmarks::term {
namespace {

using tlib::client::Session;

constexpr size_t kFillBytes = 1U << 20;
constexpr std::chrono::seconds kGoodbye{5};

constexpr size_t kVerifiedPages = 2048;

enum class Order : uint32_t { kFill, kVerify, kBegin, kForget, kRun };
struct Command {
  Order order = Order::kBegin;
  size_t point = 0;  // kBegin
  Turn turn;
};

SessionCounts CountsOf(const Session& session) {
  std::map<std::string, uint64_t> values;
  for (const MetricValue& metric : session.Metrics()) {
    values[metric.name] = metric.value;
  }
  return {.read_pages = values["read_pages_total"],
          .hit_pages = values["read_hit_pages_total"],
          .bitmap_pages = values["absent_by_bitmap_pages_total"],
          .pattern_pages = values["absent_by_pattern_pages_total"],
          .rpc_reads = values["rpc_reads_total"],
          .rpc_read_pages = values["rpc_read_pages_total"],
          .bitmap_pulls = values["bitmap_pulls_total"],
          .hit_p50 = values["read_hit_p50_ns"],
          .hit_p99 = values["read_hit_p99_ns"],
          .miss_p50 = values["read_miss_p50_ns"],
          .miss_p99 = values["read_miss_p99_ns"],
          .miss_p999 = values["read_miss_p999_ns"]};
}

SessionCounts Since(const SessionCounts& before, SessionCounts now) {
  now.read_pages -= before.read_pages;
  now.hit_pages -= before.hit_pages;
  now.bitmap_pages -= before.bitmap_pages;
  now.pattern_pages -= before.pattern_pages;
  now.rpc_reads -= before.rpc_reads;
  now.rpc_read_pages -= before.rpc_read_pages;
  now.bitmap_pulls -= before.bitmap_pulls;
  return now;
}

// One client process.
class Client {
 public:
  Client(const std::vector<Settings>& points, const std::vector<std::string>& directories, uint32_t process,
         Tally* tallies)
      : points_(points),
        directories_(directories),
        process_(process),
        tallies_(tallies),
        nic_(Must(driver::CreateSoftNic())),
        rates_(directories.size()),
        forgotten_(directories.size()) {}
  ~Client() { End(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void Obey(const Command& command) {
    switch (command.order) {
      case Order::kFill:
        return Fill(command.turn.kind);
      case Order::kVerify:
        return Verify(command.turn.kind);
      case Order::kBegin:
        return Begin(command.point);
      case Order::kForget:
        return Forget();
      case Order::kRun:
        return Run(command.turn);
    }
  }

 private:
  std::unique_ptr<Session> Connect(size_t kind) {
    tlib::client::SessionOptions options{.program = "term_bench", .bitmap = BitmapFor(kind)};
    if (!settings().heat) {
      options.heat_period = {};
    }
    return Must(Session::Connect(*nic_, directories_[kind], options, nullptr));
  }
  tlib::client::BitmapMode BitmapFor(size_t kind) const {
    return settings().kinds[kind].region == driver::RegionKind::kTerm ? settings().bitmap
                                                                      : tlib::client::BitmapMode::kOff;
  }

  void Fill(size_t kind) {
    const auto session = Connect(kind);
    const auto channel = Must(session->OpenChannel({.buffer_bytes = kFillBytes}));
    const auto bytes = channel->buffer().first(kFillBytes);
    FillChunk(kind, bytes);
    for (uint64_t at = 0; at < settings().pattern.region_bytes; at += kFillBytes) {
      Must(channel->Write({at}, bytes));
    }
    Must(session->Goodbye(kGoodbye));
  }

  void Verify(size_t kind) {
    const auto session = Connect(kind);
    const auto channel = Must(session->OpenChannel({.buffer_bytes = kPageSize}));
    std::vector<std::byte> chunk(kFillBytes);
    FillChunk(kind, chunk);
    Random random(kind + 1);
    std::byte* const page = channel->buffer().data();
    for (size_t i = 0; i < kVerifiedPages; i++) {
      const uint64_t at = random.Below(settings().pages()) * kPageSize;
      const tlib::client::ReadRequest read{.offset = {at}, .length = kPageSize, .destination = page};
      Must(channel->Read({&read, 1}));
      if (std::memcmp(page, chunk.data() + at % kFillBytes, kPageSize) != 0) {
        Die(Status::Error(EIO, settings().kinds[kind].name + " has wrong bytes at " + std::to_string(at)));
      }
    }
    Must(session->Goodbye(kGoodbye));
  }

  // What each MiB of the region is filled with.
  static void FillChunk(size_t kind, std::span<std::byte> bytes) {
    Random random(kind + 1);
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(bytes.data() + i, &word, sizeof(word));
    }
  }

  void End() {
    accessors_.clear();
    for (const auto& session : sessions_) {
      Must(session->Goodbye(kGoodbye));
    }
    sessions_.clear();
  }

  void Begin(size_t point) {
    End();
    point_ = point;
    generation_++;
    for (size_t kind = 0; kind < directories_.size(); kind++) {
      new (&tallies_[kind]) Tally;
      forgotten_[kind] = {};
      sessions_.push_back(Connect(kind));
      const uint32_t threads = settings().threads;
      for (uint32_t i = 0; i < threads; i++) {
        accessors_.push_back(std::make_unique<Accessor>(settings(), *sessions_.back(), process_ * threads + i,
                                                        generation_, rates_[kind] / threads));
      }
    }
  }

  void Forget() {
    for (size_t kind = 0; kind < directories_.size(); kind++) {
      new (&tallies_[kind]) Tally;
      forgotten_[kind] = CountsOf(*sessions_[kind]);
    }
  }

  void Run(const Turn& turn) {
    const auto ours = std::span(accessors_).subspan(turn.kind * settings().threads, settings().threads);
    InThreads(ours, [&](Accessor& accessor) { accessor.Prepare(turn); });
    Tally& tally = tallies_[turn.kind];
    tally.processor_seconds -= ProcessorSeconds();
    InThreads(ours, [](Accessor& accessor) { accessor.Run(); });
    tally.processor_seconds += ProcessorSeconds();
    tally.rate = 0;
    for (const auto& accessor : ours) {
      tally.rate += accessor->rate();
      tally.accesses += accessor->accesses();
      tally.writes += accessor->writes();
      tally.latencies.Add(accessor->latencies());
      const auto& seconds = accessor->by_second();
      for (size_t i = 0; i < std::min(seconds.size(), kMostSeconds); i++) {
        tally.by_second[i] += seconds[i];
      }
    }
    rates_[turn.kind] = tally.rate;
    tally.session = Since(forgotten_[turn.kind], CountsOf(*sessions_[turn.kind]));
  }

  static double ProcessorSeconds() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  template <typename Function>
  static void InThreads(std::span<const std::unique_ptr<Accessor>> accessors, const Function& function) {
    std::vector<std::thread> threads;
    threads.reserve(accessors.size());
    for (const auto& accessor : accessors) {
      threads.emplace_back([&] { function(*accessor); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  const Settings& settings() const { return points_[point_]; }

  const std::vector<Settings>& points_;
  const std::vector<std::string>& directories_;
  const uint32_t process_;
  Tally* const tallies_;  // of each kind
  const std::unique_ptr<driver::Nic> nic_;
  size_t point_ = 0;
  uint32_t generation_ = 0;
  std::vector<double> rates_;                         // of each kind, in its last turn
  std::vector<SessionCounts> forgotten_;              // of each kind: what its session had counted by Forget
  std::vector<std::unique_ptr<Session>> sessions_;    // of each kind
  std::vector<std::unique_ptr<Accessor>> accessors_;  // of each kind, of each thread
};

void TellAll(const std::vector<std::unique_ptr<Child>>& processes, const Command& command) {
  for (const auto& process : processes) {
    process->Tell(command);
  }
  for (const auto& process : processes) {
    process->Hear<uint32_t>();
  }
}

void Serve(Client& client, int socket) {
  Command command;
  while (recv(socket, &command, sizeof(command), 0) == sizeof(command)) {
    client.Obey(command);
    const uint32_t done = 0;
    Child::Send(socket, std::as_bytes(std::span(&done, 1)));
  }
}

}  // namespace

Load::Load(const std::vector<Settings>& points, const std::vector<std::string>& directories)
    : kinds_(directories.size()) {
  const Settings& settings = points.front();
  const size_t bytes = sizeof(Tally) * kinds_ * settings.processes;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    Die(ErrnoStatus("share memory with the client processes"));
  }
  shared_ = static_cast<Tally*>(memory);  // each process makes its own
  for (uint32_t i = 0; i < settings.processes; i++) {
    processes_.push_back(std::make_unique<Child>("client " + std::to_string(i), [&, i](int socket) {
      Child::Confine(settings.client_cpu);
      Client client(points, directories, i, shared_ + i * kinds_);
      Serve(client, socket);
    }));
  }
}

void Load::Fill(size_t kind) {
  processes_.front()->Tell(Command{.order = Order::kFill, .point = 0, .turn = {.kind = kind}});
  processes_.front()->Hear<uint32_t>();
}

void Load::Verify(size_t kind) {
  processes_.front()->Tell(Command{.order = Order::kVerify, .point = 0, .turn = {.kind = kind}});
  processes_.front()->Hear<uint32_t>();
}

void Load::Begin(size_t point) { TellAll(processes_, {.order = Order::kBegin, .point = point, .turn = {}}); }

void Load::Forget() { TellAll(processes_, {.order = Order::kForget, .point = 0, .turn = {}}); }

double Load::Run(const Turn& turn) {
  TellAll(processes_, {.order = Order::kRun, .point = 0, .turn = turn});
  double rate = 0;
  for (const Tally* tally : tallies(turn.kind)) {
    rate += tally->rate;
  }
  return rate;
}

std::vector<const Tally*> Load::tallies(size_t kind) const {
  std::vector<const Tally*> found;
  for (size_t i = 0; i < processes_.size(); i++) {
    found.push_back(&shared_[i * kinds_ + kind]);
  }
  return found;
}

double Load::ProcessorSeconds(size_t kind) const {
  double sum = 0;
  for (const Tally* tally : tallies(kind)) {
    sum += tally->processor_seconds;
  }
  return sum;
}

}  // namespace termfs::benchmarks::term

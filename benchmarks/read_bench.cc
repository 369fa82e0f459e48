// SPDX-License-Identifier: Apache-2.0
//
// What tlib's public read costs over the memory it moves: Channel::Read of random resident pages (bitmap, READ,
// completion, byte detection, access counting included) beside the bare loop "load entry, copy, load entry" on the same
// page table and frames, in the mappings that the client's RNIC has of them. The server is a process of its own. Both
// loops take turns of some milliseconds; a ratio is that of two turns in a row.
//
//   read_bench [--json] [--pairs=N] [--mib=N] [--directory=PATH] [--bitmap=live|pulled|off] [--spin=SECONDS]
//
// --spin: no measurement, only the subject (4 KiB, batch 1) for so long: for a profiler.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/page.h"
#include "base/random.h"
#include "benchmarks/median.h"
#include "benchmarks/must.h"
#include "driver/softnic/page_table.h"
#include "driver/softnic/softnic.h"
#include "tlib/client/session.h"
#include "tlib/server/server.h"

namespace termfs::benchmarks {
namespace {

using std::chrono::steady_clock;
using tlib::client::ReadRequest;

constexpr uint32_t kMaxBatch = 32;
// A turn is shorter than a scheduler's time slice, so that on a busy machine most turns are not interrupted; a pair is
// the median of several turns of each side, taken alternately.
constexpr uint32_t kReadsPerTurn = 1U << 12;
constexpr int kTurnsPerPair = 15;
constexpr uint16_t kFlush = 1;  // administrator's request: write back what is dirty, so that nothing runs beside us

struct Settings {
  bool json = false;
  int pairs = 11;
  uint64_t mib = 1024;
  std::string directory = "/var/tmp";
  std::string bitmap = "live";
  double spin = 0;

  uint64_t pages() const { return mib << (20 - kPageBits); }
};

class FlushService final : public tlib::server::Service {
 public:
  explicit FlushService(uint64_t pages) : pages_(pages) {}
  Result<std::vector<std::byte>> Handle(tlib::server::Call&) override { return Status::Error(ENOSYS, "none"); }
  Result<std::vector<std::byte>> HandleAdmin(uint16_t, std::span<const std::byte>) override {
    RETURN_IF_ERROR(server->RunInCoroutine([this] {
      const tlib::server::PageRange all{.first = {0}, .count = pages_};
      return server->region().Flush({&all, 1});
    }));
    return std::vector<std::byte>();
  }
  Status SessionOpened(const tlib::server::SessionInfo&) override { return Status::Ok(); }
  void SessionClosed(tlib::server::SessionId, const tlib::server::SessionEnd&) override {}
  bool AllowsRawWrites() const override { return true; }

  tlib::server::Server* server = nullptr;

 private:
  const uint64_t pages_;
};

// The server's process: says on `ready` that it serves, and ends when `ready`'s other end is closed.
[[noreturn]] void Serve(const Settings& settings, const std::string& directory, int ready) {
  tlib::server::ServerOptions options;
  options.region.device = directory + "/region";
  options.region.written_log = directory + "/written";
  options.region.pages = settings.pages();
  options.region.kind = driver::RegionKind::kPin;  // every page has its frame, and keeps it
  options.socket_directory = directory;
  Must(tlib::server::Server::FormatRegion(options.region, nullptr));
  {
    const auto nic = Must(driver::CreateSoftNic());
    FlushService service(settings.pages());
    const auto server = Must(tlib::server::Server::Start(*nic, options, service));
    service.server = server.get();
    char byte = 1;
    if (write(ready, &byte, 1) != 1 || read(ready, &byte, 1) < 0) {
      std::exit(1);
    }
  }
  std::exit(0);
}

struct Mapped {
  const std::byte* data = nullptr;
  size_t size = 0;
};

// The mapping of this process whose name holds `name`; the largest, for the frames are larger than anything else.
Mapped FindMapping(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  Mapped found;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    if (line.find(name) != std::string::npos && std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) == 2 &&
        end - begin > found.size) {
      found = {reinterpret_cast<const std::byte*>(begin), end - begin};
    }
  }
  if (found.data == nullptr) {
    Die(Status::Error(ENOENT, "no mapping of " + name));
  }
  return found;
}

class Bench {
 public:
  Bench(const Settings& settings, const std::string& directory)
      : pages_(settings.pages()), nic_(Must(driver::CreateSoftNic())) {
    tlib::client::SessionOptions options;
    options.program = "read_bench";
    options.bitmap = settings.bitmap == "live"     ? tlib::client::BitmapMode::kLive
                     : settings.bitmap == "pulled" ? tlib::client::BitmapMode::kPulled
                                                   : tlib::client::BitmapMode::kOff;
    session_ = Must(tlib::client::Session::Connect(*nic_, directory, options, nullptr));
    channel_ = Must(session_->OpenChannel({}));
    Fill();
    Must(session_->Admin(kFlush, {}).status());
    MakeBatches(kMaxBatch);
    offsets_ = {0};
    SubjectTurn(64, 1);  // maps the region
    misses_before_ = Misses();
    entries_ = reinterpret_cast<const driver::PageTableEntry*>(FindMapping("termfs-page-table").data +
                                                               driver::softnic::kEntriesOffset);
    frames_ = FindMapping("termfs-frames").data;
    Warm();
  }

  double Pair(uint32_t length, uint32_t batch, double* subject, double* bare) {
    std::vector<double> subjects;
    std::vector<double> bares;
    for (int turn = 0; turn < kTurnsPerPair; turn++) {
      Draw(length);  // other pages for each side: what one has read is in the other's cache
      subjects.push_back(SubjectTurn(length, batch));
      Draw(length);
      bares.push_back(BareTurn(length, batch));
    }
    *subject = Median(subjects);
    *bare = Median(bares);
    return *subject / *bare;
  }

  void Spin(double seconds) {
    const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
    while (steady_clock::now() < end) {
      Draw(kSpinBytes);
      SubjectTurn(kSpinBytes, 1);
    }
  }

  // Every read was to be a hit: reads that were not would make the figures meaningless.
  void CheckAllHits() const {
    if (Misses() != misses_before_) {
      Die(Status::Error(EINVAL, std::to_string(Misses() - misses_before_) + " reads missed"));
    }
  }

 private:
  static constexpr uint32_t kSpinBytes = 256;

  void Fill() {
    constexpr uint64_t kChunk = 1U << 20;
    const auto buffer = channel_->buffer();
    for (uint64_t at = 0; at < pages_ << kPageBits; at += kChunk) {
      for (uint64_t i = 0; i < kChunk; i += sizeof(uint64_t)) {
        const uint64_t word = random_();
        std::memcpy(buffer.data() + i, &word, sizeof(word));
      }
      Must(channel_->Write({at}, buffer.first(kChunk)));
    }
  }

  // Every page once through both mappings, so that no turn takes page faults.
  void Warm() {
    offsets_.clear();
    for (uint64_t page = 0; page < pages_; page++) {
      offsets_.push_back(page << kPageBits);
    }
    SubjectTurn(64, kMaxBatch);
    BareTurn(64, kMaxBatch);
  }

  void Draw(uint32_t length) {
    offsets_.resize(kReadsPerTurn);
    for (uint64_t& offset : offsets_) {
      offset = (random_.Below(pages_) << kPageBits) + random_.Below(kPageSize / length) * length;
    }
  }

  void MakeBatches(uint32_t count) {
    reads_.resize(count);
    for (uint32_t i = 0; i < count; i++) {
      reads_[i].destination = channel_->buffer().data() + i * kPageSize;
    }
  }

  double SubjectTurn(uint32_t length, uint32_t batch) {
    for (ReadRequest& read : reads_) {
      read.length = length;
    }
    ReadRequest* const reads = reads_.data();
    tlib::client::Channel& channel = *channel_;
    const auto begin = steady_clock::now();
    for (const uint64_t *at = offsets_.data(), *end = at + offsets_.size(); at != end; at += batch) {
      for (uint32_t i = 0; i < batch; i++) {
        reads[i].offset = {at[i]};
      }
      if (!channel.Read({reads, batch}).ok()) [[unlikely]] {
        Die(Status::Error(EIO, "a read failed"));
      }
    }
    return PerRead(begin);
  }

  double BareTurn(uint32_t length, uint32_t batch) {
    std::byte* const to = channel_->buffer().data();
    const auto begin = steady_clock::now();
    for (size_t i = 0; i < offsets_.size(); i++) {
      const driver::PageTableEntry& entry = entries_[offsets_[i] >> kPageBits];
      const uint64_t seen = entry.load(std::memory_order_acquire);
      std::memcpy(to + (i % batch) * kPageSize,
                  frames_ + (uint64_t{driver::FrameOf(seen)} << kPageBits) + offsets_[i] % kPageSize, length);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (entry.load(std::memory_order_relaxed) != seen) [[unlikely]] {
        Die(Status::Error(EAGAIN, "a page moved while it was read"));
      }
    }
    return PerRead(begin);
  }

  uint64_t Misses() const {
    for (const MetricValue& value : session_->Metrics()) {
      if (value.name == "rpc_reads_total") {
        return value.value;
      }
    }
    return 0;
  }

  double PerRead(steady_clock::time_point begin) const {
    const std::chrono::duration<double, std::nano> took = steady_clock::now() - begin;
    return took.count() / static_cast<double>(offsets_.size());
  }

  const uint64_t pages_;
  Random random_{1};
  std::unique_ptr<driver::Nic> nic_;
  std::unique_ptr<tlib::client::Session> session_;
  std::unique_ptr<tlib::client::Channel> channel_;
  const driver::PageTableEntry* entries_ = nullptr;
  const std::byte* frames_ = nullptr;
  std::vector<uint64_t> offsets_;
  std::vector<ReadRequest> reads_;
  uint64_t misses_before_ = 0;
};

struct Row {
  uint32_t bytes = 0;
  uint32_t batch = 0;
  std::vector<double> subject{};
  std::vector<double> bare{};
  std::vector<double> ratios{};
};

void PrintJson(const std::vector<Row>& rows, const std::string& bitmap) {
  std::printf("{\"bitmap\": \"%s\", \"threads\": 1, \"rows\": [", bitmap.c_str());
  for (size_t i = 0; i < rows.size(); i++) {
    const Row& row = rows[i];
    std::printf(
        "%s\n  {\"bytes\": %u, \"batch\": %u, \"read_ns\": %.1f, \"bare_ns\": %.1f, \"ratio\": %.3f, \"ratios\": [",
        i == 0 ? "" : ",", row.bytes, row.batch, Median(row.subject), Median(row.bare),
        Median(row.subject) / Median(row.bare));
    for (size_t k = 0; k < row.ratios.size(); k++) {
      std::printf("%s%.3f", k == 0 ? "" : ", ", row.ratios[k]);
    }
    std::printf("]}");
  }
  std::printf("\n]}\n");
}

void PrintTable(const std::vector<Row>& rows, const std::string& bitmap) {
  std::printf("Channel::Read beside the bare loop; one thread, resident pages, bitmap %s, medians\n", bitmap.c_str());
  std::printf("%8s %6s %12s %12s %8s\n", "bytes", "batch", "read ns", "bare ns", "ratio");
  for (const Row& row : rows) {
    std::printf("%8u %6u %12.1f %12.1f %8.2f\n", row.bytes, row.batch, Median(row.subject), Median(row.bare),
                Median(row.subject) / Median(row.bare));
  }
}

void Run(const Settings& settings, const std::string& directory) {
  Bench bench(settings, directory);
  if (settings.spin > 0) {
    bench.Spin(settings.spin);
    return;
  }
  std::vector<Row> rows;
  for (const uint32_t bytes : {256U, 4096U}) {
    for (const uint32_t batch : {1U, kMaxBatch}) {
      rows.push_back({.bytes = bytes, .batch = batch});
    }
  }
  for (int pair = -1; pair < settings.pairs; pair++) {  // the first one warms up
    for (Row& row : rows) {
      double subject = 0;
      double bare = 0;
      const double ratio = bench.Pair(row.bytes, row.batch, &subject, &bare);
      if (pair >= 0) {
        row.subject.push_back(subject);
        row.bare.push_back(bare);
        row.ratios.push_back(ratio);
      }
    }
  }
  bench.CheckAllHits();
  (settings.json ? PrintJson : PrintTable)(rows, settings.bitmap);
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Channel::Read of resident pages beside the bare loop over the same memory");
  app.add_flag("--json", settings.json, "print JSON");
  app.add_option("--pairs", settings.pairs, "interleaved pairs per row")->check(CLI::Range(1, 1000));
  app.add_option("--mib", settings.mib, "size of the region")->check(CLI::Range(16, 16384));
  app.add_option("--directory", settings.directory, "where the region's file goes");
  app.add_option("--bitmap", settings.bitmap, "live, pulled or off")->check(CLI::IsMember({"live", "pulled", "off"}));
  app.add_option("--spin", settings.spin, "only read for so many seconds");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }

  std::string directory = settings.directory + "/termfs-read-bench-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    Die(ErrnoStatus("make a directory in " + settings.directory));
  }
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    Die(ErrnoStatus("make a socket pair"));
  }
  const pid_t server = fork();  // before any RNIC lives in this process
  if (server == 0) {
    close(ends[0]);
    Serve(settings, directory, ends[1]);
  }
  close(ends[1]);
  char byte = 0;
  const bool serving = server > 0 && read(ends[0], &byte, 1) == 1;
  if (serving) {
    Run(settings, directory);
  }
  close(ends[0]);
  int status = 0;
  waitpid(server, &status, 0);
  std::filesystem::remove_all(directory);
  return serving && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace termfs::benchmarks

int main(int argc, char** argv) { return termfs::benchmarks::Main(argc, argv); }

// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/experiment.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <thread>

#include "base/page.h"
#include "base/unique_fd.h"
#include "benchmarks/must.h"
#include "benchmarks/term/busy_processor.h"
#include "benchmarks/term/region_server.h"
#include "tlib/rpc/messages.h"

namespace termfs::benchmarks::term {
namespace {

// No longer than what a short run counts of a kind.
constexpr double kMostSsdSeconds = 1;  // at each depth
constexpr double kMostMissSeconds = 2;
constexpr double kNothingInMemory = 0.001;  // a DRAM ratio
constexpr uint64_t kMostScratchBytes = uint64_t{1} << 30;

// Bytes of an RPC beside those that it is for.
constexpr double kReadMessages =
    sizeof(tlib::RequestHeader) + sizeof(tlib::ReadBody) + sizeof(tlib::ReplyHeader) + 2.0 * sizeof(uint64_t);
constexpr double kWriteMessages = sizeof(tlib::RequestHeader) + sizeof(tlib::WriteBody) + sizeof(tlib::ReplyHeader);

void Say(const std::string& what) { std::fprintf(stderr, "term_bench: %s\n", what.c_str()); }

SessionCounts Sum(const std::vector<const Tally*>& tallies) {
  SessionCounts sum;
  for (const Tally* tally : tallies) {
    const SessionCounts& counts = tally->session;
    sum.read_pages += counts.read_pages;
    sum.hit_pages += counts.hit_pages;
    sum.bitmap_pages += counts.bitmap_pages;
    sum.pattern_pages += counts.pattern_pages;
    sum.rpc_reads += counts.rpc_reads;
    sum.rpc_read_pages += counts.rpc_read_pages;
    sum.bitmap_pulls += counts.bitmap_pulls;
    sum.hit_p50 = std::max(sum.hit_p50, counts.hit_p50);
    sum.hit_p99 = std::max(sum.hit_p99, counts.hit_p99);
    sum.miss_p50 = std::max(sum.miss_p50, counts.miss_p50);
    sum.miss_p99 = std::max(sum.miss_p99, counts.miss_p99);
    sum.miss_p999 = std::max(sum.miss_p999, counts.miss_p999);
  }
  return sum;
}

// What the processes have used up so far.
struct Consumption {
  double client = 0;  // seconds
  double server = 0;
  Child::Bytes device;
  ServerCounts counts;
};

class Experiment {
 public:
  Experiment(const Settings& settings, const std::string& scratch) : settings_(settings), scratch_(scratch) {
    results_.kinds.resize(settings.kinds.size());
    consumed_.resize(settings.kinds.size());
    gone_by_.resize(settings.kinds.size());
  }

  Results Run() {
    Start();
    if (settings_.limit) {
      MeasureMachine();
    }
    WarmUp();
    load_->Begin();
    for (uint32_t round = 0; round < settings_.rounds; round++) {
      for (size_t kind = 0; kind < servers_.size(); kind++) {
        results_.kinds[kind].rates.push_back(TakeTurn(kind, settings_.turn(), true));
        if (busy_ != nullptr) {
          TakeBusyTurn(kind);
        }
      }
      if (settings_.limit) {
        TakeTurnOfSsd(round);
      }
    }
    for (size_t kind = 0; kind < servers_.size(); kind++) {
      Collect(kind);
    }
    if (settings_.limit) {
      MeasureMisses();
      Bound();
    }
    load_.reset();
    return std::move(results_);
  }

 private:
  void Start() {
    std::vector<std::string> directories;
    for (const Kind& kind : settings_.kinds) {
      directories.push_back(scratch_ + "/" + kind.name);
      servers_.push_back(std::make_unique<RegionServer>(settings_, kind, directories.back()));
    }
    if (settings_.busy > 0) {
      busy_ = std::make_unique<BusyProcessor>(settings_.server_cpu, settings_.busy);
    }
    load_ = std::make_unique<Load>(settings_, directories);
    for (size_t kind = 0; kind < servers_.size(); kind++) {
      Say("filling the region of " + settings_.kinds[kind].name);
      load_->Fill(kind);
      servers_[kind]->Flush();
    }
    load_->Begin();
  }

  double TakeTurn(size_t kind, double seconds, bool counts) {
    const Consumption before = ConsumedBy(kind);
    const double rate =
        load_->Run({.kind = kind, .begin = gone_by_[kind], .seconds = seconds, .write_share = settings_.write_share});
    gone_by_[kind] += seconds;
    if (settings_.write_share > 0) {
      servers_[kind]->Flush();  // its writes are its own, and no other's turn is disturbed by them
    }
    if (counts) {
      const Consumption after = ConsumedBy(kind);
      Consumption& sum = consumed_[kind];
      sum.client += after.client - before.client;
      sum.server += after.server - before.server;
      sum.counts.promotions += after.counts.promotions - before.counts.promotions;
      sum.counts.frame_read_pages += after.counts.frame_read_pages - before.counts.frame_read_pages;
      sum.counts.faults += after.counts.faults - before.counts.faults;
      sum.counts.ssd_reads += after.counts.ssd_reads - before.counts.ssd_reads;
      sum.device.read += after.device.read - before.device.read;
      sum.device.written += after.device.written - before.device.written;
    }
    return rate;
  }

  void TakeTurnOfSsd(uint32_t round) {
    Limit& limit = results_.limit;
    const double seconds = std::min(settings_.turn(), kMostSsdSeconds);
    const auto turn = [&](const std::string& file, SsdLoad load, const std::vector<SsdRate>& rates) {
      load.depth = BestOf(rates).depth;
      load.seed += round + 1;
      return MeasureSsdAt(file, load).per_second;
    };
    limit.ssd_read_turns.push_back(turn(servers_.back()->device(), ReadOf(seconds), limit.ssd_reads));
    if (settings_.write_share > 0) {
      limit.ssd_write_turns.push_back(turn(ScratchFile(), WriteOf(seconds), limit.ssd_writes));
    }
  }

  SsdLoad ReadOf(double seconds) const {
    return {.bytes = static_cast<uint32_t>(settings_.pattern.item_bytes()),
            .seconds = seconds,
            .seed = settings_.pattern.seed};
  }
  SsdLoad WriteOf(double seconds) const {
    SsdLoad load = ReadOf(seconds);
    load.writes = true;
    return load;
  }

  void TakeBusyTurn(size_t kind) {
    KindResult& result = results_.kinds[kind];
    busy_->Begin();
    result.busy_over_idle.push_back(TakeTurn(kind, settings_.turn(), true) / result.rates.back());
    busy_->End();
  }

  Consumption ConsumedBy(size_t kind) const {
    return {.client = load_->ProcessorSeconds(kind),
            .server = servers_[kind]->child().ProcessorSeconds(),
            .device = servers_[kind]->child().DeviceBytes(),
            .counts = servers_[kind]->Counts()};
  }

  void WarmUp() {
    for (size_t kind = 0; kind < servers_.size() && settings_.warmup > 0; kind++) {
      Say("warming up " + settings_.kinds[kind].name);
      TakeTurn(kind, settings_.warmup, false);
    }
  }

  void MeasureMachine() {
    Limit& limit = results_.limit;
    limit.cpus = std::max(1U, std::thread::hardware_concurrency());
    limit.oracle_hits = OracleHits(settings_.pattern, settings_.dram_ratio);
    Say("measuring the SSD");
    const double seconds = std::min(kMostSsdSeconds, settings_.seconds / 4);
    limit.ssd_reads = MeasureSsd(servers_.back()->device(), ReadOf(seconds));
    if (settings_.write_share > 0) {
      WriteScratchFile();
      limit.ssd_writes = MeasureSsd(ScratchFile(), WriteOf(seconds));
    }
  }

  // Last: it leaves nothing in memory.
  void MeasureMisses() {
    for (size_t kind = 0; kind < servers_.size(); kind++) {
      if (settings_.kinds[kind].region == driver::RegionKind::kTerm) {
        Say("measuring a miss alone");
        servers_[kind]->SetDramRatio(kNothingInMemory);
        load_->Begin();
        const Consumption before = ConsumedBy(kind);
        const double seconds = std::min(kMostMissSeconds, settings_.seconds);
        results_.limit.miss_rate =
            load_->Run({.kind = kind, .begin = 0, .seconds = seconds, .write_share = 0, .uniform = true});
        const Consumption after = ConsumedBy(kind);
        double accesses = 0;
        for (const Tally* tally : load_->tallies(kind)) {
          accesses += static_cast<double>(tally->accesses);
        }
        results_.limit.miss_us = (after.client - before.client + after.server - before.server) * 1e6 / accesses;
      }
    }
  }

  // Random bytes: a file system may know zeros without asking the SSD.
  void WriteScratchFile() const {
    const std::string path = ScratchFile();
    const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    std::vector<uint64_t> chunk((1U << 20) / sizeof(uint64_t));
    Random random(settings_.pattern.seed);
    std::generate(chunk.begin(), chunk.end(), [&] { return random(); });
    const uint64_t bytes = std::min(settings_.pattern.region_bytes, kMostScratchBytes);
    for (uint64_t at = 0; at < bytes; at += 1U << 20) {
      if (write(file.get(), chunk.data(), 1U << 20) != 1 << 20) {
        Die(ErrnoStatus("write " + path));
      }
    }
    if (fsync(file.get()) != 0) {
      Die(ErrnoStatus("write " + path));
    }
  }
  std::string ScratchFile() const { return scratch_ + "/written"; }

  void Collect(size_t kind) {
    KindResult& result = results_.kinds[kind];
    result.name = settings_.kinds[kind].name;
    result.session = Sum(load_->tallies(kind));
    uint64_t writes = 0;
    for (const Tally* tally : load_->tallies(kind)) {
      result.accesses += tally->accesses;
      writes += tally->writes;
      result.latencies.Add(tally->latencies);
      // Whole seconds; turns that are no binary fractions add up to a little less.
      result.by_second.resize(std::min<size_t>(static_cast<size_t>(gone_by_[kind] + 1e-6), kMostSeconds));
      for (size_t i = 0; i < result.by_second.size(); i++) {
        result.by_second[i] += tally->by_second[i];
      }
    }
    const double accesses = std::max<double>(1, static_cast<double>(result.accesses));
    const double part = std::min<uint64_t>(settings_.pattern.access_bytes, kPageSize);  // of a page
    const SessionCounts& session = result.session;
    const auto moved = static_cast<double>(session.hit_pages + session.pattern_pages + session.rpc_read_pages);
    result.wire_bytes = (moved * part + static_cast<double>(session.rpc_reads) * kReadMessages +
                         static_cast<double>(writes) * (settings_.pattern.access_bytes + kWriteMessages)) /
                        accesses;
    const Consumption& consumed = consumed_[kind];
    result.hit_ratio = HitRatio(kind, session);
    result.client_us = consumed.client * 1e6 / accesses;
    result.server_us = consumed.server * 1e6 / accesses;
    result.promotions = static_cast<double>(consumed.counts.promotions) / accesses;
    result.server_ssd_reads = static_cast<double>(consumed.counts.ssd_reads) / accesses;
    result.ssd_read_bytes = static_cast<double>(consumed.device.read) / accesses;
    result.ssd_write_bytes = static_cast<double>(consumed.device.written) / accesses;
  }

  double HitRatio(size_t kind, const SessionCounts& session) const {
    if (session.read_pages == 0) {
      return 0;
    }
    const Consumption& consumed = consumed_[kind];
    const auto pages = static_cast<double>(session.read_pages);
    switch (settings_.kinds[kind].region) {
      case driver::RegionKind::kPin:
      case driver::RegionKind::kTerm:
        return static_cast<double>(session.hit_pages) / pages;
      case driver::RegionKind::kOdp:
        return 1 - static_cast<double>(consumed.counts.faults) / pages;
      case driver::RegionKind::kRpcTiering:
      case driver::RegionKind::kRpcDirect:
        return static_cast<double>(consumed.counts.frame_read_pages) / pages;
      case driver::RegionKind::kRpc:
      case driver::RegionKind::kRpcBuffer:
        break;
    }
    return std::max(0.0, 1 - static_cast<double>(consumed.device.read) / kPageSize / pages);
  }

  void Bound() {
    Limit& limit = results_.limit;
    std::vector<double> pin(settings_.rounds);
    for (const KindResult& result : results_.kinds) {
      if (result.name == "pin") {
        pin = result.rates;
        limit.pin_rate = result.rate();
        limit.hit_us = result.client_us + result.server_us;
      }
    }
    const double misses = 1 - limit.oracle_hits;
    const double reads = 1 - settings_.write_share;
    // For a write the miss's cost is not known alone: only reads pay for misses here, which makes the bound higher.
    const double cost = limit.hit_us + misses * reads * std::max(0.0, limit.miss_us - limit.hit_us);
    limit.processor_bound = cost > 0 ? limit.cpus * 1e6 / cost : 0;
    std::vector<double> ssd_bounds;
    std::vector<double> bounds;
    for (size_t round = 0; round < settings_.rounds; round++) {
      ssd_bounds.push_back(SsdBound(round, misses));
      bounds.push_back(LeastOf({pin[round], ssd_bounds.back(), limit.processor_bound}));
      for (KindResult& result : results_.kinds) {
        result.over_bound.push_back(result.rates[round] / bounds.back());
        if (pin[round] > 0) {
          result.over_pin.push_back(result.rates[round] / pin[round]);
        }
      }
    }
    limit.ssd_bound = Median(ssd_bounds);
    limit.bound = Median(bounds);
  }

  double SsdBound(size_t round, double misses) const {
    const Limit& limit = results_.limit;
    double seconds = (1 - settings_.write_share) / limit.ssd_read_turns[round];
    if (settings_.write_share > 0) {
      seconds += settings_.write_share / limit.ssd_write_turns[round];
    }
    return misses > 0 ? 1 / (misses * seconds) : 0;
  }

  // Of those that are known.
  static double LeastOf(std::initializer_list<double> bounds) {
    double least = std::numeric_limits<double>::infinity();
    for (const double bound : bounds) {
      least = bound > 0 ? std::min(least, bound) : least;
    }
    return least;  // infinity: of none
  }

  const Settings& settings_;
  const std::string scratch_;
  std::vector<std::unique_ptr<RegionServer>> servers_;
  std::unique_ptr<BusyProcessor> busy_;  // null: none is wanted
  std::unique_ptr<Load> load_;
  std::vector<Consumption> consumed_;
  std::vector<double> gone_by_;  // seconds of load, warm-up included
  Results results_;
};

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Results Measure(const Settings& settings, const std::string& scratch) { return Experiment(settings, scratch).Run(); }

}  // namespace termfs::benchmarks::term

// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/experiment.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <thread>

#include "base/page.h"
#include "benchmarks/term/stage.h"
#include "tlib/rpc/messages.h"

namespace termfs::benchmarks::term {
namespace {

// No longer than what a short run counts of a kind.
constexpr double kMostSsdSeconds = 1;    // at each depth
constexpr double kMostSecondsOfPin = 1;  // of warm-up: all is in memory
constexpr double kMostMissSeconds = 1;
constexpr double kTouchSeconds = 0.1;       // in which new sessions meet most of what is in memory
constexpr double kLeastSlice = 0.5;         // seconds of warm-up that are compared with those before
constexpr double kFlat = 0.005;             // a hit ratio that rises by less in a second rises no more
constexpr double kNothingInMemory = 0.001;  // a DRAM ratio

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
  DeviceBytes device;
  ServerCounts counts;
};

Consumption Between(const Consumption& before, const Consumption& after) {
  return {.client = after.client - before.client,
          .server = after.server - before.server,
          .device = {.read = after.device.read - before.device.read,
                     .written = after.device.written - before.device.written},
          .counts = {.ssd_reads = after.counts.ssd_reads - before.counts.ssd_reads,
                     .ssd_writes = after.counts.ssd_writes - before.counts.ssd_writes,
                     .promotions = after.counts.promotions - before.counts.promotions,
                     .evictions = after.counts.evictions - before.counts.evictions,
                     .frame_read_pages = after.counts.frame_read_pages - before.counts.frame_read_pages,
                     .faults = after.counts.faults - before.counts.faults}};
}

// What came to an end in one turn.
struct TurnResult {
  double rate = 0;
  double hit_ratio = 0;
};

class Experiment {
 public:
  Experiment(const Settings& settings, size_t point, Stage& stage)
      : settings_(settings), point_(point), stage_(stage), servers_(stage.servers()), load_(stage.load()) {
    results_.kinds.resize(settings.kinds.size());
    consumed_.resize(settings.kinds.size());
    gone_by_.resize(settings.kinds.size());
  }

  void Run() {
    stage_.Adopt(settings_);
    load_.Begin(point_);
    if (settings_.limit) {
      MeasureMachine();
    }
    WarmUp();
    BeginWarm();
    for (uint32_t round = 0; round < settings_.rounds; round++) {
      for (size_t kind = 0; kind < servers_.size(); kind++) {
        const TurnResult turn = TakeTurn(kind, settings_.turn(), true);
        results_.kinds[kind].rates.push_back(turn.rate);
        results_.kinds[kind].hit_ratios.push_back(turn.hit_ratio);
        if (stage_.busy() != nullptr) {
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
  }

  // After all points have run: it leaves nothing in memory.
  Results Finish() {
    if (settings_.limit) {
      MeasureMisses();
      Bound();
    }
    return std::move(results_);
  }

 private:
  // What a kind's server writes back after the turn is not in the turn: no kind's rate has it, and none's cost.
  TurnResult TakeTurn(size_t kind, double seconds, bool counts) {
    const Consumption before = ConsumedBy(kind);
    const SessionCounts counted = Sum(load_.tallies(kind));
    TurnResult result;
    result.rate =
        load_.Run({.kind = kind, .begin = gone_by_[kind], .seconds = seconds, .write_share = settings_.write_share});
    gone_by_[kind] += seconds;
    const Consumption used = Between(before, ConsumedBy(kind));
    SessionCounts session = Sum(load_.tallies(kind));
    session.read_pages -= counted.read_pages;
    session.hit_pages -= counted.hit_pages;
    result.hit_ratio = HitRatio(kind, session, used);
    if (settings_.write_share > 0) {
      servers_[kind]->Flush();  // its writes are its own, and no other's turn is disturbed by them
    }
    if (counts) {
      Consumption& sum = consumed_[kind];
      sum.client += used.client;
      sum.server += used.server;
      sum.counts.promotions += used.counts.promotions;
      sum.counts.frame_read_pages += used.counts.frame_read_pages;
      sum.counts.faults += used.counts.faults;
      sum.counts.ssd_reads += used.counts.ssd_reads;
      sum.device.read += used.device.read;
      sum.device.written += used.device.written;
    }
    return result;
  }

  void TakeTurnOfSsd(uint32_t round) {
    Limit& limit = results_.limit;
    const double seconds = std::min(settings_.turn(), kMostSsdSeconds);
    limit.ssd_read_turns.push_back(stage_.SsdRateNow(SsdLoadOf(false, seconds, round + 1)));
    if (settings_.write_share > 0) {
      limit.ssd_write_turns.push_back(stage_.SsdRateNow(SsdLoadOf(true, seconds, round + 1)));
    }
  }

  SsdLoad SsdLoadOf(bool writes, double seconds, uint64_t turn) const {
    return {.bytes = static_cast<uint32_t>(settings_.pattern.item_bytes()),
            .writes = writes,
            .seconds = seconds,
            .seed = settings_.pattern.seed + turn};
  }

  void TakeBusyTurn(size_t kind) {
    KindResult& result = results_.kinds[kind];
    stage_.busy()->Begin();
    result.busy_over_idle.push_back(TakeTurn(kind, settings_.turn(), true).rate / result.rates.back());
    stage_.busy()->End();
  }

  Consumption ConsumedBy(size_t kind) const {
    return {.client = load_.ProcessorSeconds(kind),
            .server = servers_[kind]->child().ProcessorSeconds(),
            .device = servers_[kind]->child().Bytes(),
            .counts = servers_[kind]->Counts()};
  }

  void WarmUp() {
    for (size_t kind = 0; kind < servers_.size() && settings_.warmup > 0; kind++) {
      Say("warming up " + settings_.kinds[kind].name);
      if (settings_.kinds[kind].region == driver::RegionKind::kPin) {
        TakeTurn(kind, std::min(settings_.warmup, kMostSecondsOfPin), false);
      } else {
        FillMemory(kind);
      }
    }
  }

  // For `warmup` seconds, and on until its hit ratio rises no more: a slow kind needs longer.
  void FillMemory(size_t kind) {
    double hits = TakeTurn(kind, settings_.warmup, false).hit_ratio;
    const double slice = std::max(settings_.warmup / 2, kLeastSlice);
    for (double gone = settings_.warmup; gone + slice <= settings_.most_warmup; gone += slice) {
      const double before = hits;
      hits = TakeTurn(kind, slice, false).hit_ratio;
      if (hits < before + kFlat * slice) {
        return;
      }
    }
  }

  // New sessions, so that nothing of the warm-up is in what they count; they have mapped the memory already, though.
  void BeginWarm() {
    load_.Begin(point_);
    if (settings_.pattern.distribution == Distribution::kMoving) {
      return;  // what it accesses depends on the seconds that have gone by
    }
    for (size_t kind = 0; kind < servers_.size(); kind++) {
      TakeTurn(kind, kTouchSeconds, false);
    }
    load_.Forget();
  }

  void MeasureMachine() {
    Limit& limit = results_.limit;
    limit.cpus = std::max(1U, std::thread::hardware_concurrency());
    limit.oracle_hits = OracleHits(settings_.pattern, settings_.dram_ratio);
    Say("measuring the SSD");
    const double seconds = std::min(kMostSsdSeconds, settings_.seconds / 4);
    limit.ssd_reads = stage_.SsdRates(SsdLoadOf(false, seconds, 0));
    if (settings_.write_share > 0) {
      limit.ssd_writes = stage_.SsdRates(SsdLoadOf(true, seconds, 0));
    }
  }

  // Of the first kind that is term: the cost and the rate of accesses that all miss.
  void MeasureMisses() {
    const auto term = std::find_if(settings_.kinds.begin(), settings_.kinds.end(),
                                   [](const Kind& kind) { return kind.region == driver::RegionKind::kTerm; });
    if (term == settings_.kinds.end()) {
      return;
    }
    Stage::Misses& misses = stage_.MissesOf(settings_);
    if (misses.per_second == 0) {
      misses = MissesOf(static_cast<size_t>(term - settings_.kinds.begin()));
    }
    results_.limit.miss_us = misses.cpu_us;
    results_.limit.miss_rate = misses.per_second;
  }

  Stage::Misses MissesOf(size_t kind) {
    Say("measuring a miss alone");
    servers_[kind]->Adopt(kNothingInMemory, settings_.ssd_iops);
    load_.Begin(point_);
    const Consumption before = ConsumedBy(kind);
    const double seconds = std::min(kMostMissSeconds, settings_.seconds);
    const double rate = load_.Run(
        {.kind = kind, .begin = 0, .seconds = seconds, .write_share = settings_.write_share, .uniform = true});
    const Consumption after = ConsumedBy(kind);
    double accesses = 0;
    for (const Tally* tally : load_.tallies(kind)) {
      accesses += static_cast<double>(tally->accesses);
    }
    return {.per_second = rate,
            .cpu_us = (after.client - before.client + after.server - before.server) * 1e6 / accesses};
  }

  void Collect(size_t kind) {
    KindResult& result = results_.kinds[kind];
    result.name = settings_.kinds[kind].name;
    result.session = Sum(load_.tallies(kind));
    uint64_t writes = 0;
    for (const Tally* tally : load_.tallies(kind)) {
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
    result.hit_ratio = HitRatio(kind, session, consumed);
    result.client_us = consumed.client * 1e6 / accesses;
    result.server_us = consumed.server * 1e6 / accesses;
    result.promotions = static_cast<double>(consumed.counts.promotions) / accesses;
    result.server_ssd_reads = static_cast<double>(consumed.counts.ssd_reads) / accesses;
    result.ssd_read_bytes = static_cast<double>(consumed.device.read) / accesses;
    result.ssd_write_bytes = static_cast<double>(consumed.device.written) / accesses;
  }

  double HitRatio(size_t kind, const SessionCounts& session, const Consumption& consumed) const {
    if (session.read_pages == 0) {
      return 0;
    }
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
    const double cost = limit.hit_us + misses * std::max(0.0, limit.miss_us - limit.hit_us);
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
  const size_t point_;
  Stage& stage_;
  const std::vector<std::unique_ptr<RegionServer>>& servers_;
  Load& load_;
  std::vector<Consumption> consumed_;
  std::vector<double> gone_by_;  // seconds of load, warm-up included
  Results results_;
};

}  // namespace

std::vector<Results> Measure(const std::vector<Settings>& points, const std::string& scratch) {
  Stage stage(points, scratch);
  std::vector<Experiment> experiments;
  experiments.reserve(points.size());
  for (size_t point = 0; point < points.size(); point++) {
    experiments.emplace_back(points[point], point, stage).Run();
  }
  if (std::all_of(points.begin(), points.end(), [](const Settings& point) { return point.write_share == 0; })) {
    for (size_t kind = 0; kind < stage.servers().size(); kind++) {
      stage.load().Verify(kind);
    }
  }
  std::vector<Results> results;
  for (Experiment& experiment : experiments) {
    results.push_back(experiment.Finish());
  }
  return results;
}

}  // namespace termfs::benchmarks::term

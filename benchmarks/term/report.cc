// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/report.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>

#include "benchmarks/median.h"

namespace termfs::benchmarks::term {
namespace {

// JSON has no infinity.
double Finite(double value) { return std::isfinite(value) ? value : 0; }

double Microseconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

std::string JsonOf(const std::vector<SsdRate>& rates) {
  std::string text;
  for (const SsdRate& rate : rates) {
    text += fmt::format("{}{{\"depth\": {}, \"per_s\": {:.0f}, \"p50_us\": {:.1f}, \"p99_us\": {:.1f}}}",
                        text.empty() ? "" : ", ", rate.depth, rate.per_second, rate.p50_us, rate.p99_us);
  }
  return "[" + text + "]";
}

std::string JsonOf(const Limit& limit) {
  return fmt::format(
      "{{\"ssd_reads\": {}, \"ssd_writes\": {}, \"ssd_read_turns\": [{:.0f}], \"ssd_write_turns\": [{:.0f}], "
      "\"oracle_hit_ratio\": {:.5f}, "
      "\"pin_per_s\": {:.0f}, \"hit_cpu_us\": "
      "{:.3f}, \"miss_cpu_us\": {:.3f}, \"miss_per_s\": {:.0f}, \"cpus\": {}, \"ssd_bound_per_s\": {:.0f}, "
      "\"cpu_bound_per_s\": {:.0f}, \"bound_per_s\": {:.0f}}}",
      JsonOf(limit.ssd_reads), JsonOf(limit.ssd_writes), fmt::join(limit.ssd_read_turns, ", "),
      fmt::join(limit.ssd_write_turns, ", "), limit.oracle_hits, limit.pin_rate, limit.hit_us, limit.miss_us,
      limit.miss_rate, limit.cpus, limit.ssd_bound, limit.processor_bound, Finite(limit.bound));
}

double OverOracle(const KindResult& kind, const Limit& limit) {
  return limit.oracle_hits > 0 && limit.oracle_hits < 1 ? (1 - kind.hit_ratio) / (1 - limit.oracle_hits) : 0;
}

std::string JsonOf(const KindResult& kind, const Limit& limit) {
  const SessionCounts& session = kind.session;
  return fmt::format(
      "{{\"kind\": \"{}\", \"per_s\": {:.0f}, \"turns\": [{:.0f}], \"accesses\": {}, \"read_pages\": {}, "
      "\"hit_pages\": {}, \"by_second\": [{}], \"call_us\": {{\"p50\": "
      "{:.2f}, "
      "\"p99\": {:.2f}, \"p999\": {:.2f}}}, \"hit_us\": {{\"p50\": {:.2f}, \"p99\": {:.2f}}}, \"miss_us\": {{\"p50\": "
      "{:.2f}, \"p99\": {:.2f}, \"p999\": {:.2f}}}, \"hit_ratio\": {:.5f}, \"misses_over_oracle\": {:.3f}, "
      "\"absent_by_bitmap\": {}, \"absent_by_pattern\": {}, \"wire_bytes\": {:.1f}, \"promotions\": {:.4f}, "
      "\"ssd_reads\": {:.4f}, \"ssd_read_bytes\": {:.1f}, "
      "\"ssd_write_bytes\": {:.1f}, \"client_cpu_us\": {:.3f}, \"server_cpu_us\": {:.3f}, \"over_bound\": {:.3f}, "
      "\"over_pin\": {:.3f}, \"hit_ratios\": [{:.5f}], \"busy_over_idle\": [{:.3f}]}}",
      kind.name, kind.rate(), fmt::join(kind.rates, ", "), kind.accesses, session.read_pages, session.hit_pages,
      fmt::join(kind.by_second, ", "), Microseconds(kind.latencies.Percentile(0.5)),
      Microseconds(kind.latencies.Percentile(0.99)), Microseconds(kind.latencies.Percentile(0.999)),
      Microseconds(session.hit_p50), Microseconds(session.hit_p99), Microseconds(session.miss_p50),
      Microseconds(session.miss_p99), Microseconds(session.miss_p999), kind.hit_ratio, OverOracle(kind, limit),
      session.bitmap_pages, session.pattern_pages, kind.wire_bytes, kind.promotions, kind.server_ssd_reads,
      kind.ssd_read_bytes, kind.ssd_write_bytes, kind.client_us, kind.server_us, Median(kind.over_bound),
      Median(kind.over_pin), fmt::join(kind.hit_ratios, ", "), fmt::join(kind.busy_over_idle, ", "));
}

std::string SettingsJson(const Settings& settings) {
  const PatternOptions& pattern = settings.pattern;
  return fmt::format(
      "{{\"region_bytes\": {}, \"dram_ratio\": {}, \"access_bytes\": {}, \"write_share\": {}, \"distribution\": "
      "\"{}\", "
      "\"theta\": {}, \"move_at\": {}, \"processes\": {}, \"threads\": {}, \"depth\": {}, \"pause_every\": {}, "
      "\"pause_us\": {}, \"workers\": {}, "
      "\"blocking_workers\": {}, \"warmup_s\": {}, \"most_warmup_s\": {}, \"seconds\": {}, \"rounds\": {}, "
      "\"odp_delay_us\": {}, "
      "\"ssd_iops\": "
      "{}, \"seed\": {}}}",
      pattern.region_bytes, settings.dram_ratio, pattern.access_bytes, settings.write_share,
      ToString(pattern.distribution), pattern.theta, pattern.move_at, settings.processes, settings.threads,
      settings.depth, settings.pause_every, settings.pause.count(), settings.workers, settings.blocking_workers,
      settings.warmup, settings.most_warmup, settings.seconds, settings.rounds, settings.odp_delay.count(),
      settings.ssd_iops, pattern.seed);
}

}  // namespace

void PrintJson(const std::vector<Settings>& points, const std::vector<Results>& results) {
  std::string all;
  for (size_t i = 0; i < points.size(); i++) {
    std::string kinds;
    for (const KindResult& kind : results[i].kinds) {
      kinds += (kinds.empty() ? "\n  " : ",\n  ") + JsonOf(kind, results[i].limit);
    }
    all += fmt::format("{}{{\"settings\": {},\n \"limit\": {},\n \"kinds\": [{}]}}", all.empty() ? "" : ",\n",
                       SettingsJson(points[i]), JsonOf(results[i].limit), kinds);
  }
  fmt::print("[{}]\n", all);
}

void PrintTable(const Settings& settings, const Results& results) {
  const PatternOptions& pattern = settings.pattern;
  const Limit& limit = results.limit;
  fmt::print("{} MiB, {:.0f}% of it in memory; {} B, {:.0f}% writes, {} (theta {}); {} x {} threads, depth {}\n",
             pattern.region_bytes >> 20, settings.dram_ratio * 100, pattern.access_bytes, settings.write_share * 100,
             ToString(pattern.distribution), pattern.theta, settings.processes, settings.threads, settings.depth);
  fmt::print("{:<12} {:>11} {:>6} {:>6} {:>7} {:>7} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8}\n", "kind", "accesses/s",
             "/bound", "/pin", "hits %", "/oracle", "hit p50", "miss p50", "miss p99", "wire B", "SSD B", "cli us",
             "srv us");
  for (const KindResult& kind : results.kinds) {
    fmt::print(
        "{:<12} {:>11.0f} {:>6.2f} {:>6.2f} {:>7.2f} {:>7.2f} {:>9.1f} {:>9.1f} {:>9.1f} {:>8.0f} {:>8.0f} {:>8.2f} "
        "{:>8.2f}\n",
        kind.name, kind.rate(), Median(kind.over_bound), Median(kind.over_pin), kind.hit_ratio * 100,
        OverOracle(kind, limit), Microseconds(kind.session.hit_p50), Microseconds(kind.session.miss_p50),
        Microseconds(kind.session.miss_p99), kind.wire_bytes, kind.ssd_read_bytes + kind.ssd_write_bytes,
        kind.client_us, kind.server_us);
  }
  for (const KindResult& kind : results.kinds) {
    if (!kind.busy_over_idle.empty()) {
      fmt::print("{} while something else takes {:.0f}% of its server's CPU: {:.2f} of its rate\n", kind.name,
                 settings.busy * 100, Median(kind.busy_over_idle));
    }
  }
  if (!settings.limit) {
    return;
  }
  const SsdRate best = BestOf(limit.ssd_reads);
  fmt::print("SSD: {:.0f} reads of {} B a second at depth {} (p99 {:.0f} us) at first, {:.0f} in turns",
             best.per_second, settings.pattern.item_bytes(), best.depth, best.p99_us, Median(limit.ssd_read_turns));
  if (const SsdRate writes = BestOf(limit.ssd_writes); writes.per_second > 0) {
    fmt::print(", {:.0f} writes at depth {}", writes.per_second, writes.depth);
  }
  fmt::print(
      "\nan oracle hits {:.2f}%; a miss alone costs {:.1f} us of processor time ({:.0f} a second), a hit {:.2f}\n",
      limit.oracle_hits * 100, limit.miss_us, limit.miss_rate, limit.hit_us);
  fmt::print("bound: {:.0f} a second (pin {:.0f}, SSD {:.0f}, {} processors {:.0f})\n", limit.bound, limit.pin_rate,
             limit.ssd_bound, limit.cpus, limit.processor_bound);
}

}  // namespace termfs::benchmarks::term

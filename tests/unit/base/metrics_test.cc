// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>
#include <vector>

#include "base/random.h"

namespace termfs {
namespace {

using ::testing::ElementsAre;

// The value at a rank of sorted samples: the smallest that at least `permille` thousandths of them do not exceed.
uint64_t ExactPercentile(std::vector<uint64_t> samples, uint64_t permille) {
  std::sort(samples.begin(), samples.end());
  const uint64_t rank = std::max<uint64_t>(1, (samples.size() * permille + 999) / 1000);
  return samples[rank - 1];
}

TEST(Histogram, BucketOf_TilesAllValuesWithoutGap) {
  uint64_t first = 0;
  for (int bucket = 0; bucket < Histogram::kBuckets; bucket++) {
    const uint64_t last = Histogram::UpperBound(bucket);
    ASSERT_GE(last, first);
    EXPECT_EQ(Histogram::BucketOf(first), bucket);
    EXPECT_EQ(Histogram::BucketOf(last), bucket);
    first = last + 1;
  }
  EXPECT_EQ(first, 0U) << "the last bucket ends at the largest value";
}

TEST(Histogram, UpperBound_IsWithinASixteenth) {
  for (int bucket = Histogram::BucketOf(1); bucket + 1 < Histogram::kBuckets; bucket++) {
    const uint64_t low = Histogram::UpperBound(bucket - 1) + 1;
    EXPECT_LE(Histogram::UpperBound(bucket) - low, low / 16);
  }
}

TEST(Histogram, Percentile_OfNothingIsZero) { EXPECT_EQ(Histogram().Percentile(0.5), 0U); }

TEST(Histogram, Percentile_OfSmallValuesIsExact) {
  Histogram histogram;
  for (uint64_t value = 1; value <= 10; value++) {
    histogram.Record(value);
  }
  EXPECT_EQ(histogram.count(), 10U);
  EXPECT_EQ(histogram.Percentile(0), 1U);
  EXPECT_EQ(histogram.Percentile(0.1), 1U);
  EXPECT_EQ(histogram.Percentile(0.11), 2U);
  EXPECT_EQ(histogram.Percentile(0.5), 5U);
  EXPECT_EQ(histogram.Percentile(0.9), 9U);
  EXPECT_EQ(histogram.Percentile(1), 10U);
}

TEST(Histogram, Percentile_RankIsNotPushedUpByRounding) {
  Histogram histogram;  // 0.07 * 100 is a little more than 7 in binary
  for (int i = 0; i < 7; i++) {
    histogram.Record(1);
  }
  for (int i = 0; i < 93; i++) {
    histogram.Record(2);
  }
  EXPECT_EQ(histogram.Percentile(0.07), 1U);
}

TEST(Histogram, Percentile_IsTheBucketOfTheExactOne) {
  Random random(1);
  for (int round = 0; round < 50; round++) {
    Histogram histogram;
    std::vector<uint64_t> samples(1 + random.Below(3000));
    for (uint64_t& sample : samples) {
      sample = random() >> random.Below(64);
      histogram.Record(sample);
    }
    for (const uint64_t permille : {1, 100, 500, 900, 990, 999, 1000}) {
      const uint64_t exact = ExactPercentile(samples, permille);
      EXPECT_EQ(histogram.Percentile(static_cast<double>(permille) / 1000),
                Histogram::UpperBound(Histogram::BucketOf(exact)))
          << permille << " of " << samples.size();
    }
  }
}

TEST(Counter, Add_FromManyThreadsLosesNothing) {
  Counter counter;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; i++) {
      threads.emplace_back([&counter] {
        for (int n = 0; n < 10000; n++) {
          counter.Add(3);
        }
      });
    }
  }
  EXPECT_EQ(counter.value(), 120000U);
}

TEST(MetricsRegistry, Counter_SameNameIsTheSameMetric) {
  MetricsRegistry registry;
  Counter& first = registry.counter("reads_total");
  for (int i = 0; i < 100; i++) {
    registry.counter("other" + std::to_string(i) + "_total").Add();
  }
  EXPECT_EQ(&registry.counter("reads_total"), &first);
  EXPECT_NE(&registry.counter("writes_total"), &first);
}

TEST(MetricsRegistry, Snapshot_NamesAllValues) {
  MetricsRegistry registry;
  registry.counter("reads_total").Add(5);
  for (uint64_t i = 0; i < 1000; i++) {
    registry.histogram("read").Record(i < 990 ? 10 : 12);
  }
  std::map<std::string, uint64_t> values;
  for (const MetricValue& metric : registry.Snapshot()) {
    EXPECT_TRUE(values.emplace(metric.name, metric.value).second) << metric.name << " twice";
  }
  EXPECT_THAT(values,
              ElementsAre(std::pair("read_count", 1000), std::pair("read_p50_ns", 10), std::pair("read_p999_ns", 12),
                          std::pair("read_p99_ns", 10), std::pair("reads_total", 5)));
}

TEST(MetricsRegistry, Snapshot_CountsHaveTheirBuckets) {
  MetricsRegistry registry;
  registry.counter("reads_total").Add(5);
  registry.histogram("read").Record(10);
  registry.histogram("read").Record(1'000'000);
  registry.histogram("read").Record(1'000'000);
  for (const MetricValue& metric : registry.Snapshot()) {
    const Buckets expected =
        metric.name == "read_count"
            ? Buckets{{Histogram::BucketOf(10), 1}, {static_cast<uint32_t>(Histogram::BucketOf(1'000'000)), 2}}
            : Buckets{};
    EXPECT_EQ(metric.buckets, expected) << metric.name;
  }
}

TEST(Histogram, PercentileOf_WhatHasGrown) {
  Histogram histogram;
  for (int i = 0; i < 1000; i++) {
    histogram.Record(5);
  }
  Buckets before = histogram.buckets();
  histogram.Record(100'000);
  Buckets grown = histogram.buckets();
  for (const auto& [bucket, count] : before) {
    grown[bucket] -= count;
  }
  EXPECT_EQ(PercentileOf(grown, 0.5), Histogram::UpperBound(Histogram::BucketOf(100'000)));
  EXPECT_EQ(PercentileOf({}, 0.5), 0U);
}

}  // namespace
}  // namespace termfs

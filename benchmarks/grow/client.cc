// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/grow/client.h"

#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "base/random.h"
#include "benchmarks/must.h"
#include "benchmarks/term/latencies.h"
#include "driver/softnic/softnic.h"

namespace termfs::benchmarks::grow {
namespace {

using std::chrono::steady_clock;

constexpr uint64_t kHotReads = 100'000;
constexpr uint64_t kColdReads = 4000;
constexpr int kWarmRounds = 4;
constexpr int kHotRounds = 8;  // to every warm one
constexpr std::chrono::milliseconds kLoadStep{2};

}  // namespace

class GrowClient::Body {
 public:
  Body(const Settings& settings, tlib::client::BitmapMode bitmap, const std::string& directory)
      : settings_(settings),
        nic_(Must(driver::CreateSoftNic())),
        session_(Must(tlib::client::Session::Connect(
            *nic_, directory, {.bitmap = bitmap, .pull_period = settings.period, .heat_period = settings.period},
            nullptr))),
        channel_(Must(session_->OpenChannel({}))),
        stride_(session_->pages() / settings.active_pages()) {}

  ReadCost Do(Order order) {
    const uint64_t hits_before = Hits();
    latencies_ = {};
    Access(order);
    return {.reads = latencies_.count(),
            .hits = Hits() - hits_before,
            .p50 = latencies_.Percentile(0.5),
            .p99 = latencies_.Percentile(0.99)};
  }

 private:
  uint64_t warm() const { return settings_.active_pages() / 2; }
  uint64_t hot() const { return warm() / 8; }

  void Access(Order order) {
    switch (order) {
      case Order::kFill:
        return Fill();
      case Order::kWarm:
        return Warm();
      case Order::kReadHot:
        for (uint64_t i = 0; i < kHotReads; i++) {
          Read(Hot(random_.Below(hot())));
        }
        return;
      case Order::kReadCold:
        for (uint64_t i = 0; i < kColdReads && next_cold_ < settings_.active_pages() - warm(); i++) {
          Read(Cold(next_cold_++));
        }
        return;
      case Order::kLoad:
        return Load();
    }
  }

  // Warm and cold pages take turns; the hot ones are every eighth of the warm ones.
  uint64_t Warm(uint64_t i) const { return 2 * i; }
  uint64_t Hot(uint64_t i) const { return Warm(8 * i); }
  // In an order that no read-ahead recognises.
  uint64_t Cold(uint64_t i) const {
    const uint64_t cold = settings_.active_pages() - warm();
    return 2 * ((i * 0x9e3779b1U) % cold) + 1;
  }

  uint64_t Hits() const {
    for (const MetricValue& metric : session_->Metrics()) {
      if (metric.name == "read_hit_pages_total") {
        return metric.value;
      }
    }
    return 0;
  }

  void Read(uint64_t which) {
    const tlib::client::ReadRequest read{.offset = StartOf({which * stride_}),
                                         .length = static_cast<uint32_t>(kPageSize),
                                         .destination = channel_->buffer().data()};
    const auto began = steady_clock::now();
    Must(channel_->Read({&read, 1}));
    latencies_.Record(static_cast<uint64_t>((steady_clock::now() - began).count()));
  }

  void Fill() {
    const auto page = channel_->buffer().first(kPageSize);
    for (uint64_t i = 0; i < settings_.active_pages(); i++) {
      std::fill(page.begin(), page.end(), static_cast<std::byte>(i % 251 + 1));
      Must(channel_->Write(StartOf({i * stride_}), page));
    }
  }

  void Warm() {
    for (int round = 0; round < kWarmRounds; round++) {
      for (uint64_t i = 0; i < warm(); i++) {
        Read(Warm(i));
      }
      for (uint64_t i = 0; i < kHotRounds * hot(); i++) {
        Read(Hot(i % hot()));
      }
    }
  }

  void Load() {
    const auto per_step = static_cast<uint64_t>(settings_.rate * kLoadStep.count() / 1000);
    const auto steps = static_cast<uint64_t>(settings_.seconds * 1000) / static_cast<uint64_t>(kLoadStep.count());
    auto due = steady_clock::now();
    for (uint64_t step = 0; step < steps; step++) {
      for (uint64_t i = 0; i < per_step; i++) {
        Read(random_.Below(4) != 0 ? Hot(random_.Below(hot())) : random_.Below(settings_.active_pages()));
      }
      due += kLoadStep;
      std::this_thread::sleep_until(due);
    }
  }

  const Settings& settings_;
  const std::unique_ptr<driver::Nic> nic_;
  const std::unique_ptr<tlib::client::Session> session_;
  const std::unique_ptr<tlib::client::Channel> channel_;
  const uint64_t stride_;  // pages from one that is accessed to the next
  Random random_{1};
  uint64_t next_cold_ = 0;
  term::Latencies latencies_;
};

GrowClient::GrowClient(const Settings& settings, tlib::client::BitmapMode bitmap, const std::string& directory)
    : child_("a client", [&](int socket) {
        Body body(settings, bitmap, directory);
        const auto answer = [socket](const ReadCost& cost) {
          term::Child::Send(socket, std::as_bytes(std::span(&cost, 1)));
        };
        answer({});
        Order order{};
        while (recv(socket, &order, sizeof(order), 0) == sizeof(order)) {
          answer(body.Do(order));
        }
      }) {
  child_.Hear<ReadCost>();
}

ReadCost GrowClient::Do(Order order) const {
  child_.Tell(order);
  return child_.Hear<ReadCost>();
}

void GrowClient::Fill() const { Do(Order::kFill); }
void GrowClient::Warm() const { Do(Order::kWarm); }
ReadCost GrowClient::ReadHot() const { return Do(Order::kReadHot); }
ReadCost GrowClient::ReadCold() const { return Do(Order::kReadCold); }
ReadCost GrowClient::Load() const { return Do(Order::kLoad); }

}  // namespace termfs::benchmarks::grow

// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/ssd.h"

#include <fcntl.h>
#include <libaio.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <new>
#include <thread>

#include "base/page.h"
#include "base/random.h"
#include "base/unique_fd.h"
#include "benchmarks/must.h"
#include "benchmarks/term/latencies.h"

namespace termfs::benchmarks::term {
namespace {

using std::chrono::steady_clock;

constexpr std::array<uint32_t, 6> kDepths = {1, 4, 16, 64, 128, 256};

// One thread's accesses in flight.
class Stream {
 public:
  Stream(int file, uint64_t places, const SsdLoad& load, uint32_t depth, uint64_t seed)
      : file_(file), places_(places), load_(load), random_(seed), requests_(depth), begun_(depth) {
    if (const int error = io_setup(static_cast<int>(depth), &context_); error < 0) {
      Die(Status::Errno(-error, "set up libaio"));
    }
    buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageSize, uint64_t{depth} * load.bytes)));
    std::fill_n(buffer_.get(), uint64_t{depth} * load.bytes, std::byte{0x5a});
  }
  ~Stream() { io_destroy(context_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void Run() {
    const auto begin = steady_clock::now();
    const auto end =
        begin + std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(load_.seconds));
    for (size_t i = 0; i < requests_.size(); i++) {
      Submit(i);
    }
    size_t in_flight = requests_.size();
    auto now = begin;
    std::array<io_event, 64> events{};
    while (in_flight > 0) {
      const int got = io_getevents(context_, 1, events.size(), events.data(), nullptr);
      now = steady_clock::now();
      for (int i = 0; i < got; i++) {
        if (events[static_cast<size_t>(i)].res != load_.bytes) {
          Die(Status::Error(EIO, "an access to the SSD"));
        }
        const auto index = static_cast<size_t>(events[static_cast<size_t>(i)].obj - requests_.data());
        latencies_.Record(static_cast<uint64_t>((now - begun_[index]).count()));
        if (now < end) {
          done_++;
          Submit(index);
        } else {
          in_flight--;
        }
      }
    }
  }

  double rate() const { return static_cast<double>(done_) / load_.seconds; }
  const Latencies& latencies() const { return latencies_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  void Submit(size_t index) {
    iocb* request = &requests_[index];
    std::byte* const memory = buffer_.get() + index * load_.bytes;
    const auto offset = static_cast<long long>(random_.Below(places_) * load_.bytes);
    (load_.writes ? io_prep_pwrite : io_prep_pread)(request, file_, memory, load_.bytes, offset);
    begun_[index] = steady_clock::now();
    if (const int error = io_submit(context_, 1, &request); error != 1) {
      Die(Status::Errno(error < 0 ? -error : EAGAIN, "submit to libaio"));
    }
  }

  const int file_;
  const uint64_t places_;
  const SsdLoad load_;
  Random random_;
  io_context_t context_ = nullptr;
  std::unique_ptr<std::byte, Free> buffer_;
  std::vector<iocb> requests_;
  std::vector<steady_clock::time_point> begun_;
  Latencies latencies_;
  uint64_t done_ = 0;
};

}  // namespace

SsdRate MeasureSsdAt(const std::string& path, const SsdLoad& load) {
  const UniqueFd file(open(path.c_str(), (load.writes ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0) {
    Die(ErrnoStatus("open " + path));
  }
  const uint32_t threads = std::min(load.depth, std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::thread> running;
  for (uint32_t i = 0; i < threads; i++) {
    const uint32_t depth = load.depth / threads + (i < load.depth % threads ? 1 : 0);
    streams.push_back(std::make_unique<Stream>(file.get(), static_cast<uint64_t>(status.st_size) / load.bytes, load,
                                               depth, load.seed * 31 + load.depth + i));
    running.emplace_back([&stream = *streams.back()] { stream.Run(); });
  }
  SsdRate rate{.depth = load.depth};
  Latencies latencies;
  for (uint32_t i = 0; i < threads; i++) {
    running[i].join();
    rate.per_second += streams[i]->rate();
    latencies.Add(streams[i]->latencies());
  }
  rate.p50_us = static_cast<double>(latencies.Percentile(0.5)) / 1e3;
  rate.p99_us = static_cast<double>(latencies.Percentile(0.99)) / 1e3;
  return rate;
}

std::vector<SsdRate> MeasureSsd(const std::string& path, SsdLoad load) {
  std::vector<SsdRate> rates;
  for (const uint32_t depth : kDepths) {
    load.depth = depth;
    rates.push_back(MeasureSsdAt(path, load));
  }
  return rates;
}

SsdRate BestOf(const std::vector<SsdRate>& rates) {
  SsdRate best;
  for (const SsdRate& rate : rates) {
    best = rate.per_second > best.per_second ? rate : best;
  }
  return best;
}

}  // namespace termfs::benchmarks::term

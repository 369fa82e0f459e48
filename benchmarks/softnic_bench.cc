// SPDX-License-Identifier: Apache-2.0
//
// What the software RNIC costs over the memory it moves: PostSend and Poll of READs of random resident pages, against
// the bare loop "load entry, copy, load entry" on the same memory. Both run in turns of a few milliseconds within one
// process, each on a core of its choice, and the figure is the ratio of the medians: the machine's noise hits both.
//
//   softnic_bench [region MiB, default 1024] [rounds, default 41]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "benchmarks/median.h"
#include "driver/nic.h"
#include "driver/softnic/page_table.h"
#include "driver/softnic/softnic.h"

namespace termfs::driver {
namespace {

using benchmarks::Median;

constexpr uint32_t kMaxBatch = 32;
constexpr uint32_t kReadsPerTurn = 16384;

struct Side {
  Side() {
    nic = CreateSoftNic().value();
    domain = nic->CreateProtectionDomain().value();
    queue = nic->CreateCompletionQueue(256).value();
    memory = nic->AllocateMemory({.bytes = kMaxBatch * kPageSize}).value();
    region = domain->RegisterMemory(memory->data(), memory->size(), Access::kLocalWrite).value();
    QueuePairOptions options;
    options.send_cq = queue.get();
    options.recv_cq = queue.get();
    pair = domain->CreateQueuePair(options).value();
  }
  std::unique_ptr<Nic> nic;
  std::unique_ptr<ProtectionDomain> domain;
  std::unique_ptr<CompletionQueue> queue;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<MemoryRegion> region;
  std::unique_ptr<QueuePair> pair;
};

// The bare loop works on the owner's mapping of the frames, and on a table of its own in shared memory with the same
// contents.
struct Bench {
  explicit Bench(uint64_t region_pages)
      : pages(region_pages),
        table(server.nic->AllocateMemory({.bytes = region_pages * sizeof(std::atomic<uint64_t>)}).value()),
        entries(reinterpret_cast<std::atomic<uint64_t>*>(table->data())) {
    Endpoint of_client = client.pair->LocalEndpoint().value();
    Endpoint of_server = server.pair->LocalEndpoint().value();
    TERMFS_CHECK(client.pair->Connect(std::move(of_server)).ok());
    TERMFS_CHECK(server.pair->Connect(std::move(of_client)).ok());
    TermRegionOptions options;
    options.pages = pages;
    options.max_pages = pages;
    term = server.domain->RegisterTermRegion(options).value();
    TERMFS_CHECK(term->Commit({0}, static_cast<uint32_t>(pages)).ok());
    std::vector<uint32_t> frames(pages);
    for (uint32_t i = 0; i < pages; i++) {
      frames[i] = i;
    }
    std::shuffle(frames.begin(), frames.end(), random);
    for (uint64_t page = 0; page < pages; page++) {
      memset(term->frame({frames[page]}), static_cast<int>(page), kPageSize);
      term->Publish({page}, {frames[page]});
      entries[page].store(MakeEntry(1, frames[page]));
    }
  }

  // Every page once, so that no turn takes the page faults of a fresh mapping.
  void Warm() {
    offsets.clear();
    for (uint64_t page = 0; page < pages; page++) {
      offsets.push_back(page * kPageSize);
    }
    NicTurn(64, 1);
    BareTurn(64);
  }

  void Draw(uint32_t length) {
    offsets.resize(kReadsPerTurn);
    for (uint64_t& offset : offsets) {
      offset = random.Below(pages) * kPageSize + random.Below(kPageSize / length) * length;
    }
  }

  double BareTurn(uint32_t length) {
    std::byte* to = client.memory->data();
    const std::byte* frames = term->frame({0});
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < offsets.size(); i++) {
      const std::atomic<uint64_t>& entry = entries[offsets[i] / kPageSize];
      const uint64_t seen = entry.load(std::memory_order_acquire);
      memcpy(to + (i % kMaxBatch) * kPageSize, frames + uint64_t{FrameOf(seen)} * kPageSize + offsets[i] % kPageSize,
             length);
      std::atomic_thread_fence(std::memory_order_acquire);
      TERMFS_CHECK(entry.load(std::memory_order_relaxed) == seen);
    }
    return PerRead(start);
  }

  double NicTurn(uint32_t length, uint32_t batch) {
    std::vector<SendWorkRequest> requests(batch);
    std::vector<WorkCompletion> completions(batch);
    for (uint32_t i = 0; i < batch; i++) {
      requests[i].opcode = Opcode::kRdmaRead;
      requests[i].local = {client.memory->data() + i * kPageSize, length, client.region->lkey()};
      requests[i].rkey = term->rkey();
    }
    const auto start = std::chrono::steady_clock::now();
    for (size_t at = 0; at < offsets.size(); at += batch) {
      for (uint32_t i = 0; i < batch; i++) {
        requests[i].id = at + i;
        requests[i].remote_offset = offsets[at + i];
      }
      TERMFS_CHECK(client.pair->PostSend(requests).ok());
      for (uint32_t got = 0; got < batch;) {
        const size_t count = client.queue->Poll(std::span(completions).subspan(got));
        for (size_t i = 0; i < count; i++) {
          TERMFS_CHECK(completions[got + i].status == WcStatus::kSuccess);
        }
        got += static_cast<uint32_t>(count);
      }
    }
    return PerRead(start);
  }

  double PerRead(std::chrono::steady_clock::time_point start) const {
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    return took.count() / static_cast<double>(offsets.size());
  }

  const uint64_t pages;
  Random random{1};
  Side client;
  Side server;
  std::unique_ptr<TermRegion> term;
  std::unique_ptr<Memory> table;
  std::atomic<uint64_t>* const entries;
  std::vector<uint64_t> offsets;
};

void Measure(Bench& bench, uint32_t length, int rounds) {
  const std::vector<uint32_t> batches = {1, 8, 32};
  std::vector<double> bare;
  std::vector<std::vector<double>> nic(batches.size());
  for (int round = 0; round < rounds; round++) {
    bench.Draw(length);
    bare.push_back(bench.BareTurn(length));
    for (size_t i = 0; i < batches.size(); i++) {
      bench.Draw(length);
      nic[i].push_back(bench.NicTurn(length, batches[i]));
    }
  }
  printf("%5u B  bare %6.1f ns\n", length, Median(bare));
  for (size_t i = 0; i < batches.size(); i++) {
    printf("%5u B  PostSend+Poll, batch %2u: %6.1f ns  ratio %.2f\n", length, batches[i], Median(nic[i]),
           Median(nic[i]) / Median(bare));
  }
}

}  // namespace
}  // namespace termfs::driver

int main(int argc, char** argv) {
  const uint64_t mib = argc > 1 ? strtoull(argv[1], nullptr, 10) : 1024;
  const int rounds = argc > 2 ? atoi(argv[2]) : 41;
  if (mib == 0 || mib > (uint64_t{1} << 20) || rounds <= 0) {
    fprintf(stderr, "usage: %s [region MiB] [rounds]\n", argv[0]);
    return 2;
  }
  auto bench = std::make_unique<termfs::driver::Bench>(mib << 8);
  bench->Warm();
  for (const uint32_t length : {256u, 4096u}) {
    termfs::driver::Measure(*bench, length, rounds);
  }
  return 0;
}

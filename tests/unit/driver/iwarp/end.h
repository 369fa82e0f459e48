// SPDX-License-Identifier: Apache-2.0
//
// One end of an iWARP stream in tests: memory of which everything may be done to the first half, and only READs to the
// second one; what has completed; and the bytes on their way to it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "driver/iwarp/stream.h"

namespace termfs::driver::iwarp {

using Bytes = std::vector<std::byte>;

inline constexpr RKey kRkey{77};
inline constexpr size_t kMemory = 64 * kPageSize;

class End final : public RemoteMemory, public CompletionSink {
 public:
  explicit End(const StreamOptions& options) : memory(kMemory), stream(options, *this, *this) {}

  bool Allows(RKey rkey, uint64_t offset, uint64_t length, Access access) override {
    return rkey == kRkey && !revoked && offset <= kMemory && length <= kMemory - offset &&
           (access == Access::kRemoteRead || offset + length <= kMemory / 2);
  }
  bool Read(RKey rkey, uint64_t offset, std::span<std::byte> to) override {
    EXPECT_TRUE(rkey == kRkey && offset + to.size() <= kMemory);
    EXPECT_EQ(offset / kPageSize, (offset + to.size() - 1) / kPageSize) << "more than a page at once";
    std::copy_n(memory.begin() + static_cast<ptrdiff_t>(offset), to.size(), to.begin());
    if (on_read) {
      on_read();
    }
    return !revoked;
  }
  bool Write(RKey rkey, uint64_t offset, std::span<const std::byte> from) override {
    EXPECT_TRUE(rkey == kRkey && offset + from.size() <= kMemory / 2);
    std::copy(from.begin(), from.end(), memory.begin() + static_cast<ptrdiff_t>(offset));
    return true;
  }
  bool CompareSwap(RKey, uint64_t, uint64_t, uint64_t, uint64_t*) override { return false; }
  bool FetchAdd(RKey, uint64_t, uint64_t, uint64_t*) override { return false; }

  void OnSend(const WorkCompletion& completion) override { sent.push_back(completion); }
  void OnUnsignaledSend() override { unsignaled++; }
  void OnReceive(const WorkCompletion& completion) override { received.push_back(completion); }

  // All that it has to send, with `room` for each call.
  Bytes Output(size_t room = kMostFrameBytes) {
    Bytes all;
    Bytes buffer(room);
    while (const size_t filled = stream.Fill(buffer)) {
      all.insert(all.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(filled));
    }
    return all;
  }
  // `bytes` arrive behind what has not been taken yet.
  void Arrive(std::span<const std::byte> bytes) {
    arrived.insert(arrived.end(), bytes.begin(), bytes.end());
    const size_t taken = stream.Take(arrived);
    arrived.erase(arrived.begin(), arrived.begin() + static_cast<ptrdiff_t>(taken));
  }

  Bytes memory;
  bool revoked = false;
  std::function<void()> on_read;
  std::vector<WorkCompletion> sent;
  std::vector<WorkCompletion> received;
  uint32_t unsignaled = 0;
  Bytes arrived;
  Stream stream;
};

// Two ends that have a stream.
struct Pair {
  explicit Pair(StreamOptions options = {}) : client(options), server(Accepting(options)) {}
  static StreamOptions Accepting(StreamOptions options) {
    options.dials = false;
    std::swap(options.reads_of_ours, options.reads_of_peer);
    return options;
  }
  // Until nothing is under way any more.
  void Run() {
    for (;;) {
      const Bytes there = client.Output();
      server.Arrive(there);
      const Bytes back = server.Output();
      client.Arrive(back);
      if (there.empty() && back.empty()) {
        return;
      }
    }
  }

  End client;
  End server;
};

inline SendWorkRequest Request(Opcode opcode, uint64_t id, Bytes& local, uint64_t remote_offset = 0) {
  SendWorkRequest request;
  request.id = id;
  request.opcode = opcode;
  request.local = {.addr = local.data(), .length = static_cast<uint32_t>(local.size())};
  request.remote_offset = remote_offset;
  request.rkey = kRkey;
  return request;
}

inline RecvWorkRequest Receive(uint64_t id, Bytes& local) {
  return {.id = id, .local = {.addr = local.data(), .length = static_cast<uint32_t>(local.size())}};
}

inline Bytes Pattern(size_t size, unsigned seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; i++) {
    bytes[i] = static_cast<std::byte>(seed * 131 + i * 7 + i / 251);
  }
  return bytes;
}

}  // namespace termfs::driver::iwarp

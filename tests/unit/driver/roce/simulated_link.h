// SPDX-License-Identifier: Apache-2.0
//
// Two ends of a connection, joined by a link that loses, doubles, delays and reorders packets, in simulated time.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/random.h"
#include "driver/roce/requester.h"
#include "driver/roce/responder.h"

namespace termfs::driver::roce {

using Bytes = std::vector<std::byte>;

struct LinkQuality {
  double loss = 0;
  double doubling = 0;
  double detours = 0;  // packets that take ten times as long
  std::chrono::microseconds delay{50};
  std::chrono::microseconds gathering{0};  // what comes within this is taken together
};

inline constexpr RKey kRkey{77};
inline constexpr size_t kMemory = 64 * kPageSize;

// An end, with memory of which everything may be done to the first half, and only READs to the second one.
class End final : public RemoteMemory, public PacketSink, public CompletionSink {
 public:
  explicit End(const ConnectionOptions& options)
      : memory(kMemory),
        requester(options, *this, *this, counters),
        responder(options, *this, *this, *this, counters) {}

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
  bool CompareSwap(RKey, uint64_t offset, uint64_t compare, uint64_t swap, uint64_t* before) override {
    std::memcpy(before, memory.data() + offset, sizeof(*before));
    if (*before == compare) {
      std::memcpy(memory.data() + offset, &swap, sizeof(swap));
    }
    return true;
  }
  bool FetchAdd(RKey, uint64_t offset, uint64_t add, uint64_t* before) override {
    std::memcpy(before, memory.data() + offset, sizeof(*before));
    add += *before;
    std::memcpy(memory.data() + offset, &add, sizeof(add));
    return true;
  }

  std::byte* Begin(size_t bytes) override {
    Flush();
    packet.assign(bytes, std::byte{0xdd});
    return packet.data();
  }
  void Discard() override { packet.clear(); }
  void Flush() {
    if (!packet.empty()) {
      out(std::exchange(packet, {}));
    }
  }
  void OnSend(const WorkCompletion& completion) override { sent.push_back(completion); }
  void OnUnsignaledSend() override {}
  void OnReceive(const WorkCompletion& completion) override { received.push_back(completion); }

  // One half that has failed takes the other one along.
  void Continue(TimePoint now) {
    while (responder.Continue()) {
    }
    requester.Continue(now);
    if (responder.failed() && !requester.failed()) {
      requester.Fail(WcStatus::kWrFlushErr);
    }
    if (requester.failed() && !responder.failed()) {
      responder.Fail();
    }
    Flush();
  }
  void Hear(const Bytes& bytes, TimePoint now) {
    const auto decoded = Decode(bytes);
    ASSERT_TRUE(decoded.has_value());
    if (IsResponse(decoded->op)) {
      requester.OnPacket(*decoded, now);
    } else {
      responder.OnPacket(*decoded);
    }
  }

  std::function<void(Bytes)> out;
  std::function<void()> on_read;
  Bytes memory;
  Bytes packet;
  bool revoked = false;
  ConnectionCounters counters;
  std::vector<WorkCompletion> sent;
  std::vector<WorkCompletion> received;
  Requester requester;
  Responder responder;
};

class SimulatedLink {
 public:
  explicit SimulatedLink(uint64_t seed, const LinkQuality& quality = {}, uint32_t mtu = 1024,
                         std::chrono::milliseconds rnr_timeout = std::chrono::milliseconds(1000))
      : random_(seed), quality_(quality) {
    const auto first = static_cast<uint32_t>(random_()) & kSequenceMask;
    const auto second = uint32_t{kSequenceMask} - static_cast<uint32_t>(random_.Below(64));  // wraps soon
    a = std::make_unique<End>(ConnectionOptions{.queue_pair = 1,
                                                .peer = 2,
                                                .first_sequence = first,
                                                .peer_first_sequence = second,
                                                .mtu = mtu,
                                                .max_reads = 16,
                                                .rnr_timeout = rnr_timeout});
    b = std::make_unique<End>(ConnectionOptions{.queue_pair = 2,
                                                .peer = 1,
                                                .first_sequence = second,
                                                .peer_first_sequence = first,
                                                .mtu = mtu,
                                                .max_reads = 16,
                                                .rnr_timeout = rnr_timeout});
    a->out = [this](Bytes bytes) { Carry(std::move(bytes), *b); };
    b->out = [this](Bytes bytes) { Carry(std::move(bytes), *a); };
  }

  // Until `done`, or nothing moves any more, or `limit` of simulated time has passed. True: it is done.
  bool Run(const std::function<bool()>& done, std::chrono::nanoseconds limit = std::chrono::minutes(10)) {
    const TimePoint end = now + limit;
    a->Continue(now);
    b->Continue(now);
    while (!done()) {
      const TimePoint timer = std::min(a->requester.deadline(), b->requester.deadline());
      const TimePoint packet = way_.empty() ? TimePoint::max() : way_.begin()->first;
      const TimePoint next = std::min(timer, packet);
      if (next > end) {
        return false;
      }
      now = std::max(now, next);
      if (packet <= timer) {
        End* const to = way_.begin()->second.second;
        now += quality_.gathering;
        while (!way_.empty() && way_.begin()->first <= now && way_.begin()->second.second == to) {
          const Bytes bytes = std::move(way_.begin()->second.first);
          way_.erase(way_.begin());
          to->Hear(bytes, now);
        }
        to->Continue(now);
      } else {
        for (End* one : {a.get(), b.get()}) {
          one->requester.OnTimer(now);
          one->Continue(now);
        }
      }
    }
    return true;
  }

  TimePoint now{std::chrono::hours(1)};
  std::unique_ptr<End> a;
  std::unique_ptr<End> b;
  std::function<bool(Bytes&, End&)> filter;  // false: lost
  uint64_t carried = 0;

 private:
  void Carry(Bytes bytes, End& to) {
    carried++;
    if ((filter && !filter(bytes, to)) || random_.Double() < quality_.loss) {
      return;
    }
    const int copies = random_.Double() < quality_.doubling ? 2 : 1;
    for (int i = 0; i < copies; i++) {
      const int detour = random_.Double() < quality_.detours ? 10 : 1;
      way_.emplace(now + quality_.delay * detour, std::pair(bytes, &to));
    }
  }

  Random random_;
  const LinkQuality quality_;
  std::multimap<TimePoint, std::pair<Bytes, End*>> way_;
};

}  // namespace termfs::driver::roce

// SPDX-License-Identifier: Apache-2.0
//
// Any datagrams for a connection that has requests of every kind under way and receives posted: as they come, and with
// the numbers put right, so that they go deep. Nothing outside of what is allowed is read or changed, and each request
// and receive completes at most once.
//
// The input is a row of datagrams: a byte of flags (1: the right sequence number; 2: the right rkey; 4: time passes), a
// byte with the length, so many bytes.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "driver/roce/requester.h"
#include "driver/roce/responder.h"

namespace termfs::driver::roce {
namespace {

constexpr RKey kRkey{0x1234};
constexpr size_t kMemory = 4 * kPageSize;
constexpr uint32_t kOwnFirst = 100;
constexpr uint32_t kPeerFirst = 0xfffff0;

class End final : public RemoteMemory, public PacketSink, public CompletionSink {
 public:
  bool Allows(RKey rkey, uint64_t offset, uint64_t length, Access) override {
    return rkey == kRkey && offset <= kMemory && length <= kMemory - offset;
  }
  bool Read(RKey rkey, uint64_t offset, std::span<std::byte> to) override {
    TERMFS_CHECK(Allows(rkey, offset, to.size(), Access::kRemoteRead));
    std::copy_n(memory_.begin() + static_cast<ptrdiff_t>(offset), to.size(), to.begin());
    return true;
  }
  bool Write(RKey rkey, uint64_t offset, std::span<const std::byte> from) override {
    TERMFS_CHECK(Allows(rkey, offset, from.size(), Access::kRemoteWrite));
    std::copy(from.begin(), from.end(), memory_.begin() + static_cast<ptrdiff_t>(offset));
    return true;
  }
  bool CompareSwap(RKey rkey, uint64_t offset, uint64_t, uint64_t, uint64_t* before) override {
    return FetchAdd(rkey, offset, 0, before);
  }
  bool FetchAdd(RKey rkey, uint64_t offset, uint64_t add, uint64_t* before) override {
    TERMFS_CHECK(Allows(rkey, offset, sizeof(add), Access::kRemoteAtomic) && offset % sizeof(add) == 0);
    std::memcpy(before, memory_.data() + offset, sizeof(*before));
    add += *before;
    std::memcpy(memory_.data() + offset, &add, sizeof(add));
    return true;
  }
  void Discard() override {}
  std::byte* Begin(size_t bytes) override {
    TERMFS_CHECK(bytes <= kMaxHeaderBytes + kPageSize);
    packet_.assign(bytes, std::byte{0});
    return packet_.data();
  }
  void OnSend(const WorkCompletion& completion) override {
    TERMFS_CHECK(!std::exchange(sent_.at(completion.id), true));
  }
  void OnUnsignaledSend() override {}
  void OnReceive(const WorkCompletion& completion) override {
    TERMFS_CHECK(!std::exchange(received_.at(completion.id), true));
    TERMFS_CHECK(completion.status != WcStatus::kSuccess || completion.has_imm || completion.byte_len <= kPageSize);
  }

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(kMemory);
  std::vector<std::byte> packet_;
  std::array<bool, 8> sent_{};
  std::array<bool, 8> received_{};
};

void TryDatagrams(std::span<const std::byte> input) {
  End end;
  ConnectionCounters counters;
  const ConnectionOptions options{
      .queue_pair = 1, .peer = 2, .first_sequence = kOwnFirst, .peer_first_sequence = kPeerFirst, .mtu = 256};
  Requester requester(options, end, end, counters);
  Responder responder(options, end, end, end, counters);
  std::vector<std::vector<std::byte>> buffers(16, std::vector<std::byte>(kPageSize));
  TimePoint now{std::chrono::hours(1)};
  for (uint64_t i = 0; i < 8; i++) {
    responder.Post({.id = i, .local = {.addr = buffers[i].data(), .length = kPageSize}});
    constexpr std::array<Opcode, 4> kKinds = {Opcode::kRdmaRead, Opcode::kSend, Opcode::kFetchAdd, Opcode::kRdmaWrite};
    SendWorkRequest request;
    request.id = i;
    request.opcode = kKinds[i % kKinds.size()];
    request.local = {.addr = buffers[8 + i].data(), .length = i % 4 == 2 ? 8 : static_cast<uint32_t>(kPageSize)};
    request.rkey = kRkey;
    requester.Post(request);
  }
  requester.Continue(now);
  uint32_t taken = 0;
  while (input.size() > 2) {
    const uint8_t flags = std::to_integer<uint8_t>(input[0]);
    const size_t length = std::min<size_t>(std::to_integer<size_t>(input[1]), input.size() - 2);
    auto packet = Decode(input.subspan(2, length));
    input = input.subspan(2 + length);
    if ((flags & 4) != 0 && requester.deadline() != TimePoint::max()) {
      now = std::max(now, requester.deadline());
      requester.OnTimer(now);
    }
    if (packet.has_value()) {
      const bool response = IsResponse(packet->op);
      if ((flags & 1) != 0) {
        packet->sequence = ((response ? kOwnFirst : kPeerFirst) + taken++) & kSequenceMask;
      }
      packet->rkey = (flags & 2) != 0 ? kRkey.value : packet->rkey;
      if (response) {
        requester.OnPacket(*packet, now);
      } else {
        responder.OnPacket(*packet);
      }
    }
    responder.Continue();
    requester.Continue(now);
  }
}

}  // namespace
}  // namespace termfs::driver::roce

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  termfs::driver::roce::TryDatagrams({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}

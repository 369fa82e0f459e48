// SPDX-License-Identifier: Apache-2.0
//
// What does not keep to the protocol gets an error or loses its connection; the server goes on with everybody else.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "driver/softnic/layout.h"
#include "tests/unit/tlib/raw_control.h"
#include "tlib/rpc/decode.h"

namespace termfs::tlib {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

namespace softnic = driver::softnic;

std::span<const std::byte> AsBytes(const auto& value) { return std::as_bytes(std::span(&value, 1)); }

// A data queue pair by hand, beside a control channel by hand.
class RawChannel {
 public:
  explicit RawChannel(const std::string& path) : control_(path) {
    nic_ = driver::CreateSoftNic().value();
    domain_ = nic_->CreateProtectionDomain().value();
    queue_ = nic_->CreateCompletionQueue(512).value();
    messages_.resize(4 * kMaxMessage * size_t{kChannelCredits});
    region_ = domain_->RegisterMemory(messages_.data(), messages_.size(), driver::Access::kLocalWrite).value();
    pair_ = domain_
                ->CreateQueuePair({.send_cq = queue_.get(),
                                   .recv_cq = queue_.get(),
                                   .max_send = 128,
                                   .max_recv = kChannelCredits,
                                   .max_message = kMaxMessage})
                .value();
    wire::HelloT hello;
    hello.version = kControlVersion;
    control_.Send(std::move(hello));
    wire::ControlMessageT welcome;
    EXPECT_TRUE(control_.Receive(welcome).ok());
    epoch_ = welcome.body.AsWelcome()->epoch;
    Open();
  }

  void Send(std::span<const std::byte> bytes) {
    std::memcpy(messages_.data(), bytes.data(), bytes.size());
    driver::SendWorkRequest send{.opcode = driver::Opcode::kSend};
    send.local = {.addr = messages_.data(), .length = static_cast<uint32_t>(bytes.size()), .lkey = region_->lkey()};
    ASSERT_TRUE(pair_->PostSend({&send, 1}).ok());
  }
  // The error of the reply; ENOTCONN when the connection was closed instead.
  int Outcome() {
    int outcome = -1;
    EXPECT_TRUE(Eventually([&] {
      driver::WorkCompletion completion;
      if (queue_->Poll({&completion, 1}) == 0) {
        return false;
      }
      if (completion.status != driver::WcStatus::kSuccess) {
        outcome = ENOTCONN;
        return true;
      }
      if (completion.opcode != driver::Opcode::kRecv) {
        return false;
      }
      const auto reply = DecodeReply({receive_bytes(completion.id), completion.byte_len});
      EXPECT_TRUE(reply.ok());
      outcome = reply->header.error;
      PostReceive(completion.id);
      return true;
    }));
    return outcome;
  }
  int Exchange(RequestHeader header, std::span<const std::byte> body) {
    header.epoch = epoch_;
    header.body_bytes = static_cast<uint32_t>(body.size());
    std::vector<std::byte> message(sizeof(header) + body.size());
    EncodeMessage(header, body, message.data());
    Send(message);
    return Outcome();
  }
  uint64_t epoch() const { return epoch_; }
  // The first message of all, as if a WRITE with immediate of so many bytes had come: into the server's inbox by hand.
  // Nothing wakes the server, which looks now and then.
  void ForgeWriteWithImm(uint32_t length) {
    constexpr size_t kBytes = softnic::kSlotsOffset + sizeof(softnic::SlotHeader);
    void* const inbox = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, inbox_.get(), 0);
    ASSERT_NE(inbox, MAP_FAILED);
    auto& slot = *reinterpret_cast<softnic::SlotHeader*>(static_cast<std::byte*>(inbox) + softnic::kSlotsOffset);
    slot.length = length;
    slot.kind = static_cast<uint32_t>(softnic::SlotKind::kWriteWithImm);
    slot.sequence = 1;
    munmap(inbox, kBytes);
  }

 private:
  std::byte* receive_bytes(uint64_t index) { return messages_.data() + (index + kChannelCredits) * kMaxMessage; }
  void PostReceive(uint64_t index) {
    const driver::RecvWorkRequest receive{
        .id = index, .local = {.addr = receive_bytes(index), .length = kMaxMessage, .lkey = region_->lkey()}};
    ASSERT_TRUE(pair_->PostRecv({&receive, 1}).ok());
  }
  void Open() {
    auto local = pair_->LocalEndpoint().value();
    wire::ControlMessageT message;
    wire::OpenQueuePairT open;
    const auto* bytes = reinterpret_cast<const uint8_t*>(local.bytes.data());
    open.endpoint.assign(bytes, bytes + local.bytes.size());
    message.body.Set(std::move(open));
    ASSERT_TRUE(SendFrame(control_.fd(), EncodeControl(message), local.fds, steady_clock::now() + seconds(120)).ok());
    driver::Endpoint remote;
    wire::ControlMessageT opened;
    ASSERT_TRUE(control_.Receive(opened, &remote.fds).ok());
    const auto& endpoint = opened.body.AsQueuePairOpened()->endpoint;
    const auto* data = reinterpret_cast<const std::byte*>(endpoint.data());
    remote.bytes.assign(data, data + endpoint.size());
    inbox_ = UniqueFd(fcntl(remote.fds[softnic::kInboxFd].get(), F_DUPFD_CLOEXEC, 0));
    ASSERT_TRUE(pair_->Connect(std::move(remote)).ok());
    for (uint64_t i = 0; i < kChannelCredits; i++) {
      PostReceive(i);
    }
  }

  RawControl control_;
  std::unique_ptr<driver::Nic> nic_;
  std::unique_ptr<driver::ProtectionDomain> domain_;
  std::unique_ptr<driver::CompletionQueue> queue_;
  std::vector<std::byte> messages_;
  std::unique_ptr<driver::MemoryRegion> region_;
  std::unique_ptr<driver::QueuePair> pair_;
  UniqueFd inbox_;  // the server's
  uint64_t epoch_ = 0;
};

TEST_F(HostileTest, Request_ShortOrLyingMessagesCloseTheConnection) {
  for (const size_t size : {size_t{1}, sizeof(RequestHeader) - 1}) {
    RawChannel channel(volume_.path());
    channel.Send(std::vector<std::byte>(size));
    EXPECT_EQ(channel.Outcome(), ENOTCONN) << size;
  }
  RawChannel channel(volume_.path());
  const RequestHeader lying{.epoch = channel.epoch(), .opcode = kEcho, .body_bytes = 4000, .in = {}, .out = {}};
  channel.Send(AsBytes(lying));
  EXPECT_EQ(channel.Outcome(), ENOTCONN);
}

TEST_F(HostileTest, Request_UnknownOpcodeIsENOSYS) {
  RawChannel channel(volume_.path());
  for (const uint16_t opcode : {0, 3, 50, 63}) {
    EXPECT_EQ(channel.Exchange({.opcode = opcode, .in = {}, .out = {}}, {}), ENOSYS) << opcode;
  }
}

TEST_F(HostileTest, Request_OfAnotherEpochIsESTALE) {
  RawChannel channel(volume_.path());
  const RequestHeader stale{.epoch = channel.epoch() - 1, .opcode = kEcho, .in = {}, .out = {}};
  channel.Send(AsBytes(stale));
  EXPECT_EQ(channel.Outcome(), ESTALE);
}

TEST_F(HostileTest, Request_WriteWithImmediateOfAnyLengthEndsTheConnectionOnly) {
  RawChannel channel(volume_.path());
  channel.ForgeWriteWithImm(1U << 30);
  EXPECT_EQ(channel.Outcome(), ENOTCONN);
}

TEST_F(HostileTest, Read_BadRangesAndBitmapsAreErrors) {
  RawChannel channel(volume_.path());
  struct Body {
    ReadBody range;
    uint64_t words[2];
  };
  const auto ask = [&](uint64_t offset, uint32_t length, uint32_t words, uint64_t bits, uint32_t out) {
    const Body body{{.offset = offset, .length = length, .words = words}, {bits, 0}};
    const auto bytes = AsBytes(body).first(sizeof(ReadBody) + std::min<uint32_t>(words, 2) * 8);
    return channel.Exchange({.opcode = kRead, .in = {}, .out = {.offset = 0, .rkey = 1, .length = out}}, bytes);
  };
  EXPECT_EQ(ask(0, 0, 1, 1, 0), EPROTO);                      // empty
  EXPECT_EQ(ask(0, 4096, 1, 1, 100), EPROTO);                 // a buffer of another size
  EXPECT_EQ(ask(0, 4096, 2, 1, 4096), EPROTO);                // too many words
  EXPECT_EQ(ask(0, 4096, 0, 1, 4096), EPROTO);                // too few
  EXPECT_EQ(ask(0, 4096, 1, 3, 4096), EPROTO);                // a bit beyond the range
  EXPECT_EQ(ask(0, 4096, 1, 0, 4096), EPROTO);                // no bit
  EXPECT_EQ(ask(256 * kPageSize, 4096, 1, 1, 4096), EINVAL);  // beyond the region
  EXPECT_EQ(ask(256 * kPageSize - 1, 2, 1, 1, 2), EINVAL);    // over its end
  EXPECT_EQ(ask(UINT64_MAX - 10, 4096, 1, 1, 4096), EPROTO);  // overflow
}

TEST_F(HostileTest, Read_IntoAKeyThatIsNotOursEndsTheConnectionOnly) {
  RawChannel channel(volume_.path());
  struct {
    ReadBody range{.offset = 0, .length = 4096, .words = 1};
    uint64_t bits = 1;
  } body;
  EXPECT_EQ(
      channel.Exchange({.opcode = kRead, .in = {}, .out = {.offset = 0, .rkey = 12345, .length = 4096}}, AsBytes(body)),
      ENOTCONN);
}

TEST_F(HostileTest, Write_BadRangesAreErrors) {
  RawChannel channel(volume_.path());
  const auto ask = [&](uint64_t offset, uint32_t length, uint32_t in) {
    const WriteBody body{.offset = offset, .length = length};
    return channel.Exchange({.opcode = kWrite, .in = {.offset = 0, .rkey = 1, .length = in}, .out = {}}, AsBytes(body));
  };
  EXPECT_EQ(ask(0, 0, 0), EPROTO);
  EXPECT_EQ(ask(0, 100, 99), EPROTO);
  EXPECT_EQ(ask(UINT64_MAX - 10, 100, 100), EPROTO);
  EXPECT_EQ(ask(256 * kPageSize - 1, 2, 2), EINVAL);
}

TEST_F(HostileTest, Request_RandomBytesNeverHurtOthers) {
  Random random(3);
  for (int round = 0; round < 30; round++) {
    RawChannel channel(volume_.path());
    for (int i = 0; i < 5; i++) {
      std::vector<std::byte> bytes(sizeof(RequestHeader) + random.Below(200));
      for (std::byte& byte : bytes) {
        byte = static_cast<std::byte>(random());
      }
      RequestHeader header;
      std::memcpy(&header, bytes.data(), sizeof(header));
      if (random.Below(2) == 0) {  // plausible up to the body
        header.epoch = channel.epoch();
        header.opcode = static_cast<uint16_t>(random.Below(4));
        header.body_bytes = static_cast<uint32_t>(bytes.size() - sizeof(header));
        header.in.length %= 5000;
        header.out.length %= 5000;
        std::memcpy(bytes.data(), &header, sizeof(header));
      }
      channel.Send(bytes);
    }
  }
}

// How long a client waits for one RPC and one READ, in microseconds: of 100 the 50th and the longest.
struct Waits {
  double median;
  double longest;
};

Waits MeasureWaits(TestClient& client) {
  std::vector<double> waits;
  std::vector<std::byte> page(kPageSize);
  for (int i = 0; i < 100; i++) {
    const auto begin = steady_clock::now();
    EXPECT_TRUE(client.channel->Call({.opcode = kEcho, .body = BytesOf(1), .in = {}, .out = {}}).ok());
    EXPECT_TRUE(client.Read(static_cast<uint64_t>(i) * kPageSize, page).ok());
    waits.push_back(std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count());
  }
  std::sort(waits.begin(), waits.end());
  return {waits[waits.size() / 2], waits.back()};
}

// Noise, cut messages, and requests whose answers nobody reads, on one connection after the other.
void AttackControl(const std::string& path, const std::atomic<bool>& stop) {
  Random random(5);
  for (int round = 0; !stop; round++) {
    RawControl control(path);
    if (round % 4 == 0) {
      control.SendBytes(std::vector<std::byte>(1 + random.Below(3000), std::byte{0xcc}));
      continue;
    }
    wire::HelloT hello;
    hello.version = kControlVersion;
    control.Send(std::move(hello));
    for (int i = 0; i < 50 && !stop; i++) {
      control.Send(wire::GetRegionInfoT());
    }
  }
}

// Bad requests, one after the other, over a channel that was there before.
void AttackRpc(RawChannel& channel, const std::atomic<bool>& stop) {
  for (int i = 0; !stop; i++) {
    const auto opcode = static_cast<uint16_t>(i % 2 == 0 ? 63 : kRead);
    EXPECT_NE(channel.Exchange({.opcode = opcode, .in = {}, .out = {}}, {}), 0);
  }
}

TEST_F(HostileTest, Attack_OthersAreServedMeanwhile) {
  const Waits quiet = MeasureWaits(bystander_);
  RawChannel channel(volume_.path());
  std::atomic<bool> stop{false};
  std::thread control([&] { AttackControl(volume_.path(), stop); });
  std::thread rpc([&] { AttackRpc(channel, stop); });
  ASSERT_TRUE(Eventually([&] { return volume_.service().opened > 3; })) << "the attack has begun";
  const Waits attacked = MeasureWaits(bystander_);
  EXPECT_LT(attacked.longest, 10e6) << "calls have longer deadlines than anybody should have to wait";
  EXPECT_TRUE(Eventually([&] {  // the attackers are this process, which may have too many sessions for a moment
    TestClient newcomer;
    return newcomer.Connect(volume_.path()).ok();
  }));
  stop = true;
  control.join();
  rpc.join();
  std::printf("median %.0f us, longest %.0f us; under attack %.1f and %.1f times as long\n", quiet.median,
              quiet.longest, attacked.median / quiet.median, attacked.longest / quiet.longest);
}

}  // namespace
}  // namespace termfs::tlib

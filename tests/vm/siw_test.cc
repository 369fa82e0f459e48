// SPDX-License-Identifier: Apache-2.0
//
// Our iWARP and the Linux kernel's own, siw. For the virtual machines of tests/vm: without these environment variables
// it skips everything.
//
//   TERMFS_TEST_SIW=10.9.8.1                      the address of a siw device in this network
//   TERMFS_TEST_OTHER=/run/netns/other,10.9.8.2   another network of this machine for our end, and its address there
//
// Our end is the software RNIC as programs use it (driver/nic.h): its set-up, streams, RNIC thread and memory regions.
// Only the control channel is missing, by which our ends exchange endpoints: the test writes the endpoint that a peer
// of ours would have sent. The token of our set-up is plain private data to siw: it ignores ours, and gives back the
// one that it is given to dial with.
//
// CRCs are on: our end insists on them outside of TLS, and a unit without one has a wrong CRC for it.
//
// Of a Terminate message siw swaps layer and type, both when it sends and when it receives one (on little-endian
// machines, by a bit field; RFC 5040, 4.8, has the layer in the upper half of the byte). So a READ that it refuses
// (layer RDMAP, type remote protection) is a catastrophic error of DDP's for our end, and ours is one for siw.
#include <gtest/gtest.h>
#include <sys/klog.h>

#include <algorithm>
#include <future>
#include <thread>

#include "tests/unit/driver/softnic/connection.h"
#include "tests/vm/siw_end.h"

namespace termfs::driver {
namespace {

constexpr size_t kPortAt = 4;  // of the endpoint of an end that is dialled: magic, port, token
constexpr size_t kTokenAt = 6;
constexpr size_t kEndpointBytes = kTokenAt + 16;
constexpr uint32_t kWholeMemory = 1 << 20;  // of a Side

struct Networks {
  std::string siw;
  std::string other_network, other;
};
const Networks* NetworksOfTests() {
  static const std::optional<Networks> networks = []() -> std::optional<Networks> {
    const char* const siw = std::getenv("TERMFS_TEST_SIW");
    const char* const other_text = std::getenv("TERMFS_TEST_OTHER");
    if (siw == nullptr || other_text == nullptr) {
      return std::nullopt;
    }
    const std::string other = other_text;
    return Networks{siw, other.substr(0, other.find(',')), other.substr(other.find(',') + 1)};
  }();
  return networks ? &*networks : nullptr;
}

// Begins `function` in the other network, on a thread of its own.
template <typename Function>
auto InOtherNetwork(Function function) {
  return std::async(std::launch::async, [function] {
    const UniqueFd network(open(NetworksOfTests()->other_network.c_str(), O_RDONLY | O_CLOEXEC));
    TERMFS_CHECK(setns(network.get(), CLONE_NEWNET) == 0);
    return function();
  });
}

Endpoint EndpointOf(uint16_t port, std::byte token) {
  Endpoint endpoint;
  endpoint.bytes = {std::byte{'i'}, std::byte{'W'}, std::byte{'A'}, std::byte{'R'}};
  endpoint.bytes.resize(kEndpointBytes, token);
  endpoint.bytes[kPortAt] = static_cast<std::byte>(port >> 8);
  endpoint.bytes[kPortAt + 1] = static_cast<std::byte>(port & 0xff);
  return endpoint;
}

void Fill(std::byte* to, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; i++) {
    to[i] = static_cast<std::byte>(seed * 31 + i * 7 + i / 251);
  }
}

// Terminates that siw has got, by its messages in the kernel's log.
size_t TerminatesAtSiw(const std::string& what) {
  constexpr int kReadAll = 3;
  std::string log(1 << 20, '\0');
  const int bytes = klogctl(kReadAll, log.data(), static_cast<int>(log.size()));
  log.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  size_t count = 0;
  for (size_t at = log.find(what); at != std::string::npos; at = log.find(what, at + 1)) {
    count++;
  }
  return count;
}
constexpr const char* kGotReadOfInvalidKey = "siw: got TERMINATE. layer 1, type 0, code 0";  // swapped
constexpr WcStatus kReadRefusedBySiw = WcStatus::kRemInvReqErr;                              // swapped, as well
constexpr const char* kGotTaggedOfInvalidKey = "siw: got TERMINATE. layer 1, type 1, code 0";

enum class Dials { kOurs, kSiw };

class Siw : public testing::TestWithParam<Dials> {
 protected:
  void SetUp() override {
    if (NetworksOfTests() == nullptr) {
      GTEST_SKIP() << "needs a siw device";
    }
    Connect(64);
  }
  void TearDown() override {
    ours_.reset();
    siw_.reset();
    test_path.reset();
  }

  // `reads`: READ requests that siw queues.
  void Connect(uint8_t reads) {
    ours_.reset();
    const Gid siw_address = GidOf(NetworksOfTests()->siw);
    const Gid our_address = GidOf(NetworksOfTests()->other);
    siw_ = std::make_unique<SiwEnd>(siw_address, reads);
    test_path = {.local = our_address, .remote = siw_address, .interface = 0, .wire = Wire::kIwarp};
    QueuePairOptions options = Patient();
    options.max_message = kWholeMemory;
    ours_ = InOtherNetwork([&] { return std::make_unique<Side>(options, GetParam() == Dials::kOurs ? 0 : 1); }).get();
    ASSERT_NO_FATAL_FAILURE(GetParam() == Dials::kOurs ? DialSiw() : BeDialled(our_address));
  }
  void DialSiw() {
    Endpoint endpoint = EndpointOf(siw_->Listen(), std::byte{0x5a});
    const std::vector<std::byte> token(endpoint.bytes.begin() + kTokenAt, endpoint.bytes.end());
    ASSERT_TRUE(ours_->pair->LocalEndpoint().ok());
    auto dialling = InOtherNetwork([&] { return ours_->pair->Connect(std::move(endpoint)); });
    EXPECT_EQ(siw_->Accept(), token);
    const Status connected = dialling.get();
    ASSERT_TRUE(connected.ok()) << connected.ToString();
    ASSERT_TRUE(siw_->AwaitEstablished());
  }
  void BeDialled(const Gid& our_address) {
    const Endpoint endpoint = InOtherNetwork([&] { return ours_->pair->LocalEndpoint().value(); }).get();
    const auto byte = [&](size_t at) { return std::to_integer<unsigned>(endpoint.bytes.at(at)); };
    ASSERT_TRUE(ours_->pair->Connect(EndpointOf(0, std::byte{0})).ok());
    ASSERT_TRUE(siw_->Dial(our_address, static_cast<uint16_t>(byte(kPortAt) << 8 | byte(kPortAt + 1)),
                           std::span(endpoint.bytes).subspan(kTokenAt)));
  }

  std::byte* our_memory() { return ours_->memory->data(); }
  RKey our_key() { return ours_->region->rkey(); }
  WcStatus Run(Opcode opcode, size_t at, uint32_t length, RKey rkey = {}, uint64_t remote_offset = 0) {
    return ours_->Run(ours_->Request(opcode, at, length, rkey, remote_offset));
  }
  static RKey WrongKey(RKey rkey) { return {rkey.value ^ 0x00f00f00U}; }
  // Both ends have an error, and none hangs.
  void ExpectDisconnected() {
    EXPECT_TRUE(siw_->AwaitDisconnected());
    EXPECT_TRUE(ours_->Receive(1, 0, 1).ok());
    EXPECT_EQ(ours_->WaitStatus(), WcStatus::kWrFlushErr);
    EXPECT_FALSE(ours_->pair->connected());
  }

  std::unique_ptr<SiwEnd> siw_;
  std::unique_ptr<Side> ours_;
};
INSTANTIATE_TEST_SUITE_P(Ends, Siw, testing::Values(Dials::kOurs, Dials::kSiw),
                         [](const auto& info) { return info.param == Dials::kOurs ? "OursDials" : "SiwDials"; });

constexpr uint32_t kSizes[] = {1, 4095, 4096, 4097, 65536, kWholeMemory};

// The end that dials sends first: of siw's, which is not peer to peer, a message of its program's.
TEST_P(Siw, Send_BothWays) {
  for (const uint32_t size : kSizes) {
    ASSERT_TRUE(ours_->Receive(1, 0, kWholeMemory).ok());
    Fill(siw_->data(), size, size);
    siw_->Post(IBV_WR_SEND, 0, size);
    EXPECT_EQ(siw_->SentStatus(), IBV_WC_SUCCESS);
    const auto received = ours_->Wait();
    ASSERT_TRUE(received && received->status == WcStatus::kSuccess) << size;
    EXPECT_EQ(received->byte_len, size);
    EXPECT_TRUE(std::equal(our_memory(), our_memory() + size, siw_->data())) << size;

    siw_->PostReceive(0, SiwEnd::kBytes);
    Fill(our_memory(), size, size + 1);
    EXPECT_EQ(Run(Opcode::kSend, 0, size), WcStatus::kSuccess);
    const auto back = siw_->WaitReceived();
    ASSERT_TRUE(back && back->status == IBV_WC_SUCCESS) << size;
    EXPECT_EQ(back->byte_len, size);
    EXPECT_TRUE(std::equal(our_memory(), our_memory() + size, siw_->data())) << size;
  }
}

TEST_P(Siw, Read_BothWays) {
  for (const uint32_t size : kSizes) {
    Fill(our_memory(), kWholeMemory, size);
    siw_->Post(IBV_WR_RDMA_READ, 3, size, our_key(), kWholeMemory - size);
    EXPECT_EQ(siw_->SentStatus(), IBV_WC_SUCCESS) << size;
    EXPECT_TRUE(std::equal(siw_->data() + 3, siw_->data() + 3 + size, our_memory() + kWholeMemory - size)) << size;

    Fill(siw_->data(), SiwEnd::kBytes, size + 1);
    EXPECT_EQ(Run(Opcode::kRdmaRead, 0, size, siw_->rkey(), siw_->OffsetOf(7)), WcStatus::kSuccess) << size;
    EXPECT_TRUE(std::equal(our_memory(), our_memory() + size, siw_->data() + 7)) << size;
  }
}

// The SEND behind a WRITE says that it has arrived.
TEST_P(Siw, Write_BothWays) {
  for (const uint32_t size : kSizes) {
    ASSERT_TRUE(ours_->Receive(1, 0, 0).ok());
    Fill(siw_->data(), size, size);
    siw_->Post(IBV_WR_RDMA_WRITE, 0, size, our_key(), kWholeMemory - size);
    siw_->Post(IBV_WR_SEND, 0, 0);
    EXPECT_EQ(siw_->SentStatus(), IBV_WC_SUCCESS);
    EXPECT_EQ(siw_->SentStatus(), IBV_WC_SUCCESS);
    EXPECT_EQ(ours_->WaitStatus(), WcStatus::kSuccess);
    EXPECT_TRUE(std::equal(siw_->data(), siw_->data() + size, our_memory() + kWholeMemory - size)) << size;

    siw_->PostReceive(0, 1);
    Fill(our_memory(), size, size + 1);
    EXPECT_EQ(Run(Opcode::kRdmaWrite, 0, size, siw_->rkey(), siw_->OffsetOf(7)), WcStatus::kSuccess);
    EXPECT_EQ(Run(Opcode::kSend, 0, 0), WcStatus::kSuccess);
    EXPECT_EQ(siw_->ReceivedStatus(), IBV_WC_SUCCESS);
    EXPECT_TRUE(std::equal(our_memory(), our_memory() + size, siw_->data() + 7)) << size;
  }
}

// READs of both ends and WRITEs between their responses; siw queues few, more than which would end the connection.
TEST_P(Siw, ManyReadsAtATime_AreAsManyAsAgreed) {
  for (const uint8_t reads : {2, 64}) {
    ASSERT_NO_FATAL_FAILURE(Connect(reads));
    constexpr uint32_t kSize = 10'000;
    constexpr uint32_t kRequests = 20;  // of each kind
    constexpr uint32_t kHalf = kWholeMemory / 2;
    Fill(our_memory(), kWholeMemory, 1);
    Fill(siw_->data(), SiwEnd::kBytes, 2);
    siw_->Post(IBV_WR_RDMA_READ, kWholeMemory, 1, our_key(), 0);  // siw sends first where it dials
    EXPECT_EQ(siw_->SentStatus(), IBV_WC_SUCCESS);
    for (uint32_t i = 0; i < kRequests; i++) {
      const uint32_t at = i * kSize;
      siw_->Post(IBV_WR_RDMA_READ, kWholeMemory + at, kSize, our_key(), at);
      ASSERT_TRUE(
          ours_->Send(ours_->Request(Opcode::kRdmaRead, kHalf + at, kSize, siw_->rkey(), siw_->OffsetOf(at))).ok());
      ASSERT_TRUE(
          ours_->Send(ours_->Request(Opcode::kRdmaWrite, at, kSize, siw_->rkey(), siw_->OffsetOf(kHalf + at))).ok());
    }
    for (uint32_t i = 0; i < kRequests; i++) {
      ASSERT_EQ(siw_->SentStatus(), IBV_WC_SUCCESS) << i;
      ASSERT_EQ(ours_->WaitStatus(), WcStatus::kSuccess) << i;
      ASSERT_EQ(ours_->WaitStatus(), WcStatus::kSuccess) << i;
    }
    constexpr uint32_t kAll = kRequests * kSize;
    EXPECT_TRUE(std::equal(our_memory(), our_memory() + kAll, siw_->data() + kWholeMemory));
    EXPECT_TRUE(std::equal(our_memory() + kHalf, our_memory() + kHalf + kAll, siw_->data()));
    EXPECT_EQ(Run(Opcode::kRdmaRead, 0, kAll, siw_->rkey(), siw_->OffsetOf(kHalf)), WcStatus::kSuccess);
    EXPECT_TRUE(std::equal(our_memory(), our_memory() + kAll, siw_->data() + kWholeMemory)) << "what was written";
  }
}

TEST_P(Siw, OurReadOfAWrongKey_IsTerminatedBySiw) {
  siw_->Post(IBV_WR_RDMA_READ, 0, 1, our_key(), 0);
  EXPECT_EQ(siw_->SentStatus(), IBV_WC_SUCCESS);
  EXPECT_EQ(Run(Opcode::kRdmaRead, 0, 8, WrongKey(siw_->rkey()), siw_->OffsetOf(0)), kReadRefusedBySiw);
  ExpectDisconnected();
}

TEST_P(Siw, SiwsReadOfAWrongKey_IsTerminatedByUs) {
  const size_t before = TerminatesAtSiw(kGotReadOfInvalidKey);
  siw_->Post(IBV_WR_RDMA_READ, 0, 8, WrongKey(our_key()), 0);
  EXPECT_EQ(siw_->SentStatus(), IBV_WC_WR_FLUSH_ERR);
  ExpectDisconnected();
  EXPECT_EQ(TerminatesAtSiw(kGotReadOfInvalidKey), before + 1);
}

TEST_P(Siw, ReadBeyondTheEnd_IsTerminatedByEach) {
  siw_->Post(IBV_WR_RDMA_READ, 0, 1, our_key(), 0);
  EXPECT_EQ(siw_->SentStatus(), IBV_WC_SUCCESS);
  EXPECT_EQ(Run(Opcode::kRdmaRead, 0, 8, siw_->rkey(), siw_->OffsetOf(SiwEnd::kBytes - 7)), kReadRefusedBySiw);
  ExpectDisconnected();
  ASSERT_NO_FATAL_FAILURE(Connect(64));
  const size_t before = TerminatesAtSiw(kGotReadOfInvalidKey);
  siw_->Post(IBV_WR_RDMA_READ, 0, 8, our_key(), kWholeMemory - 7);
  EXPECT_EQ(siw_->SentStatus(), IBV_WC_WR_FLUSH_ERR);
  ExpectDisconnected();
  EXPECT_EQ(TerminatesAtSiw(kGotReadOfInvalidKey), before + 1);
}

TEST_P(Siw, WriteOfAWrongKey_IsTerminatedByEach) {
  siw_->Post(IBV_WR_RDMA_READ, 0, 1, our_key(), 0);
  EXPECT_EQ(siw_->SentStatus(), IBV_WC_SUCCESS);
  const SendWorkRequest requests[] = {
      ours_->Request(Opcode::kRdmaWrite, 0, 8, WrongKey(siw_->rkey()), siw_->OffsetOf(0)),
      ours_->Request(Opcode::kRdmaRead, 0, 8, siw_->rkey(), siw_->OffsetOf(0))};
  ASSERT_TRUE(ours_->pair->PostSend(requests).ok());
  EXPECT_EQ(ours_->WaitStatus(), WcStatus::kSuccess);
  EXPECT_EQ(ours_->WaitStatus(), WcStatus::kRemAccessErr) << "what the Terminate says";
  ExpectDisconnected();
  ASSERT_NO_FATAL_FAILURE(Connect(64));
  const size_t before = TerminatesAtSiw(kGotTaggedOfInvalidKey);
  siw_->Post(IBV_WR_RDMA_WRITE, 0, 8, WrongKey(our_key()), 0);
  EXPECT_EQ(siw_->SentStatus(), IBV_WC_SUCCESS);
  ExpectDisconnected();
  EXPECT_EQ(TerminatesAtSiw(kGotTaggedOfInvalidKey), before + 1);
}

TEST_P(Siw, OurEndCloses_SiwNotices) {
  siw_->PostReceive(0, 1);
  ours_->pair->Close();
  EXPECT_EQ(siw_->ReceivedStatus(), IBV_WC_WR_FLUSH_ERR);
  EXPECT_TRUE(siw_->AwaitDisconnected());
}

TEST_P(Siw, SiwCloses_OurEndNotices) {
  ASSERT_TRUE(ours_->Receive(1, 0, 1).ok());
  siw_->Disconnect();
  EXPECT_EQ(ours_->WaitStatus(), WcStatus::kWrFlushErr);
  ExpectDisconnected();
}

}  // namespace
}  // namespace termfs::driver

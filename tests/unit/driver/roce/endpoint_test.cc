// SPDX-License-Identifier: Apache-2.0
#include "driver/roce/endpoint.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace termfs::driver::roce {
namespace {

EndpointInfo OnEthernet() {
  EndpointInfo info{.queue_pair = 77, .first_sequence = 5, .mtu = 1024, .max_reads = 16, .port = 4791};
  info.gid[10] = info.gid[11] = std::byte{0xff};
  info.gid[15] = std::byte{9};
  return info;
}

EndpointInfo OnInfiniBand() {
  EndpointInfo info = OnEthernet();
  info.gid[0] = std::byte{0xfe};
  info.lid = 0x1234;
  return info;
}

TEST(Endpoint, Decode_GivesBackWhatWasEncoded) {
  const EndpointInfo ethernet = OnEthernet();
  const EndpointInfo back = Decode(Encode(ethernet), ethernet.gid).value();
  EXPECT_EQ(back.queue_pair, ethernet.queue_pair);
  EXPECT_EQ(back.first_sequence, ethernet.first_sequence);
  EXPECT_EQ(back.mtu, ethernet.mtu);
  EXPECT_EQ(back.max_reads, ethernet.max_reads);
  EXPECT_EQ(back.gid, ethernet.gid);
  EXPECT_EQ(back.port, ethernet.port);
  EXPECT_EQ(back.lid, 0);

  const EndpointInfo infiniband = OnInfiniBand();
  const EndpointInfo other = Decode(Encode(infiniband), ethernet.gid, LinkLayer::kInfiniBand).value();
  EXPECT_EQ(other.lid, infiniband.lid);
  EXPECT_EQ(other.gid, infiniband.gid) << "which is not the address of the TCP connection";
}

TEST(Endpoint, Decode_PeerOnAnotherLinkLayerIsRefused) {
  const EndpointInfo infiniband = OnInfiniBand();
  const Status here = Decode(Encode(infiniband), infiniband.gid).status();
  EXPECT_EQ(here.code(), EPROTO);
  EXPECT_NE(here.message().find("peer's RDMA device is on InfiniBand"), std::string::npos) << here.message();

  const EndpointInfo ethernet = OnEthernet();
  const Status there = Decode(Encode(ethernet), ethernet.gid, LinkLayer::kInfiniBand).status();
  EXPECT_EQ(there.code(), EPROTO);
  EXPECT_NE(there.message().find("peer is on Ethernet"), std::string::npos) << there.message();
}

TEST(Endpoint, Decode_LidOfAMulticastGroupIsRefused) {
  EndpointInfo info = OnInfiniBand();
  info.lid = 0xbfff;
  EXPECT_TRUE(Decode(Encode(info), info.gid, LinkLayer::kInfiniBand).ok());
  info.lid = 0xc000;
  EXPECT_EQ(Decode(Encode(info), info.gid, LinkLayer::kInfiniBand).status().code(), EPROTO);
}

TEST(Endpoint, Decode_AnotherAddressThanThePeersIsRefusedOnEthernet) {
  const EndpointInfo info = OnEthernet();
  Gid seen = info.gid;
  seen[15] = std::byte{10};
  EXPECT_EQ(Decode(Encode(info), seen).status().code(), EPROTO);
}

}  // namespace
}  // namespace termfs::driver::roce

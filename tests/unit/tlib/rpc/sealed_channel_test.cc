// SPDX-License-Identifier: Apache-2.0
#include "tlib/rpc/sealed_channel.h"

#include <gtest/gtest.h>

#include <string>

namespace termfs::tlib {
namespace {

using End = SealedChannel::End;

constexpr uint32_t kVersion = 9;

Secret SecretOf(int seed) {
  Secret secret{};
  secret.fill(static_cast<std::byte>(seed));
  return secret;
}

SealedChannel Make(End end, int secret = 1, uint32_t version = kVersion) {
  return SealedChannel::Create(end, SecretOf(secret), version).value();
}

std::vector<std::byte> BytesOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Two ends that have shaken hands.
struct Pair {
  SealedChannel client = Make(End::kClient);
  SealedChannel server = Make(End::kServer);

  Pair() {
    EXPECT_TRUE(server.TakeGreeting(client.Greeting()).ok());
    EXPECT_TRUE(client.TakeGreeting(server.Greeting()).ok());
    EXPECT_TRUE(server.TakeProof(client.Proof().value()).ok());
    EXPECT_TRUE(client.TakeProof(server.Proof().value()).ok());
  }
};

TEST(SealedChannel, MessagesGoBothWays) {
  Pair pair;
  EXPECT_TRUE(pair.client.open() && pair.server.open());
  for (const std::string text : {"first", "", "third"}) {
    const auto there = pair.client.Seal(BytesOf(text)).value();
    EXPECT_EQ(TextOf(pair.server.Open(there).value()), text);
    const auto back = pair.server.Seal(BytesOf(text + "!")).value();
    EXPECT_EQ(TextOf(pair.client.Open(back).value()), text + "!");
  }
}

TEST(SealedChannel, AnotherSecretIsRefusedByBothEnds) {
  SealedChannel client = Make(End::kClient, 1);
  SealedChannel server = Make(End::kServer, 2);
  ASSERT_TRUE(server.TakeGreeting(client.Greeting()).ok());
  ASSERT_TRUE(client.TakeGreeting(server.Greeting()).ok());
  EXPECT_EQ(server.TakeProof(client.Proof().value()).code(), EACCES);
  EXPECT_FALSE(server.open());
  EXPECT_EQ(client.TakeProof(server.Proof().value()).code(), EACCES);
  EXPECT_FALSE(client.open());
}

TEST(SealedChannel, AnotherVersionIsRefusedAndBothAreNamed) {
  SealedChannel client = Make(End::kClient, 1, 3);
  SealedChannel server = Make(End::kServer, 1, 4);
  for (const Status& refused : {server.TakeGreeting(client.Greeting()), client.TakeGreeting(server.Greeting())}) {
    EXPECT_EQ(refused.code(), EPROTO);
    EXPECT_EQ(refused.message(), "the client speaks version 3 of the protocol, the server version 4");
  }
}

// Who plays back what the other end says proves nothing, and neither does a proof of another connection.
TEST(SealedChannel, WhatWasSaidBeforeProvesNothing) {
  SealedChannel server = Make(End::kServer);
  ASSERT_TRUE(server.TakeGreeting(server.Greeting()).ok());
  EXPECT_EQ(server.TakeProof(server.Proof().value()).code(), EACCES);

  const Pair recorded;
  SealedChannel fresh = Make(End::kServer);
  ASSERT_TRUE(fresh.TakeGreeting(recorded.client.Greeting()).ok());
  EXPECT_EQ(fresh.TakeProof(recorded.client.Proof().value()).code(), EACCES);
}

TEST(SealedChannel, EveryBitOfAMessageCounts) {
  Pair pair;
  const auto sealed = pair.client.Seal(BytesOf("message")).value();
  ASSERT_EQ(sealed.size(), 7 + kTagBytes);
  for (size_t bit = 0; bit < sealed.size() * 8; bit++) {
    auto changed = sealed;
    changed[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_EQ(pair.server.Open(changed).status().code(), EBADMSG) << bit;
  }
  for (size_t length = 0; length < sealed.size(); length++) {
    EXPECT_EQ(pair.server.Open(std::span(sealed).first(length)).status().code(), EBADMSG) << length;
  }
  EXPECT_TRUE(pair.server.Open(sealed).ok());
}

TEST(SealedChannel, MessagesComeOnceAndInOrder) {
  Pair pair;
  const auto first = pair.client.Seal(BytesOf("first")).value();
  const auto second = pair.client.Seal(BytesOf("second")).value();
  EXPECT_EQ(pair.server.Open(second).status().code(), EBADMSG);
  EXPECT_TRUE(pair.server.Open(first).ok());
  EXPECT_EQ(pair.server.Open(first).status().code(), EBADMSG);
  EXPECT_TRUE(pair.server.Open(second).ok());
}

TEST(SealedChannel, AMessagePlayedBackToItsSenderIsRefused) {
  Pair pair;
  const auto sealed = pair.client.Seal(BytesOf("message")).value();
  EXPECT_EQ(pair.client.Open(sealed).status().code(), EBADMSG);
}

TEST(SealedChannel, OutOfTurnIsRefused) {
  SealedChannel server = Make(End::kServer);
  const SealedChannel client = Make(End::kClient);
  EXPECT_EQ(server.TakeProof(std::vector<std::byte>(kTagBytes)).code(), EPROTO);
  EXPECT_EQ(server.Open(std::vector<std::byte>(kTagBytes + 1)).status().code(), EBADMSG);
  ASSERT_TRUE(server.TakeGreeting(client.Greeting()).ok());
  EXPECT_EQ(server.TakeGreeting(client.Greeting()).code(), EPROTO);
  for (const size_t size : {0U, 1U, 43U, 45U}) {
    SealedChannel other = Make(End::kServer);
    EXPECT_EQ(other.TakeGreeting(std::vector<std::byte>(size)).code(), EPROTO) << size;
  }
}

}  // namespace
}  // namespace termfs::tlib

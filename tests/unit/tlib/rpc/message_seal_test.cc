// SPDX-License-Identifier: Apache-2.0
#include "tlib/rpc/message_seal.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

namespace termfs::tlib {
namespace {

using End = MessageSeal::End;

class MessageSealTest : public ::testing::Test {
 protected:
  void Make(uint64_t messages_of_key = MessageSeal::kMessagesOfKey, uint8_t secret_of_server = 1) {
    MessageSeal::Secret secret;
    secret.bytes.fill(std::byte{1});
    client_ = MessageSeal::Create(secret, End::kClient, messages_of_key).value();
    secret.bytes.fill(std::byte{secret_of_server});
    server_ = MessageSeal::Create(secret, End::kServer, messages_of_key).value();
  }
  static std::vector<std::byte> Sealed(MessageSeal& by, std::string_view text) {
    std::vector<std::byte> message(text.size() + kTagBytes);
    std::memcpy(message.data(), text.data(), text.size());
    EXPECT_EQ(by.Seal(message.data(), static_cast<uint32_t>(text.size())).value(), message.size());
    return message;
  }
  // What it says, or the errno.
  static std::string Opened(MessageSeal& by, std::vector<std::byte> message) {
    const auto opened = by.Open(message);
    return opened.ok() ? std::string(reinterpret_cast<const char*>(opened->data()), opened->size())
                       : std::to_string(opened.status().code());
  }
  const std::string kBad = std::to_string(EBADMSG);

  std::unique_ptr<MessageSeal> client_;
  std::unique_ptr<MessageSeal> server_;
};

TEST_F(MessageSealTest, CarriesMessagesBothWaysAndHidesThem) {
  Make();
  for (int i = 0; i < 3; i++) {
    const auto message = Sealed(*client_, "request");
    EXPECT_NE(std::memcmp(message.data(), "request", 7), 0);
    EXPECT_EQ(Opened(*server_, message), "request");
    EXPECT_EQ(server_->last_opened(), static_cast<uint64_t>(i));
    EXPECT_EQ(client_->next_sealed(), static_cast<uint64_t>(i + 1));
    EXPECT_EQ(Opened(*client_, Sealed(*server_, "reply")), "reply");
  }
}

TEST_F(MessageSealTest, AChangedByteOpensNothing) {
  for (size_t i = 0; i < 7 + kTagBytes; i++) {
    Make();
    auto message = Sealed(*client_, "request");
    message[i] ^= std::byte{4};
    EXPECT_EQ(Opened(*server_, message), kBad) << i;
  }
}

TEST_F(MessageSealTest, WhatIsLeftOutOrPlayedBackOrTurnedRoundOpensNothing) {
  Make();
  const auto first = Sealed(*client_, "first");
  const auto second = Sealed(*client_, "second");
  EXPECT_EQ(Opened(*server_, second), kBad) << "out of order";
  Make();
  EXPECT_EQ(Opened(*server_, first), "first");
  EXPECT_EQ(Opened(*server_, first), kBad) << "played back";
  Make();
  EXPECT_EQ(Opened(*client_, first), kBad) << "sent back to its sender";
  Make(MessageSeal::kMessagesOfKey, 2);
  EXPECT_EQ(Opened(*server_, first), kBad) << "of another queue pair";
  Make();
  EXPECT_EQ(Opened(*server_, {}), kBad);
  EXPECT_EQ(Opened(*server_, std::vector<std::byte>(kTagBytes - 1)), kBad);
}

TEST_F(MessageSealTest, KeysAreReplaced) {
  Make(5);
  MessageSeal::Secret secret;
  secret.bytes.fill(std::byte{1});
  const auto never = MessageSeal::Create(secret, End::kServer).value();
  for (int i = 0; i < 23; i++) {
    const auto message = Sealed(*client_, "request");
    EXPECT_EQ(Opened(*server_, message), "request") << i;
    EXPECT_EQ(Opened(*never, message), i < 5 ? "request" : kBad) << i;
    EXPECT_EQ(Opened(*client_, Sealed(*server_, "reply")), "reply") << i;
  }
}

TEST_F(MessageSealTest, TagsOfBulkBytesToTheServerAreOfTheirPlaceAndRequest) {
  Make();
  std::vector<std::byte> bytes(2 * kTaggedBytes + 100);
  for (size_t i = 0; i < bytes.size(); i++) {
    bytes[i] = static_cast<std::byte>(i % 251);
  }
  std::vector<std::byte> tags(3 * size_t{kTagBytes});
  ASSERT_EQ(TagsOf(static_cast<uint32_t>(bytes.size())), 3U);
  ASSERT_TRUE(client_->TagIn(8, bytes, tags).ok());
  const auto check = [&](uint64_t request, uint32_t from, size_t length) {
    return server_->CheckIn(request, from, std::span(bytes).subspan(from, length), tags).code();
  };
  EXPECT_EQ(check(8, 0, bytes.size()), 0);
  EXPECT_EQ(check(8, kTaggedBytes, kTaggedBytes), 0);
  EXPECT_EQ(check(8, 2 * kTaggedBytes, 100), 0);
  EXPECT_EQ(check(9, 0, bytes.size()), EBADMSG);
  EXPECT_EQ(check(8, 2 * kTaggedBytes, 99), EBADMSG);
  bytes[kTaggedBytes] ^= std::byte{1};
  EXPECT_EQ(check(8, 0, kTaggedBytes), 0);
  EXPECT_EQ(check(8, kTaggedBytes, kTaggedBytes), EBADMSG);
  EXPECT_EQ(check(8, 0, bytes.size()), EBADMSG);
}

TEST_F(MessageSealTest, TagOfBulkBytesToTheClientIsOfItsRequest) {
  Make();
  const std::vector<std::byte> bytes(10000, std::byte{3});
  const auto tag_of = [&](MessageSeal& by, uint64_t request) {
    TagOfBytes tag = by.BeginOut(request).value();
    EXPECT_TRUE(tag.Add(bytes).ok());
    return tag.End().value();
  };
  EXPECT_EQ(tag_of(*server_, 4), tag_of(*client_, 4));
  EXPECT_NE(tag_of(*server_, 4), tag_of(*client_, 5));
}

}  // namespace
}  // namespace termfs::tlib

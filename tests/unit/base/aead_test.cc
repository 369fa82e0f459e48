// SPDX-License-Identifier: Apache-2.0
#include "base/aead.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace termfs {
namespace {

std::vector<std::byte> Hex(std::string_view digits) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes.push_back(std::byte(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

template <typename Array>
std::vector<std::byte> Bytes(const Array& array) {
  return {array.begin(), array.end()};
}

// The first two cases of the specification of GCM: a key and a nonce of zeros.
TEST(Aead, IsAes128Gcm) {
  Aead aead = Aead::Create({}).value();
  EXPECT_EQ(Bytes(aead.Seal({}, {}).value()), Hex("58e2fccefa7e3061367f1d57a4e7455a"));
  std::vector<std::byte> zeros(16);
  EXPECT_EQ(Bytes(aead.Seal({}, zeros).value()), Hex("ab6e47d42cec13bdf53a67b21257bddf"));
  EXPECT_EQ(zeros, Hex("0388dace60b6a392f328c2b971b2fe78"));
}

TEST(Aead, OpensWhatWasSealedSoAndNothingElse) {
  Aead::Key key;
  key.bytes.fill(std::byte{7});
  Aead aead = Aead::Create(key).value();
  const std::vector<std::byte> plain(100, std::byte{0x5a});
  std::vector<std::byte> sealed = plain;
  const Aead::Tag tag = aead.Seal(Aead::NonceOf(5, 0), sealed).value();
  EXPECT_NE(sealed, plain);

  std::vector<std::byte> opened = sealed;
  ASSERT_TRUE(aead.Open(Aead::NonceOf(5, 0), opened, tag).ok());
  EXPECT_EQ(opened, plain);
  for (const Aead::Nonce& other : {Aead::NonceOf(6, 0), Aead::NonceOf(5, 1)}) {
    opened = sealed;
    EXPECT_EQ(aead.Open(other, opened, tag).code(), EBADMSG);
  }
  for (size_t i = 0; i < sealed.size(); i++) {
    opened = sealed;
    opened[i] ^= std::byte{1};
    EXPECT_EQ(aead.Open(Aead::NonceOf(5, 0), opened, tag).code(), EBADMSG) << i;
  }
  for (size_t i = 0; i < tag.size(); i++) {
    opened = sealed;
    Aead::Tag changed = tag;
    changed[i] ^= std::byte{0x80};
    EXPECT_EQ(aead.Open(Aead::NonceOf(5, 0), opened, changed).code(), EBADMSG) << i;
  }
}

TEST(Aead, TagOfBytesIsTheSameInHoweverManyPieces) {
  Aead::Key key;
  key.bytes.fill(std::byte{9});
  std::vector<std::byte> bytes(1000);
  for (size_t i = 0; i < bytes.size(); i++) {
    bytes[i] = static_cast<std::byte>(i * 7);
  }
  const auto tag_of = [&](size_t piece, uint64_t number) {
    TagOfBytes tag = TagOfBytes::Begin(key, Aead::NonceOf(number, 1)).value();
    for (size_t done = 0; done < bytes.size(); done += piece) {
      EXPECT_TRUE(tag.Add(std::span(bytes).subspan(done, std::min(piece, bytes.size() - done))).ok());
    }
    return tag.End().value();
  };
  const Aead::Tag whole = tag_of(bytes.size(), 3);
  EXPECT_TRUE(IsSameTag(whole, tag_of(1, 3)));
  EXPECT_TRUE(IsSameTag(whole, tag_of(333, 3)));
  EXPECT_FALSE(IsSameTag(whole, tag_of(333, 4)));
  bytes[999] ^= std::byte{1};
  EXPECT_FALSE(IsSameTag(whole, tag_of(333, 3)));
}

TEST(Aead, KeysOfPurposesDiffer) {
  const std::vector<std::byte> secret(32, std::byte{1});
  Aead::Key a;
  Aead::Key b;
  Aead::Key again;
  ASSERT_TRUE(DeriveKey(secret, "one", a.bytes).ok());
  ASSERT_TRUE(DeriveKey(secret, "other", b.bytes).ok());
  ASSERT_TRUE(DeriveKey(secret, "one", again.bytes).ok());
  EXPECT_NE(a.bytes, b.bytes);
  EXPECT_EQ(a.bytes, again.bytes);
}

}  // namespace
}  // namespace termfs

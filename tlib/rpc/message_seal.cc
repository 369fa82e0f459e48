// SPDX-License-Identifier: Apache-2.0
#include "tlib/rpc/message_seal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace termfs::tlib {
namespace {

// The second part of a nonce.
constexpr uint32_t kMessagePart = 0;
constexpr uint32_t kFirstInPart = 0;  // and those that follow
constexpr uint32_t kOutPart = UINT32_MAX;

static_assert(sizeof(Aead::Tag) == kTagBytes);

Result<Aead> ForMessages(const SecretBytes<32>& of_direction) {
  Aead::Key key;
  RETURN_IF_ERROR(DeriveKey(of_direction.bytes, "termfs RPC: messages", key.bytes));
  return Aead::Create(key);
}

Result<Aead::Tag> TagOf(const Aead::Key& key, const Aead::Nonce& nonce, std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(TagOfBytes tag, TagOfBytes::Begin(key, nonce));
  RETURN_IF_ERROR(tag.Add(bytes));
  return tag.End();
}

}  // namespace

Result<MessageSeal::Direction> MessageSeal::Begin(const Secret& secret, End sender) {
  SecretBytes<32> of_direction;
  RETURN_IF_ERROR(DeriveKey(secret.bytes, sender == End::kClient ? "termfs RPC: client's" : "termfs RPC: server's",
                            of_direction.bytes));
  ASSIGN_OR_RETURN(Aead aead, ForMessages(of_direction));
  Direction direction(std::move(aead));
  direction.key = of_direction;
  return direction;
}

Result<std::unique_ptr<MessageSeal>> MessageSeal::Create(const Secret& secret, End end, uint64_t messages_of_key) {
  ASSIGN_OR_RETURN(Direction out, Begin(secret, end));
  ASSIGN_OR_RETURN(Direction in, Begin(secret, end == End::kClient ? End::kServer : End::kClient));
  std::unique_ptr<MessageSeal> seal(new MessageSeal(std::move(out), std::move(in), messages_of_key));
  RETURN_IF_ERROR(DeriveKey(secret.bytes, "termfs RPC: bulk bytes", seal->bulk_.bytes));
  return seal;
}

Result<uint64_t> MessageSeal::Next(Direction& direction) const {
  if (direction.next != 0 && direction.next % messages_of_key_ == 0) {
    const SecretBytes<32> former = direction.key;
    RETURN_IF_ERROR(DeriveKey(former.bytes, "termfs RPC: next", direction.key.bytes));
    ASSIGN_OR_RETURN(direction.aead, ForMessages(direction.key));
  }
  return direction.next++;
}

Result<uint32_t> MessageSeal::Seal(std::byte* message, uint32_t length) {
  ASSIGN_OR_RETURN(const uint64_t number, Next(out_));
  ASSIGN_OR_RETURN(const Aead::Tag tag, out_.aead.Seal(Aead::NonceOf(number, kMessagePart), {message, length}));
  std::memcpy(message + length, tag.data(), tag.size());
  return length + kTagBytes;
}

Result<std::span<std::byte>> MessageSeal::Open(std::span<std::byte> message) {
  if (message.size() < kTagBytes) {
    return Status::Error(EBADMSG, "a message without a tag");
  }
  const auto bytes = message.first(message.size() - kTagBytes);
  Aead::Tag tag;
  std::memcpy(tag.data(), bytes.data() + bytes.size(), tag.size());
  ASSIGN_OR_RETURN(const uint64_t number, Next(in_));
  RETURN_IF_ERROR(in_.aead.Open(Aead::NonceOf(number, kMessagePart), bytes, tag));
  return bytes;
}

Status MessageSeal::TagIn(uint64_t request, std::span<const std::byte> bytes, std::span<std::byte> tags) const {
  TERMFS_CHECK(tags.size() == size_t{TagsOf(static_cast<uint32_t>(bytes.size()))} * kTagBytes);
  for (uint32_t i = 0; !bytes.empty(); i++) {
    const auto piece = bytes.first(std::min<size_t>(bytes.size(), kTaggedBytes));
    bytes = bytes.subspan(piece.size());
    ASSIGN_OR_RETURN(const Aead::Tag tag, TagOf(bulk_, Aead::NonceOf(request, kFirstInPart + i), piece));
    std::memcpy(tags.data() + size_t{i} * kTagBytes, tag.data(), tag.size());
  }
  return Status::Ok();
}

Status MessageSeal::CheckIn(uint64_t request, uint32_t from, std::span<const std::byte> bytes,
                            std::span<const std::byte> tags) const {
  TERMFS_CHECK(from % kTaggedBytes == 0);
  for (uint32_t i = from / kTaggedBytes; !bytes.empty(); i++) {
    TERMFS_CHECK((size_t{i} + 1) * kTagBytes <= tags.size());
    const auto piece = bytes.first(std::min<size_t>(bytes.size(), kTaggedBytes));
    bytes = bytes.subspan(piece.size());
    ASSIGN_OR_RETURN(const Aead::Tag tag, TagOf(bulk_, Aead::NonceOf(request, kFirstInPart + i), piece));
    Aead::Tag expected;
    std::memcpy(expected.data(), tags.data() + size_t{i} * kTagBytes, expected.size());
    if (!IsSameTag(tag, expected)) {
      return Status::Error(EBADMSG, "bulk bytes that were changed on the way");
    }
  }
  return Status::Ok();
}

Result<TagOfBytes> MessageSeal::BeginOut(uint64_t request) const {
  return TagOfBytes::Begin(bulk_, Aead::NonceOf(request, kOutPart));
}

}  // namespace termfs::tlib

// SPDX-License-Identifier: Apache-2.0
//
// MessageSeal: protects the messages of one queue pair, and the bulk bytes that they name, on a wire that protects
// nothing: RoCE, from user space or by a device. Each end seals what it sends with its own key, by AES-128-GCM and the
// number of the message, which is not sent: a queue pair delivers in order and once, so a message that was changed,
// forged, left out or played back does not open. Keys are made of a secret that the client sends over the control
// channel, one for each queue pair; a key is replaced after kMessagesOfKey messages.
//
// Bulk bytes go by one-sided operations, which anybody on the wire can forge, so their tags travel in messages: those
// to the server in the request, one for each kTaggedBytes; those to the client in the reply, one for all. The receiver
// copies bytes to memory that no peer can write to, and checks them there.
//
// A ring (messages.h), which has no bytes, is not sealed: it only makes the server look.
//
// Thread-safety: the queue pair's thread.
// Errors:        EBADMSG: not what the peer sealed, or not next; EIO: the library failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/aead.h"
#include "base/result.h"
#include "tlib/rpc/messages.h"

namespace termfs::tlib {

// What `status` says of a wire over which messages are sealed, or might be.
inline std::string NameOfTransport(const std::string& wire, bool sealed) {
  return sealed ? wire + ", sealed RPCs" : wire;
}

class MessageSeal {
 public:
  using Secret = SecretBytes<32>;
  enum class End : uint8_t { kClient, kServer };
  static constexpr uint64_t kMessagesOfKey = uint64_t{1} << 23;

  static Result<std::unique_ptr<MessageSeal>> Create(const Secret& secret, End end,
                                                     uint64_t messages_of_key = kMessagesOfKey);

  // The number that the next message gets, or got that was opened last.
  uint64_t next_sealed() const { return out_.next; }
  uint64_t last_opened() const { return in_.next - 1; }
  // Where it is; returns its length then. REQUIRES: kTagBytes of room behind it.
  Result<uint32_t> Seal(std::byte* message, uint32_t length);
  Result<std::span<std::byte>> Open(std::span<std::byte> message);

  // Of bytes to the server, by the number of their request. REQUIRES: room for TagsOf(bytes.size()) tags.
  Status TagIn(uint64_t request, std::span<const std::byte> bytes, std::span<std::byte> tags) const;
  // `bytes` from a multiple of kTaggedBytes on, to another or to the end; `tags`: of all.
  Status CheckIn(uint64_t request, uint32_t from, std::span<const std::byte> bytes,
                 std::span<const std::byte> tags) const;
  // Of bytes to the client, in the order of their places.
  Result<TagOfBytes> BeginOut(uint64_t request) const;

 private:
  // What is sent in one direction.
  struct Direction {
    explicit Direction(Aead made) : aead(std::move(made)) {}
    SecretBytes<32> key;  // those of messages are derived from it
    Aead aead;
    uint64_t next = 0;
  };
  MessageSeal(Direction out, Direction in, uint64_t messages_of_key)
      : out_(std::move(out)), in_(std::move(in)), messages_of_key_(messages_of_key) {}
  static Result<Direction> Begin(const Secret& secret, End sender);
  // The number of its next message, with the key for that.
  Result<uint64_t> Next(Direction& direction) const;

  Direction out_;
  Direction in_;
  const uint64_t messages_of_key_;
  Aead::Key bulk_;
};

}  // namespace termfs::tlib

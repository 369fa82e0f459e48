// SPDX-License-Identifier: Apache-2.0
//
// What the control channel needs over a network: that both ends know the volume's secret, and that every message is the
// other end's, whole, and the next one. Bytes in, bytes out; whoever uses it sends them as frames (control_message.h).
//
//   client                             server
//     | ---- greeting: version, nonce ---> |
//     | <--- greeting: version, nonce ---- |     both look at the versions
//     | ---- proof ----------------------> |     without the right one the server says nothing more
//     | <--- proof ----------------------- |
//     | <--- sealed messages, in turn ---> |
//
// HMAC-SHA-256 throughout. A proof is that of both greetings, by a key of its own for each end; the keys are derived
// from secret and greetings by HKDF, so none is ever used again, and what one end said is of no use to play back to it.
// A sealed message has 32 bytes more: a tag of its number and its bytes, by a key for each direction. Nothing is
// encrypted.
//
// Thread-safety: none.
// Errors:        EPROTO: not what comes next here (another version: the text names both); EACCES: the other end does
// not
//                know the secret; EBADMSG: a message that was changed, left out or played back. After an error the
//                connection is of no use any more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "tlib/rpc/secret.h"

namespace termfs::tlib {

inline constexpr size_t kTagBytes = 32;
inline constexpr uint32_t kLongestOfHandshake = 64;  // bytes
using Tag = std::array<std::byte, kTagBytes>;

class SealedChannel {
 public:
  enum class End : uint8_t { kClient, kServer };

  // Errors are those of the kernel's random generator and of the library.
  static Result<SealedChannel> Create(End end, const Secret& secret, uint32_t version);

  // The handshake, in the order of the drawing.
  std::vector<std::byte> Greeting() const;
  Status TakeGreeting(std::span<const std::byte> greeting);
  Result<std::vector<std::byte>> Proof() const;  // REQUIRES: TakeGreeting went well
  Status TakeProof(std::span<const std::byte> proof);
  bool greeted() const { return greeted_; }
  // The other end has proved itself.
  bool open() const { return open_; }

  // REQUIRES: open().
  Result<std::vector<std::byte>> Seal(std::span<const std::byte> message);
  // The message, within `sealed`.
  Result<std::span<const std::byte>> Open(std::span<const std::byte> sealed);

 private:
  static constexpr size_t kGreetingBytes = 8 + 4 + 32;
  using GreetingBytes = std::array<std::byte, kGreetingBytes>;

  SealedChannel(End end, const Secret& secret) : end_(end), secret_(secret) {}
  Status DeriveKeys();
  Result<Tag> ProofOf(End end) const;

  End end_;
  Secret secret_;
  uint32_t version_ = 0;
  GreetingBytes own_greeting_{};
  GreetingBytes their_greeting_{};
  bool greeted_ = false;
  bool open_ = false;
  // By the end that uses them: of its proof, and of what it sends.
  std::array<Secret, 2> proof_keys_{};
  std::array<Secret, 2> seal_keys_{};
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

}  // namespace termfs::tlib

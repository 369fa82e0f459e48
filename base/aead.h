// SPDX-License-Identifier: Apache-2.0
//
// AES-128-GCM for messages that no TLS connection carries, and keys for it. The caller numbers what he protects: a
// nonce is never used twice under one key.
//
// Thread-safety: none; DeriveKey: any thread.
// Errors:        EBADMSG: bytes that were not sealed so; EIO: the library failed.
// Source:        NIST SP 800-38D (GCM, and GMAC: its tag alone); RFC 5869 (HKDF).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"

namespace termfs {

// Key material of so many bytes, wiped where it ends.
template <size_t kBytes>
struct SecretBytes {
  SecretBytes() = default;
  SecretBytes(const SecretBytes&) = default;
  SecretBytes(SecretBytes&&) noexcept = default;
  SecretBytes& operator=(const SecretBytes&) = default;
  SecretBytes& operator=(SecretBytes&&) noexcept = default;
  ~SecretBytes();

  std::array<std::byte, kBytes> bytes{};
};
void WipeSecret(std::span<std::byte> bytes);
template <size_t kBytes>
SecretBytes<kBytes>::~SecretBytes() {
  WipeSecret(bytes);
}

// A key for one purpose, by HKDF-SHA-256; from it nothing is learned of the secret or of keys for other purposes.
Status DeriveKey(std::span<const std::byte> secret, std::string_view purpose, std::span<std::byte> key);

class Aead {
 public:
  using Key = SecretBytes<16>;
  using Tag = std::array<std::byte, 16>;
  using Nonce = std::array<std::byte, 12>;
  static Nonce NonceOf(uint64_t number, uint32_t part);

  static Result<Aead> Create(const Key& key);
  ~Aead();
  Aead(Aead&&) noexcept;
  Aead& operator=(Aead&&) noexcept;

  // `bytes` become unreadable where they are.
  Result<Tag> Seal(const Nonce& nonce, std::span<std::byte> bytes);
  // And readable again. After an error they are of no use.
  Status Open(const Nonce& nonce, std::span<std::byte> bytes, const Tag& tag);

 private:
  struct Library;
  explicit Aead(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

// The tag of bytes that stay readable, taken piece by piece.
class TagOfBytes {
 public:
  static Result<TagOfBytes> Begin(const Aead::Key& key, const Aead::Nonce& nonce);
  ~TagOfBytes();
  TagOfBytes(TagOfBytes&&) noexcept;
  TagOfBytes& operator=(TagOfBytes&&) noexcept;

  Status Add(std::span<const std::byte> bytes);
  // Once.
  Result<Aead::Tag> End();

 private:
  struct Library;
  explicit TagOfBytes(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

// In a time that does not depend on where they differ.
bool IsSameTag(const Aead::Tag& a, const Aead::Tag& b);

}  // namespace termfs

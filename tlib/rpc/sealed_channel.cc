// SPDX-License-Identifier: Apache-2.0
//
// The only file that sees OpenSSL.
#include "tlib/rpc/sealed_channel.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "base/random.h"

namespace termfs::tlib {
namespace {

constexpr char kMagic[8] = {'t', 'e', 'r', 'm', 'f', 's', 0, 1};
constexpr size_t kNonce = sizeof(kMagic) + sizeof(uint32_t);  // where it begins in a greeting

using Bytes = std::span<const std::byte>;

Status LibraryFailed() { return Status::Error(EIO, "the cryptographic library failed"); }

char kSha256[] = "SHA256";  // the library's parameters take no const

Result<Tag> Hmac(const Secret& key, std::initializer_list<Bytes> parts) {
  const std::unique_ptr<EVP_MAC, void (*)(EVP_MAC*)> mac(EVP_MAC_fetch(nullptr, "HMAC", nullptr), &EVP_MAC_free);
  const std::unique_ptr<EVP_MAC_CTX, void (*)(EVP_MAC_CTX*)> context(
      mac != nullptr ? EVP_MAC_CTX_new(mac.get()) : nullptr, &EVP_MAC_CTX_free);
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, kSha256, 0),
                                   OSSL_PARAM_construct_end()};
  bool good = context != nullptr && EVP_MAC_init(context.get(), reinterpret_cast<const unsigned char*>(key.data()),
                                                 key.size(), parameters) == 1;
  for (const Bytes part : parts) {
    good = good && EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(part.data()), part.size()) == 1;
  }
  Tag tag;
  size_t length = 0;
  good = good && EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(tag.data()), &length, tag.size()) == 1;
  return good && length == tag.size() ? Result<Tag>(tag) : LibraryFailed();
}

Result<Secret> Hkdf(const Secret& secret, std::vector<std::byte> salt, std::string label) {
  const std::unique_ptr<EVP_KDF, void (*)(EVP_KDF*)> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr), &EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, void (*)(EVP_KDF_CTX*)> context(
      kdf != nullptr ? EVP_KDF_CTX_new(kdf.get()) : nullptr, &EVP_KDF_CTX_free);
  Secret input = secret;
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, kSha256, 0),
                                   OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, input.data(), input.size()),
                                   OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
                                   OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, label.data(), label.size()),
                                   OSSL_PARAM_construct_end()};
  Secret key;
  const bool good = context != nullptr && EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.data()),
                                                         key.size(), parameters) == 1;
  return good ? Result<Secret>(key) : LibraryFailed();
}

bool SameTag(const Tag& tag, Bytes bytes) {
  return bytes.size() == tag.size() && CRYPTO_memcmp(tag.data(), bytes.data(), tag.size()) == 0;
}

std::array<std::byte, sizeof(uint64_t)> LittleEndian(uint64_t number) {
  std::array<std::byte, sizeof(number)> bytes;
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

constexpr size_t Index(SealedChannel::End end) { return static_cast<size_t>(end); }
constexpr SealedChannel::End Other(SealedChannel::End end) {
  return end == SealedChannel::End::kClient ? SealedChannel::End::kServer : SealedChannel::End::kClient;
}

}  // namespace

Result<SealedChannel> SealedChannel::Create(End end, const Secret& secret, uint32_t version) {
  SealedChannel channel(end, secret);
  channel.version_ = version;
  std::byte* const greeting = channel.own_greeting_.data();
  std::memcpy(greeting, kMagic, sizeof(kMagic));
  std::memcpy(greeting + sizeof(kMagic), &version, sizeof(version));
  RETURN_IF_ERROR(SecureRandom(greeting + kNonce, kGreetingBytes - kNonce));
  return channel;
}

std::vector<std::byte> SealedChannel::Greeting() const { return {own_greeting_.begin(), own_greeting_.end()}; }

Status SealedChannel::TakeGreeting(Bytes greeting) {
  if (greeted_ || greeting.size() != kGreetingBytes || std::memcmp(greeting.data(), kMagic, sizeof(kMagic)) != 0) {
    return Status::Error(EPROTO, "the other end does not speak termfs' control protocol");
  }
  uint32_t version = 0;
  std::memcpy(&version, greeting.data() + sizeof(kMagic), sizeof(version));
  if (version != version_) {
    const bool server = end_ == End::kServer;
    return Status::Error(EPROTO, "the client speaks version " + std::to_string(server ? version : version_) +
                                     " of the protocol, the server version " +
                                     std::to_string(server ? version_ : version));
  }
  std::copy(greeting.begin(), greeting.end(), their_greeting_.begin());
  greeted_ = true;
  return DeriveKeys();
}

Status SealedChannel::DeriveKeys() {
  const bool server = end_ == End::kServer;
  const GreetingBytes& first = server ? their_greeting_ : own_greeting_;
  const GreetingBytes& second = server ? own_greeting_ : their_greeting_;
  std::vector<std::byte> salt(first.begin(), first.end());
  salt.insert(salt.end(), second.begin(), second.end());
  for (const End end : {End::kClient, End::kServer}) {
    const std::string name = end == End::kClient ? "client" : "server";
    ASSIGN_OR_RETURN(proof_keys_[Index(end)], Hkdf(secret_, salt, "termfs control: proof of the " + name));
    ASSIGN_OR_RETURN(seal_keys_[Index(end)], Hkdf(secret_, salt, "termfs control: messages of the " + name));
  }
  return Status::Ok();
}

Result<Tag> SealedChannel::ProofOf(End end) const {
  const bool server = end_ == End::kServer;
  return Hmac(proof_keys_[Index(end)], {server ? Bytes(their_greeting_) : Bytes(own_greeting_),
                                        server ? Bytes(own_greeting_) : Bytes(their_greeting_)});
}

Result<std::vector<std::byte>> SealedChannel::Proof() const {
  ASSIGN_OR_RETURN(const Tag tag, ProofOf(end_));
  return std::vector<std::byte>(tag.begin(), tag.end());
}

Status SealedChannel::TakeProof(Bytes proof) {
  if (!greeted_ || open_) {
    return Status::Error(EPROTO, "a proof that nobody has asked for");
  }
  ASSIGN_OR_RETURN(const Tag expected, ProofOf(Other(end_)));
  if (!SameTag(expected, proof)) {
    return Status::Error(EACCES, "the other end does not know the volume's secret");
  }
  open_ = true;
  return Status::Ok();
}

Result<std::vector<std::byte>> SealedChannel::Seal(Bytes message) {
  ASSIGN_OR_RETURN(const Tag tag, Hmac(seal_keys_[Index(end_)], {LittleEndian(sent_), message}));
  sent_++;
  std::vector<std::byte> sealed(message.begin(), message.end());
  sealed.insert(sealed.end(), tag.begin(), tag.end());
  return sealed;
}

Result<Bytes> SealedChannel::Open(Bytes sealed) {
  if (!open_ || sealed.size() < kTagBytes) {
    return Status::Error(EBADMSG, "a message without a seal");
  }
  const Bytes message = sealed.first(sealed.size() - kTagBytes);
  ASSIGN_OR_RETURN(const Tag expected, Hmac(seal_keys_[Index(Other(end_))], {LittleEndian(received_), message}));
  if (!SameTag(expected, sealed.last(kTagBytes))) {
    return Status::Error(EBADMSG, "a message on the control channel was changed, left out or played back");
  }
  received_++;
  return message;
}

}  // namespace termfs::tlib

// SPDX-License-Identifier: Apache-2.0
#include "base/aead.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <cstring>
#include <string>
#include <utility>

namespace termfs {
namespace {

using Context = std::unique_ptr<EVP_CIPHER_CTX, void (*)(EVP_CIPHER_CTX*)>;

char kSha256[] = "SHA256";  // the library's parameters take no const

Status AeadFailed() {
  ERR_clear_error();
  return Status::Error(EIO, "the library of ciphers failed");
}

const unsigned char* Raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }
unsigned char* Raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

const EVP_CIPHER* Cipher() {
  static const EVP_CIPHER* const kCipher = EVP_CIPHER_fetch(nullptr, "AES-128-GCM", nullptr);
  return kCipher;
}

Context NewContext() { return {EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free}; }

}  // namespace

void WipeSecret(std::span<std::byte> bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

Status DeriveKey(std::span<const std::byte> secret, std::string_view purpose, std::span<std::byte> key) {
  const std::unique_ptr<EVP_KDF, void (*)(EVP_KDF*)> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr), &EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, void (*)(EVP_KDF_CTX*)> context(
      kdf != nullptr ? EVP_KDF_CTX_new(kdf.get()) : nullptr, &EVP_KDF_CTX_free);
  std::string label(purpose);
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, kSha256, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<std::byte*>(secret.data()), secret.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, label.data(), label.size()), OSSL_PARAM_construct_end()};
  const bool good = context != nullptr && EVP_KDF_derive(context.get(), Raw(key.data()), key.size(), parameters) == 1;
  return good ? Status::Ok() : AeadFailed();
}

bool IsSameTag(const Aead::Tag& a, const Aead::Tag& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

Aead::Nonce Aead::NonceOf(uint64_t number, uint32_t part) {
  Nonce nonce;
  std::memcpy(nonce.data(), &number, sizeof(number));
  std::memcpy(nonce.data() + sizeof(number), &part, sizeof(part));
  return nonce;
}

struct Aead::Library {
  Context seals = NewContext();
  Context opens = NewContext();
};

Aead::Aead(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Aead::~Aead() = default;
Aead::Aead(Aead&&) noexcept = default;
Aead& Aead::operator=(Aead&&) noexcept = default;

Result<Aead> Aead::Create(const Key& key) {
  auto library = std::make_unique<Library>();
  const unsigned char* const raw = Raw(key.bytes.data());
  if (Cipher() == nullptr || library->seals == nullptr || library->opens == nullptr ||
      EVP_EncryptInit_ex2(library->seals.get(), Cipher(), raw, nullptr, nullptr) != 1 ||
      EVP_DecryptInit_ex2(library->opens.get(), Cipher(), raw, nullptr, nullptr) != 1) {
    return AeadFailed();
  }
  return Aead(std::move(library));
}

Result<Aead::Tag> Aead::Seal(const Nonce& nonce, std::span<std::byte> bytes) {
  EVP_CIPHER_CTX* const context = library_->seals.get();
  Tag tag;
  unsigned char none[16];
  int length = 0;
  int last = 0;
  const bool good =
      EVP_EncryptInit_ex2(context, nullptr, nullptr, Raw(nonce.data()), nullptr) == 1 &&
      EVP_EncryptUpdate(context, Raw(bytes.data()), &length, Raw(bytes.data()), static_cast<int>(bytes.size())) == 1 &&
      EVP_EncryptFinal_ex(context, none, &last) == 1 &&
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag.size()), tag.data()) == 1;
  return good ? Result<Tag>(tag) : AeadFailed();
}

Status Aead::Open(const Nonce& nonce, std::span<std::byte> bytes, const Tag& tag) {
  EVP_CIPHER_CTX* const context = library_->opens.get();
  Tag expected = tag;  // the library's argument is not const
  unsigned char none[16];
  int length = 0;
  int last = 0;
  if (EVP_DecryptInit_ex2(context, nullptr, nullptr, Raw(nonce.data()), nullptr) != 1 ||
      EVP_DecryptUpdate(context, Raw(bytes.data()), &length, Raw(bytes.data()), static_cast<int>(bytes.size())) != 1 ||
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, static_cast<int>(expected.size()), expected.data()) != 1) {
    return AeadFailed();
  }
  if (EVP_DecryptFinal_ex(context, none, &last) != 1) {
    ERR_clear_error();
    return Status::Error(EBADMSG, "bytes that were changed on the way, or are out of order");
  }
  return Status::Ok();
}

struct TagOfBytes::Library {
  Context context = NewContext();
};

TagOfBytes::TagOfBytes(std::unique_ptr<Library> library) : library_(std::move(library)) {}
TagOfBytes::~TagOfBytes() = default;
TagOfBytes::TagOfBytes(TagOfBytes&&) noexcept = default;
TagOfBytes& TagOfBytes::operator=(TagOfBytes&&) noexcept = default;

Result<TagOfBytes> TagOfBytes::Begin(const Aead::Key& key, const Aead::Nonce& nonce) {
  auto library = std::make_unique<Library>();
  if (Cipher() == nullptr || library->context == nullptr ||
      EVP_EncryptInit_ex2(library->context.get(), Cipher(), Raw(key.bytes.data()), Raw(nonce.data()), nullptr) != 1) {
    return AeadFailed();
  }
  return TagOfBytes(std::move(library));
}

Status TagOfBytes::Add(std::span<const std::byte> bytes) {
  int length = 0;
  const bool good = EVP_EncryptUpdate(library_->context.get(), nullptr, &length, Raw(bytes.data()),
                                      static_cast<int>(bytes.size())) == 1;
  return good ? Status::Ok() : AeadFailed();
}

Result<Aead::Tag> TagOfBytes::End() {
  EVP_CIPHER_CTX* const context = library_->context.get();
  Aead::Tag tag;
  unsigned char none[16];
  int last = 0;
  const bool good = EVP_EncryptFinal_ex(context, none, &last) == 1 &&
                    EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag.size()), tag.data()) == 1;
  return good ? Result<Aead::Tag>(tag) : AeadFailed();
}

}  // namespace termfs

// SPDX-License-Identifier: Apache-2.0
//
// TLS 1.3 by a pre-shared key and by nothing else, over whatever moves the bytes: no sockets, threads or clock. Both
// ends prove to know the key, and agree on fresh ones by X25519 (psk_dhe_ke): who learns the key later reads nothing of
// before. No certificates, tickets or early data. A key of a direction is replaced by its sender (KeyUpdate) long
// before AES-GCM's limit.
//
//   kHandshake -- Handshake, until established() --> Seal and Open, in any order -- an error --> of no use any more
//
// What the library allocates, keys among it, is not in core dumps of the process, unless the program used the library
// before this was linked to it.
//
// Thread-safety: a TlsContext: any thread. A TlsSession: none.
// Ownership:     a session holds what it needs of its context.
// Errors:        EACCES: the other end does not know the key; EPROTO: it does not speak this TLS, or none of the
//                protocols; EBADMSG: a record that was changed, left out or played back; EIO: the library failed.
// Source:        RFC 8446, sections 2.2, 4.2.9, 4.2.11, 4.6.3, 5.5; RFC 7301 (the name of what is spoken inside).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace termfs {

// Which is wiped where it ends.
struct TlsKey {
  TlsKey() = default;
  TlsKey(const TlsKey&) = default;
  TlsKey(TlsKey&&) = default;
  TlsKey& operator=(const TlsKey&) = default;
  TlsKey& operator=(TlsKey&&) = default;
  ~TlsKey();

  std::string identity;  // which key it is; both ends and everybody between them see it
  std::array<std::byte, 32> bytes{};
};

// A key for one purpose, by HKDF-SHA-256. Its identity tells nothing of the secret but that it is the same one.
Result<TlsKey> DeriveTlsKey(std::span<const std::byte> secret, std::string_view purpose);

class TlsContext {
 public:
  // Records that a key of a session protects before it is replaced. RFC 8446 allows 24 million of full size.
  static constexpr uint64_t kRecordsOfKey = uint64_t{1} << 23;

  // Of the end that connects.
  static Result<std::shared_ptr<const TlsContext>> ForClient(const TlsKey& key,
                                                             uint64_t records_of_key = kRecordsOfKey);
  // Of the end that accepts who knows one of `keys` and speaks one of `protocols` (each of 1 to 255 bytes).
  static Result<std::shared_ptr<const TlsContext>> ForServer(std::span<const TlsKey> keys,
                                                             std::span<const std::string_view> protocols,
                                                             uint64_t records_of_key = kRecordsOfKey);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  struct Parts;  // of the implementation

 private:
  friend class TlsSession;
  explicit TlsContext(std::shared_ptr<Parts> parts);

  const std::shared_ptr<Parts> parts_;
};

class TlsSession {
 public:
  static constexpr size_t kRecordBytes = size_t{16} << 10;  // of a message in one record
  // Room that Seal needs for a message of so many bytes, and for what the protocol itself has to say.
  static constexpr size_t SealedBytes(size_t message) {
    return message + (message / kRecordBytes + 1) * kMoreOfRecord + kMostOutput;
  }
  // Room that Open needs.
  static constexpr size_t OpenedBytes(size_t sealed) { return sealed + kRecordBytes; }

  static Result<std::unique_ptr<TlsSession>> Connect(const TlsContext& context, std::string_view protocol);
  static Result<std::unique_ptr<TlsSession>> Accept(const TlsContext& context);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Goes on with the handshake by what came from the other end, and removes that from `bytes`; what follows stays.
  // After each call TakeOutput is to be sent, also after an error.
  Status Handshake(std::span<const std::byte>& bytes);
  bool established() const { return established_; }
  // REQUIRES: established(). What is spoken inside, and by whose key.
  const std::string& protocol() const { return protocol_; }
  const std::string& identity() const { return identity_; }
  // What the handshake, or an error, has to say to the other end.
  std::vector<std::byte> TakeOutput();

  // Writes `message` to `to` as records; returns their bytes. REQUIRES: established(), SealedBytes(message) of room.
  Result<size_t> Seal(std::span<const std::byte> message, std::span<std::byte> to);
  // Takes all of `sealed`, and writes what is in its whole records to `to`; returns the bytes of that. The rest of a
  // record may come with the next call. REQUIRES: established(), OpenedBytes(sealed) of room.
  // ECONNRESET: the other end has ended the session in the middle.
  Result<size_t> Open(std::span<const std::byte> sealed, std::span<std::byte> to);

  // Keys that this end has replaced.
  uint64_t key_updates() const { return key_updates_; }

 private:
  struct Library;
  static constexpr size_t kMoreOfRecord = 5 + 1 + 16;  // header, type of the content, tag
  static constexpr size_t kMostOutput = 512;

  explicit TlsSession(std::unique_ptr<Library> library);
  static Result<std::unique_ptr<TlsSession>> Create(const TlsContext& context);
  Status Failed(int returned, bool handshake) const;
  Status Establish();

  const std::unique_ptr<Library> library_;
  bool established_ = false;
  std::string protocol_;
  std::string identity_;
  uint64_t records_ = 0;  // since the key was replaced
  uint64_t key_updates_ = 0;
};

}  // namespace termfs

// SPDX-License-Identifier: Apache-2.0
//
// With aead.cc the only file that sees OpenSSL.
#include "base/tls.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory_resource>
#include <new>
#include <utility>

#include "base/aead.h"
#include "base/check.h"

namespace termfs {
namespace {

using Bytes = std::span<const std::byte>;

// ---------------------------------------------------------------------------------------------------------------
// The library's memory: in pages of its own, which core dumps leave out. Each piece is preceded by its length.

class UndumpedPages final : public std::pmr::memory_resource {
  void* do_allocate(size_t bytes, size_t /*alignment*/) override {
    void* const pages = mmap(nullptr, Whole(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
      throw std::bad_alloc();
    }
    madvise(pages, Whole(bytes), MADV_DONTDUMP);
    return pages;
  }
  void do_deallocate(void* pages, size_t bytes, size_t /*alignment*/) override { munmap(pages, Whole(bytes)); }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  static size_t Whole(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
};

constexpr size_t kLengthBytes = alignof(std::max_align_t);

// Never destroyed: the library frees what it has when the process ends.
std::pmr::synchronized_pool_resource& LibraryMemory() {
  constexpr size_t kLargestOfPool = 32 << 10;  // a buffer of a record has some 17 KiB
  static UndumpedPages& pages = *new UndumpedPages;
  static auto& memory = *new std::pmr::synchronized_pool_resource(
      {.max_blocks_per_chunk = 128, .largest_required_pool_block = kLargestOfPool}, &pages);
  return memory;
}

// A pool whose pieces are no multiple of their alignment does not keep it.
size_t WithLength(size_t length) { return (length + kLengthBytes + kLengthBytes - 1) / kLengthBytes * kLengthBytes; }

size_t LengthOf(const void* piece) {
  size_t length = 0;
  std::memcpy(&length, static_cast<const std::byte*>(piece) - kLengthBytes, sizeof(length));
  return length;
}

void* Allocate(size_t length, const char* /*file*/, int /*line*/) {
  if (length == 0) {
    return nullptr;
  }
  try {
    auto* const start = static_cast<std::byte*>(LibraryMemory().allocate(WithLength(length)));
    std::memcpy(start, &length, sizeof(length));
    return start + kLengthBytes;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void Free(void* piece, const char* /*file*/, int /*line*/) {
  if (piece != nullptr) {
    LibraryMemory().deallocate(static_cast<std::byte*>(piece) - kLengthBytes, WithLength(LengthOf(piece)));
  }
}

void* Reallocate(void* piece, size_t length, const char* file, int line) {
  void* const moved = Allocate(length, file, line);
  if (piece != nullptr && (moved != nullptr || length == 0)) {
    if (moved != nullptr) {
      std::memcpy(moved, piece, std::min(length, LengthOf(piece)));
    }
    OPENSSL_cleanse(piece, LengthOf(piece));
    Free(piece, file, line);
  }
  return moved;
}

// Before the library has allocated anything: it refuses after that, in a program that uses it itself.
[[maybe_unused]] const int kTaken = CRYPTO_set_mem_functions(&Allocate, &Reallocate, &Free);

Status LibraryFailed() {
  ERR_clear_error();
  return Status::Error(EIO, "the TLS library failed");
}

// ---------------------------------------------------------------------------------------------------------------
// Keys.

std::string Hex(Bytes bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

// The library's word for a pre-shared key: a session that could be resumed.
using LibraryKey = std::unique_ptr<SSL_SESSION, void (*)(SSL_SESSION*)>;
constexpr long kNever = INT32_MAX;  // NOLINT(google-runtime-int): the library's type
constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};

Result<LibraryKey> KeyOf(SSL_CTX* context, const TlsKey& key) {
  LibraryKey made(SSL_SESSION_new(), &SSL_SESSION_free);
  const std::unique_ptr<SSL, void (*)(SSL*)> any(SSL_new(context), &SSL_free);  // to find the cipher by
  const SSL_CIPHER* const cipher = any != nullptr ? SSL_CIPHER_find(any.get(), kAes128GcmSha256) : nullptr;
  const bool good = made != nullptr && cipher != nullptr &&
                    SSL_SESSION_set1_master_key(made.get(), reinterpret_cast<const unsigned char*>(key.bytes.data()),
                                                key.bytes.size()) == 1 &&
                    SSL_SESSION_set_cipher(made.get(), cipher) == 1 &&
                    SSL_SESSION_set_protocol_version(made.get(), TLS1_3_VERSION) == 1 &&
                    SSL_SESSION_set_timeout(made.get(), kNever) == 1;  // else it is refused after 304 s
  return good ? Result<LibraryKey>(std::move(made)) : LibraryFailed();
}

}  // namespace

TlsKey::~TlsKey() { WipeSecret(bytes); }

Result<TlsKey> DeriveTlsKey(Bytes secret, std::string_view purpose) {
  TlsKey key;
  std::array<std::byte, 16> identity;
  RETURN_IF_ERROR(DeriveKey(secret, "termfs TLS key: which one", identity));
  RETURN_IF_ERROR(DeriveKey(secret, "termfs TLS key: " + std::string(purpose), key.bytes));
  key.identity = Hex(identity);
  return key;
}

// ---------------------------------------------------------------------------------------------------------------

struct TlsContext::Parts {
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> library{nullptr, &SSL_CTX_free};
  std::map<std::string, LibraryKey, std::less<>> keys;  // by identity; a client has one
  std::vector<unsigned char> protocols;                 // as ALPN has them
  uint64_t records_of_key = kRecordsOfKey;

  static Result<std::shared_ptr<Parts>> Create(const SSL_METHOD* method, std::span<const TlsKey> keys);

  static int Find(SSL* ssl, const unsigned char* identity, size_t length, SSL_SESSION** found);
  static int Use(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, size_t* length, SSL_SESSION** used);
  static int Choose(SSL* ssl, const unsigned char** chosen, unsigned char* length, const unsigned char* offered,
                    unsigned offered_length, void* parts);
};

namespace {

// Of a session: where the library's bytes come from and go to, and what its callbacks need to know.
struct Pipe {
  Bytes input;
  std::span<std::byte> output;
  size_t written = 0;                // of `output`
  std::vector<std::byte> unwritten;  // what had no room there, or came without being asked for
  const TlsContext::Parts* context = nullptr;
  std::string identity;
};

Pipe& PipeOf(SSL* ssl) { return *static_cast<Pipe*>(SSL_get_app_data(ssl)); }

// More than this a peer cannot make us owe it.
constexpr size_t kMostUnwritten = 64 << 10;

int PipeWrite(BIO* bio, const char* data, size_t length, size_t* written) {
  auto& pipe = *static_cast<Pipe*>(BIO_get_data(bio));
  const Bytes bytes(reinterpret_cast<const std::byte*>(data), length);
  if (!pipe.unwritten.empty() || pipe.output.size() - pipe.written < length) {
    if (pipe.unwritten.size() + length > kMostUnwritten) {
      return 0;
    }
    pipe.unwritten.insert(pipe.unwritten.end(), bytes.begin(), bytes.end());
  } else {
    std::memcpy(pipe.output.data() + pipe.written, data, length);
    pipe.written += length;
  }
  *written = length;
  return 1;
}

int PipeRead(BIO* bio, char* to, size_t length, size_t* read) {
  auto& pipe = *static_cast<Pipe*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  *read = std::min(length, pipe.input.size());
  if (*read == 0) {
    BIO_set_retry_read(bio);
    return 0;
  }
  std::memcpy(to, pipe.input.data(), *read);
  pipe.input = pipe.input.subspan(*read);
  return 1;
}

long PipeControl(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD* PipeMethod() {
  static const BIO_METHOD* const kMethod = [] {
    BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "bytes");
    TERMFS_CHECK(method != nullptr);
    BIO_meth_set_write_ex(method, &PipeWrite);
    BIO_meth_set_read_ex(method, &PipeRead);
    BIO_meth_set_ctrl(method, &PipeControl);
    return method;
  }();
  return kMethod;
}

}  // namespace

// A key of the list, or none: then the handshake fails, as there is no certificate either.
int TlsContext::Parts::Find(SSL* ssl, const unsigned char* identity, size_t length, SSL_SESSION** found) {
  Pipe& pipe = PipeOf(ssl);
  const std::string_view name(reinterpret_cast<const char*>(identity), length);
  const auto key = pipe.context->keys.find(name);
  *found = key != pipe.context->keys.end() ? SSL_SESSION_dup(key->second.get()) : nullptr;
  if (*found != nullptr) {
    pipe.identity = name;
  }
  return 1;
}

int TlsContext::Parts::Use(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, size_t* length,
                           SSL_SESSION** used) {
  const auto& [name, key] = *PipeOf(ssl).context->keys.begin();
  *used = nullptr;
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) {
    return 1;
  }
  *used = SSL_SESSION_dup(key.get());
  *identity = reinterpret_cast<const unsigned char*>(name.data());
  *length = name.size();
  return *used != nullptr ? 1 : 0;
}

int TlsContext::Parts::Choose(SSL* /*ssl*/, const unsigned char** chosen, unsigned char* length,
                              const unsigned char* offered, unsigned offered_length, void* parts) {
  const auto& own = static_cast<const Parts*>(parts)->protocols;
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, length, own.data(), static_cast<unsigned>(own.size()), offered, offered_length) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

Result<std::shared_ptr<TlsContext::Parts>> TlsContext::Parts::Create(const SSL_METHOD* method,
                                                                     std::span<const TlsKey> keys) {
  auto parts = std::make_shared<Parts>();
  parts->library.reset(SSL_CTX_new(method));
  SSL_CTX* const context = parts->library.get();
  if (context == nullptr || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set1_groups_list(context, "X25519") != 1 || SSL_CTX_set_num_tickets(context, 0) != 1) {
    return LibraryFailed();
  }
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);  // never psk_ke: that is an option, not set
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_early_data(context, 0);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  for (const TlsKey& key : keys) {
    ASSIGN_OR_RETURN(LibraryKey made, KeyOf(context, key));
    parts->keys.insert_or_assign(key.identity, std::move(made));
  }
  return parts;
}

TlsContext::TlsContext(std::shared_ptr<Parts> parts) : parts_(std::move(parts)) {}

TlsContext::~TlsContext() = default;

Result<std::shared_ptr<const TlsContext>> TlsContext::ForClient(const TlsKey& key, uint64_t records_of_key) {
  ASSIGN_OR_RETURN(auto parts, Parts::Create(TLS_client_method(), {&key, 1}));
  parts->records_of_key = records_of_key;
  SSL_CTX_set_psk_use_session_callback(parts->library.get(), &Parts::Use);
  SSL_CTX_set_verify(parts->library.get(), SSL_VERIFY_PEER, nullptr);  // of certificates none is trusted
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(parts)));
}

Result<std::shared_ptr<const TlsContext>> TlsContext::ForServer(std::span<const TlsKey> keys,
                                                                std::span<const std::string_view> protocols,
                                                                uint64_t records_of_key) {
  ASSIGN_OR_RETURN(auto parts, Parts::Create(TLS_server_method(), keys));
  parts->records_of_key = records_of_key;
  for (const std::string_view protocol : protocols) {
    parts->protocols.push_back(static_cast<unsigned char>(protocol.size()));
    parts->protocols.insert(parts->protocols.end(), protocol.begin(), protocol.end());
  }
  SSL_CTX* const context = parts->library.get();
  SSL_CTX_set_psk_find_session_callback(context, &Parts::Find);
  SSL_CTX_set_alpn_select_cb(context, &Parts::Choose, parts.get());
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(parts)));
}

// ---------------------------------------------------------------------------------------------------------------

struct TlsSession::Library {
  std::shared_ptr<const TlsContext::Parts> context;
  Pipe pipe;
  std::unique_ptr<SSL, void (*)(SSL*)> ssl{nullptr, &SSL_free};
};

TlsSession::TlsSession(std::unique_ptr<Library> library) : library_(std::move(library)) {}

TlsSession::~TlsSession() = default;

Result<std::unique_ptr<TlsSession>> TlsSession::Create(const TlsContext& context) {
  auto library = std::make_unique<Library>();
  library->context = context.parts_;
  library->pipe.context = context.parts_.get();
  library->ssl.reset(SSL_new(context.parts_->library.get()));
  BIO* const bio = library->ssl != nullptr ? BIO_new(PipeMethod()) : nullptr;
  if (bio == nullptr) {
    return LibraryFailed();
  }
  BIO_set_data(bio, &library->pipe);
  BIO_set_init(bio, 1);
  SSL_set_bio(library->ssl.get(), bio, bio);
  SSL_set_app_data(library->ssl.get(), &library->pipe);
  return std::unique_ptr<TlsSession>(new TlsSession(std::move(library)));
}

Result<std::unique_ptr<TlsSession>> TlsSession::Connect(const TlsContext& context, std::string_view protocol) {
  ASSIGN_OR_RETURN(auto session, Create(context));
  SSL* const ssl = session->library_->ssl.get();
  std::vector<unsigned char> protocols{static_cast<unsigned char>(protocol.size())};
  protocols.insert(protocols.end(), protocol.begin(), protocol.end());
  if (SSL_set_alpn_protos(ssl, protocols.data(), static_cast<unsigned>(protocols.size())) != 0) {
    return LibraryFailed();
  }
  SSL_set_connect_state(ssl);
  return session;
}

Result<std::unique_ptr<TlsSession>> TlsSession::Accept(const TlsContext& context) {
  ASSIGN_OR_RETURN(auto session, Create(context));
  SSL_set_accept_state(session->library_->ssl.get());
  return session;
}

// What the library says of `returned`, which was no success. Ok: it needs more bytes.
Status TlsSession::Failed(int returned, bool handshake) const {
  const int error = SSL_get_error(library_->ssl.get(), returned);
  const unsigned long reason = ERR_peek_last_error();  // NOLINT(google-runtime-int): the library's type
  const char* const text = ERR_reason_error_string(reason);
  const std::string why = text != nullptr ? std::string(": ") + text : "";
  const int code = ERR_GET_REASON(reason);
  ERR_clear_error();
  if (error == SSL_ERROR_WANT_READ) {
    return Status::Ok();
  }
  if (error == SSL_ERROR_ZERO_RETURN) {
    return Status::Error(ECONNRESET, "the other end has ended the TLS session");
  }
  if (!handshake) {
    return code >= SSL_AD_REASON_OFFSET
               ? Status::Error(ECONNRESET, "the other end has ended the TLS session" + why)
               : Status::Error(EBADMSG, "a TLS record was changed, left out or played back" + why);
  }
  switch (code) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
      return Status::Error(EACCES, "the other end does not know the key" + why);
    default:
      return Status::Error(EPROTO, "the other end does not speak this TLS" + why);
  }
}

Status TlsSession::Handshake(Bytes& bytes) {
  ERR_clear_error();  // of others in this thread, as in the next two: Failed looks at what is left there
  library_->pipe.input = bytes;
  const int done = SSL_do_handshake(library_->ssl.get());
  bytes = std::exchange(library_->pipe.input, {});
  return done == 1 ? Establish() : Failed(done, /*handshake=*/true);
}

Status TlsSession::Establish() {
  SSL* const ssl = library_->ssl.get();
  if (SSL_session_reused(ssl) != 1) {
    return Status::Error(EACCES, "the other end has not used the key");
  }
  const unsigned char* protocol = nullptr;
  unsigned length = 0;
  SSL_get0_alpn_selected(ssl, &protocol, &length);
  if (protocol == nullptr) {
    return Status::Error(EPROTO, "the other end does not say what it speaks inside TLS");
  }
  protocol_.assign(reinterpret_cast<const char*>(protocol), length);
  identity_ = SSL_is_server(ssl) == 1 ? library_->pipe.identity : library_->context->keys.begin()->first;
  established_ = true;
  return Status::Ok();
}

std::vector<std::byte> TlsSession::TakeOutput() { return std::exchange(library_->pipe.unwritten, {}); }

Result<size_t> TlsSession::Seal(Bytes message, std::span<std::byte> to) {
  Pipe& pipe = library_->pipe;
  ERR_clear_error();
  const std::vector<std::byte> before = std::exchange(pipe.unwritten, {});
  if (before.size() > kMostOutput / 2) {
    return Status::Error(EPROTO, "the other end asks for too many TLS messages");
  }
  std::copy(before.begin(), before.end(), to.begin());
  pipe.output = to;
  pipe.written = before.size();
  SSL* const ssl = library_->ssl.get();
  const uint64_t records = message.size() / kRecordBytes + 1;
  if (records_ + records > library_->context->records_of_key && records_ != 0) {
    if (SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
      return LibraryFailed();
    }
    records_ = 0;
    key_updates_++;
  }
  records_ += records;
  size_t sealed = 0;
  const int done = message.empty() ? 1 : SSL_write_ex(ssl, message.data(), message.size(), &sealed);
  const size_t written = std::exchange(pipe.written, 0);
  pipe.output = {};
  if (done != 1 || sealed != message.size()) {
    return LibraryFailed();
  }
  TERMFS_CHECK(pipe.unwritten.empty());
  return written;
}

Result<size_t> TlsSession::Open(Bytes sealed, std::span<std::byte> to) {
  Pipe& pipe = library_->pipe;
  ERR_clear_error();
  pipe.input = sealed;
  size_t opened = 0;
  for (;;) {
    size_t some = 0;
    const int done = SSL_read_ex(library_->ssl.get(), to.data() + opened, to.size() - opened, &some);
    if (done == 1) {
      opened += some;
      continue;
    }
    RETURN_IF_ERROR(Failed(done, /*handshake=*/false));
    TERMFS_CHECK(pipe.input.empty());
    return opened;
  }
}

}  // namespace termfs

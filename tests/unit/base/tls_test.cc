// SPDX-License-Identifier: Apache-2.0
//
// TLS by a pre-shared key: who knows it gets in and nobody else does, whatever lies in between.
#include "base/tls.h"

#include <gtest/gtest.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <fstream>
#include <numeric>
#include <optional>
#include <sstream>

static std::atomic<time_t> test_seconds_ahead{0};

// Instead of the C library's: what the TLS library takes for the time.
extern "C" time_t time(time_t* to) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const time_t seconds = now.tv_sec + test_seconds_ahead.load();
  if (to != nullptr) {
    *to = seconds;
  }
  return seconds;
}

namespace termfs {
namespace {

constexpr std::string_view kInner = "test/1";
constexpr std::string_view kOther = "test/2";
constexpr std::string_view kProtocols[] = {kInner, kOther};

std::vector<std::byte> Numbered(size_t bytes) {
  std::vector<std::byte> numbered(bytes);
  for (size_t i = 0; i < bytes; i++) {
    numbered[i] = static_cast<std::byte>(i * 31 + i / 256);
  }
  return numbered;
}

TlsKey KeyOf(uint8_t secret, std::string_view purpose = "test") {
  const std::vector<std::byte> bytes(32, std::byte{secret});
  return DeriveTlsKey(bytes, purpose).value();
}

struct Ends {
  std::unique_ptr<TlsSession> client;
  std::unique_ptr<TlsSession> server;
};

Ends Make(const TlsKey& clients, std::span<const TlsKey> servers, std::string_view protocol = kInner,
          uint64_t records_of_key = TlsContext::kRecordsOfKey) {
  return {.client = TlsSession::Connect(*TlsContext::ForClient(clients, records_of_key).value(), protocol).value(),
          .server = TlsSession::Accept(*TlsContext::ForServer(servers, kProtocols, records_of_key).value()).value()};
}

// Both ends' last word. `change`: what happens to the bytes on the way, numbered by flight.
template <typename Change>
std::pair<Status, Status> ShakeHands(Ends& ends, const Change& change) {
  std::pair<Status, Status> said{Status::Ok(), Status::Ok()};
  std::vector<std::byte> to_client;
  for (int flight = 0; flight < 6; flight++) {
    std::span<const std::byte> left = to_client;
    if (said.first.ok() && !ends.client->established()) {
      said.first = ends.client->Handshake(left);
    }
    std::vector<std::byte> to_server = ends.client->TakeOutput();
    change(2 * flight, to_server);
    left = to_server;
    if (said.second.ok() && !ends.server->established()) {
      said.second = ends.server->Handshake(left);
    }
    to_client = ends.server->TakeOutput();
    change(2 * flight + 1, to_client);
  }
  return said;
}

std::pair<Status, Status> ShakeHands(Ends& ends) {
  return ShakeHands(ends, [](int, std::vector<std::byte>&) {});
}

Ends Established(uint64_t records_of_key = TlsContext::kRecordsOfKey) {
  const TlsKey key = KeyOf(1);
  Ends ends = Make(key, {&key, 1}, kInner, records_of_key);
  const auto [client, server] = ShakeHands(ends);
  EXPECT_TRUE(client.ok()) << client.ToString();
  EXPECT_TRUE(server.ok()) << server.ToString();
  return ends;
}

std::vector<std::byte> Sealed(TlsSession& from, std::span<const std::byte> message) {
  std::vector<std::byte> sealed(TlsSession::SealedBytes(message.size()));
  sealed.resize(from.Seal(message, sealed).value());
  return sealed;
}

Result<std::vector<std::byte>> Opened(TlsSession& by, std::span<const std::byte> sealed) {
  std::vector<std::byte> opened(TlsSession::OpenedBytes(sealed.size()));
  ASSIGN_OR_RETURN(const size_t bytes, by.Open(sealed, opened));
  opened.resize(bytes);
  return opened;
}

TEST(Tls, MessagesArriveBothWays_WhateverTheirSize) {
  Ends ends = Established();
  EXPECT_EQ(ends.server->protocol(), kInner);
  EXPECT_EQ(ends.client->protocol(), kInner);
  EXPECT_EQ(ends.server->identity(), KeyOf(1).identity);
  for (const size_t size : {1UL, 5UL, 4096UL, 16383UL, 16384UL, 16385UL, 65536UL, 300'000UL}) {
    const auto message = Numbered(size);
    const auto up = Sealed(*ends.client, message);
    EXPECT_EQ(std::search(up.begin(), up.end(), message.begin(), message.begin() + static_cast<long>(size / 2 + 1)) ==
                  up.end(),
              size > 4)
        << "not encrypted";
    EXPECT_EQ(Opened(*ends.server, up).value(), message);
    EXPECT_EQ(Opened(*ends.client, Sealed(*ends.server, message)).value(), message);
  }
}

TEST(Tls, RecordsArriveInAnyPieces) {
  Ends ends = Established();
  const auto message = Numbered(40'000);
  const auto sealed = Sealed(*ends.client, message);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{1000}, size_t{17'000}}) {
    Ends others = Established();
    const auto again = Sealed(*others.client, message);
    std::vector<std::byte> all;
    for (size_t at = 0; at < again.size(); at += piece) {
      const auto some =
          Opened(*others.server, std::span(again).subspan(at, std::min(piece, again.size() - at))).value();
      all.insert(all.end(), some.begin(), some.end());
    }
    EXPECT_EQ(all, message);
  }
}

TEST(Tls, WhatFollowsTheHandshakeIsLeft) {
  const TlsKey key = KeyOf(1);
  Ends ends = Make(key, {&key, 1});
  std::span<const std::byte> nothing;
  ASSERT_TRUE(ends.client->Handshake(nothing).ok());
  auto flight = ends.client->TakeOutput();
  std::span<const std::byte> left = flight;
  ASSERT_TRUE(ends.server->Handshake(left).ok());
  flight = ends.server->TakeOutput();
  left = flight;
  ASSERT_TRUE(ends.client->Handshake(left).ok());
  ASSERT_TRUE(ends.client->established());
  flight = ends.client->TakeOutput();
  const auto message = Numbered(100);
  const auto sealed = Sealed(*ends.client, message);
  flight.insert(flight.end(), sealed.begin(), sealed.end());
  left = flight;
  ASSERT_TRUE(ends.server->Handshake(left).ok());
  ASSERT_TRUE(ends.server->established());
  EXPECT_EQ(left.size(), sealed.size());
  EXPECT_EQ(Opened(*ends.server, left).value(), message);
}

TEST(Tls, OnlyWhoKnowsAKeyOfTheServersGetsIn) {
  const TlsKey keys[] = {KeyOf(1), KeyOf(2), KeyOf(3)};
  for (const TlsKey& known : keys) {
    Ends ends = Make(known, keys);
    EXPECT_TRUE(ShakeHands(ends).second.ok());
    EXPECT_EQ(ends.server->identity(), known.identity);
  }
  TlsKey guessed = KeyOf(9);
  Ends strangers = Make(guessed, keys);
  EXPECT_EQ(ShakeHands(strangers).second.code(), EACCES);
  guessed.identity = keys[1].identity;  // everybody sees it
  Ends imitators = Make(guessed, keys);
  const auto [client, server] = ShakeHands(imitators);
  EXPECT_EQ(server.code(), EACCES) << server.ToString();
  EXPECT_EQ(client.code(), EACCES) << client.ToString();
  EXPECT_FALSE(imitators.server->established());
}

// A server's may be as old as the server.
TEST(Tls, AKeyDoesNotExpire) {
  const TlsKey key = KeyOf(1);
  const auto client = TlsContext::ForClient(key).value();
  const auto server = TlsContext::ForServer({&key, 1}, kProtocols).value();
  for (const time_t ahead : {0L, 1000L, 10L * 365 * 86400, -3600L}) {
    test_seconds_ahead = ahead;
    Ends ends{.client = TlsSession::Connect(*client, kInner).value(), .server = TlsSession::Accept(*server).value()};
    const auto [first, second] = ShakeHands(ends);
    EXPECT_TRUE(first.ok() && second.ok() && ends.server->established()) << ahead << ": " << second.ToString();
  }
  test_seconds_ahead = 0;
}

TEST(Tls, AKeyIsForOnePurpose) {
  const TlsKey one = KeyOf(1, "client to server 0");
  const TlsKey other = KeyOf(1, "client to server 1");
  EXPECT_EQ(one.identity, other.identity);
  EXPECT_NE(one.bytes, other.bytes);
  Ends ends = Make(one, {&other, 1});
  EXPECT_EQ(ShakeHands(ends).second.code(), EACCES);
}

TEST(Tls, AProtocolThatTheServerDoesNotSpeakIsRefused) {
  const TlsKey key = KeyOf(1);
  Ends ends = Make(key, {&key, 1}, kOther);
  EXPECT_TRUE(ShakeHands(ends).second.ok());
  EXPECT_EQ(ends.server->protocol(), kOther);
  Ends unknown = Make(key, {&key, 1}, "test/3");
  const auto [client, server] = ShakeHands(unknown);
  EXPECT_EQ(server.code(), EPROTO) << server.ToString();
  EXPECT_EQ(client.code(), EPROTO) << client.ToString();
}

// A client's own bytes, played back to it.
TEST(Tls, AReflectedHandshakeIsRefused) {
  const TlsKey key = KeyOf(1);
  Ends ends = Make(key, {&key, 1});
  std::span<const std::byte> nothing;
  ASSERT_TRUE(ends.client->Handshake(nothing).ok());
  const auto flight = ends.client->TakeOutput();
  std::span<const std::byte> left = flight;
  EXPECT_FALSE(ends.client->Handshake(left).ok());
}

TEST(Tls, AHandshakeThatWasChangedIsRefused) {
  const TlsKey key = KeyOf(1);
  for (int flight = 0; flight < 3; flight++) {
    for (size_t at = 5; at < 400; at += 3) {
      Ends ends = Make(key, {&key, 1});
      bool changed = false;
      const auto [client, server] = ShakeHands(ends, [&](int number, std::vector<std::byte>& bytes) {
        if (number == flight && at < bytes.size()) {
          bytes[at] ^= std::byte{1};
          changed = true;
        }
      });
      EXPECT_FALSE(changed && ends.client->established() && ends.server->established()) << flight << " " << at;
    }
  }
}

TEST(Tls, ARecordThatWasChangedLeftOutOrPlayedBackIsRefused) {
  const auto message = Numbered(1000);
  for (const size_t at : {size_t{0}, size_t{3}, size_t{5}, size_t{500}, size_t{1005}}) {
    Ends ends = Established();
    auto sealed = Sealed(*ends.client, message);
    sealed[at] ^= std::byte{1};
    const auto opened = Opened(*ends.server, sealed);
    EXPECT_TRUE(!opened.ok() || opened->empty()) << at;  // a longer one is still awaited
    EXPECT_TRUE(opened.ok() || opened.status().code() == EBADMSG) << opened.status().ToString();
  }
  Ends left_out = Established();
  [[maybe_unused]] const auto first = Sealed(*left_out.client, message);
  EXPECT_EQ(Opened(*left_out.server, Sealed(*left_out.client, message)).status().code(), EBADMSG);
  Ends repeated = Established();
  const auto sealed = Sealed(*repeated.client, message);
  EXPECT_EQ(Opened(*repeated.server, sealed).value(), message);
  EXPECT_EQ(Opened(*repeated.server, sealed).status().code(), EBADMSG);
  Ends reflected = Established();
  EXPECT_EQ(Opened(*reflected.client, Sealed(*reflected.client, message)).status().code(), EBADMSG);
}

TEST(Tls, KeysAreReplaced_EachWayByItself) {
  Ends ends = Established(/*records_of_key=*/4);
  const auto message = Numbered(30'000);
  for (int i = 0; i < 50; i++) {
    EXPECT_EQ(Opened(*ends.server, Sealed(*ends.client, message)).value(), message);
    if (i % 5 == 0) {
      EXPECT_EQ(Opened(*ends.client, Sealed(*ends.server, message)).value(), message);
    }
  }
  EXPECT_EQ(ends.client->key_updates(), 24U);  // two records a message
  EXPECT_EQ(ends.server->key_updates(), 4U);
}

TEST(Tls, WhatIsSaidAfterAnErrorIsRefused) {
  Ends ends = Established();
  auto sealed = Sealed(*ends.client, Numbered(10));
  sealed.back() ^= std::byte{1};
  EXPECT_EQ(Opened(*ends.server, sealed).status().code(), EBADMSG);
  const auto alert = ends.server->TakeOutput();
  EXPECT_FALSE(alert.empty());
  EXPECT_EQ(Opened(*ends.client, alert).status().code(), ECONNRESET);
}

// Somebody who has no key, but a certificate that looks like a server's.
class Impostor {
 public:
  Impostor() {
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509* const certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    context_ = SSL_CTX_new(TLS_server_method());
    EXPECT_EQ(SSL_CTX_use_certificate(context_, certificate), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context_, key), 1);
    SSL_CTX_set_alpn_select_cb(
        context_,
        [](SSL*, const unsigned char** out, unsigned char* length, const unsigned char* in, unsigned, void*) {
          *length = in[0];
          *out = in + 1;
          return SSL_TLSEXT_ERR_OK;
        },
        nullptr);
    X509_free(certificate);
    EVP_PKEY_free(key);
    ssl_ = SSL_new(context_);
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_, in_, out_);
    SSL_set_accept_state(ssl_);
  }
  ~Impostor() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;

  std::vector<std::byte> Answer(std::span<const std::byte> bytes) {
    BIO_write(in_, bytes.data(), static_cast<int>(bytes.size()));
    SSL_do_handshake(ssl_);
    std::vector<std::byte> answer(BIO_ctrl_pending(out_));
    BIO_read(out_, answer.data(), static_cast<int>(answer.size()));
    return answer;
  }

 private:
  SSL_CTX* context_ = nullptr;
  SSL* ssl_ = nullptr;
  BIO* in_ = nullptr;
  BIO* out_ = nullptr;
};

TEST(Tls, AnImpostorWithACertificateIsRefused) {
  const TlsKey key = KeyOf(1);
  Ends ends = Make(key, {&key, 1});
  Impostor impostor;
  std::span<const std::byte> nothing;
  ASSERT_TRUE(ends.client->Handshake(nothing).ok());
  const auto answer = impostor.Answer(ends.client->TakeOutput());
  ASSERT_GT(answer.size(), 200U);  // with its certificate
  std::span<const std::byte> left = answer;
  EXPECT_EQ(ends.client->Handshake(left).code(), EACCES);
  EXPECT_FALSE(ends.client->established());
}

TEST(Tls, KeysAreNotInCoreDumps) {
  const TlsKey key = KeyOf(1);
  const auto context = TlsContext::ForClient(key).value();
  void* const piece = OPENSSL_malloc(100);
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  std::optional<bool> undumped;
  while (std::getline(maps, line)) {
    unsigned long from = 0;
    unsigned long to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2 && line.find('-') < 17) {
      const auto at = reinterpret_cast<unsigned long>(piece);
      inside = from <= at && at < to;
    }
    if (inside && line.starts_with("VmFlags:")) {
      undumped = line.find(" dd") != std::string::npos;
    }
  }
  OPENSSL_free(piece);
  EXPECT_EQ(undumped, true);
}

}  // namespace
}  // namespace termfs

// SPDX-License-Identifier: Apache-2.0
//
// Any bytes for either end of a TLS handshake, and for ends that have shaken hands: none of them makes an end believe
// that the other one knows the key, and none is taken for a message of it.
//
// The input: a byte whose lowest two bits say for which end and when; then what that end receives, all at once, or with
// the third bit in pieces of 100 bytes; with the fourth, over the bytes that a real peer would send.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/tls.h"

namespace termfs {
namespace {

constexpr std::string_view kProtocols[] = {"fuzz/1"};

struct Ends {
  std::unique_ptr<TlsSession> client;
  std::unique_ptr<TlsSession> server;
};

const TlsContext& Context(bool server) {
  static const TlsKey kKey = DeriveTlsKey(std::array<std::byte, 32>{}, "fuzz").value();
  static const auto kClient = TlsContext::ForClient(kKey).value();
  static const auto kServer = TlsContext::ForServer({&kKey, 1}, kProtocols).value();
  return server ? *kServer : *kClient;
}

Ends Make() {
  return {.client = TlsSession::Connect(Context(false), kProtocols[0]).value(),
          .server = TlsSession::Accept(Context(true)).value()};
}

std::vector<std::byte> Advance(TlsSession& end, std::vector<std::byte> received) {
  std::span<const std::byte> left = received;
  TERMFS_CHECK(end.Handshake(left).ok());
  return end.TakeOutput();
}

// What it said.
std::vector<std::byte> TryHandshake(TlsSession& end, std::span<const std::byte> input, size_t piece) {
  std::vector<std::byte> all;
  Status status;
  while (!input.empty() && status.ok() && !end.established()) {
    std::span<const std::byte> some = input.first(std::min(piece, input.size()));
    input = input.subspan(some.size());
    status = end.Handshake(some);
    const auto said = end.TakeOutput();
    all.insert(all.end(), said.begin(), said.end());
  }
  return all;
}

void TryRecords(TlsSession& end, std::span<const std::byte> input, size_t piece) {
  std::vector<std::byte> to(TlsSession::OpenedBytes(input.size()));
  while (!input.empty()) {
    const auto some = input.first(std::min(piece, input.size()));
    input = input.subspan(some.size());
    const auto opened = end.Open(some, to);
    if (!opened.ok()) {
      return;
    }
    TERMFS_CHECK(opened.value() == 0);
  }
}

void Try(std::span<const std::byte> input) {
  if (input.empty()) {
    return;
  }
  const auto how = std::to_integer<unsigned>(input[0]);
  const auto bytes = input.subspan(1);
  const size_t piece = (how & 4U) != 0 ? 100 : std::max<size_t>(bytes.size(), 1);
  Ends ends = Make();
  std::vector<std::byte> hello = Advance(*ends.client, {});
  const auto over = [&](std::vector<std::byte> real) {
    if ((how & 8U) == 0) {
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    }
    for (size_t i = 0; i < std::min(real.size(), bytes.size()); i++) {
      real[i] ^= bytes[i];
    }
    return real;
  };
  switch (how & 3U) {
    case 0: {
      [[maybe_unused]] const auto said = TryHandshake(*ends.server, over(hello), piece);
      TERMFS_CHECK(!ends.server->established());
      return;
    }
    case 1: {
      const auto said = TryHandshake(*ends.client, over(Advance(*ends.server, hello)), piece);
      if (ends.client->established()) {  // only what TLS does not look at was changed, such as a record's version
        [[maybe_unused]] const auto nothing = Advance(*ends.server, said);
        TERMFS_CHECK(ends.server->established());
      }
      return;
    }
    default: {
      const std::vector<std::byte> finished = Advance(*ends.client, Advance(*ends.server, hello));
      [[maybe_unused]] const auto nothing = Advance(*ends.server, finished);
      TERMFS_CHECK(ends.client->established() && ends.server->established());
      TryRecords((how & 1U) != 0 ? *ends.client : *ends.server, bytes, piece);
      return;
    }
  }
}

}  // namespace
}  // namespace termfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  termfs::Try({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}

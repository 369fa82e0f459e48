// SPDX-License-Identifier: Apache-2.0
//
// Where a server is: a volume's directory on this host, or host:port.
//
// Thread-safety: values and free functions.
// Errors:        EINVAL: the text says what is wrong.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace termfs::tlib {

inline constexpr uint16_t kControlPort = 4794;  // TCP; where no other one is named

struct HostPort {
  std::string host;  // a name, or an IPv4 or IPv6 address without brackets
  uint16_t port = kControlPort;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// host, host:port, [address], [address]:port, or an IPv6 address alone.
Result<HostPort> ParseHostPort(const std::string& text);
std::string ToString(const HostPort& place);  // host:port or [address]:port

// Whether what a person calls a server means a host and not a directory: it has a colon and no slash.
bool MeansHost(const std::string& text);

struct ServerAddress {
  ServerAddress() = default;
  ServerAddress(std::string volume) : directory(std::move(volume)) {}  // NOLINT(google-explicit-constructor)
  ServerAddress(HostPort place, std::string secret) : host(std::move(place)), secret_file(std::move(secret)) {}

  bool remote() const { return directory.empty(); }

  std::string directory;  // of the volume; empty: it is at `host`
  HostPort host;
  std::string secret_file;  // of the volume, with `host`
};
std::string ToString(const ServerAddress& address);

}  // namespace termfs::tlib

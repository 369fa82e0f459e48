// SPDX-License-Identifier: Apache-2.0
#include "tlib/rpc/server_address.h"

#include <algorithm>
#include <charconv>

namespace termfs::tlib {
namespace {

Status Bad(const std::string& text, const std::string& why) {
  return Status::Error(EINVAL, "'" + text + "' " + why + "; a server's address is host:port or [IPv6 address]:port");
}

Result<uint16_t> ParsePort(const std::string& text, const std::string& port) {
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number == 0) {
    return Bad(text, "has no port from 1 to 65535");
  }
  return number;
}

}  // namespace

Result<HostPort> ParseHostPort(const std::string& text) {
  constexpr size_t kMaxName = 255;
  HostPort place;
  std::string rest;
  if (!text.empty() && text[0] == '[') {
    const size_t close = text.find(']');
    if (close == std::string::npos) {
      return Bad(text, "has no ']'");
    }
    place.host = text.substr(1, close - 1);
    rest = text.substr(close + 1);
  } else if (std::count(text.begin(), text.end(), ':') > 1) {
    place.host = text;
  } else {
    const size_t colon = std::min(text.find(':'), text.size());
    place.host = text.substr(0, colon);
    rest = text.substr(colon);
  }
  const bool plain = std::all_of(place.host.begin(), place.host.end(),
                                 [](char c) { return c > ' ' && c <= '~' && c != '[' && c != ']'; });
  if (place.host.empty() || place.host.size() > kMaxName || !plain) {
    return Bad(text, "names no host");
  }
  if (!rest.empty()) {
    if (rest[0] != ':') {
      return Bad(text, "has something behind the ']'");
    }
    ASSIGN_OR_RETURN(place.port, ParsePort(text, rest.substr(1)));
  }
  return place;
}

std::string ToString(const HostPort& place) {
  const bool six = place.host.find(':') != std::string::npos;
  return (six ? "[" + place.host + "]" : place.host) + ":" + std::to_string(place.port);
}

bool MeansHost(const std::string& text) {
  return text.find('/') == std::string::npos && text.find(':') != std::string::npos;
}

std::string ToString(const ServerAddress& address) {
  return address.remote() ? ToString(address.host) : address.directory;
}

}  // namespace termfs::tlib

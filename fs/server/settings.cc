// SPDX-License-Identifier: Apache-2.0
//
// The only file that sees toml++.
#include "fs/server/settings.h"

#include <fcntl.h>

// Header-only: the packaged library has only the variant that throws.
#undef TOML_SHARED_LIB
#undef TOML_HEADER_ONLY
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <array>
#include <charconv>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/page.h"
#include "fs/server/volume_directory.h"
#include "tlib/rpc/server_address.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

namespace {

constexpr uint64_t kMinCapacity = uint64_t{16} << 20;
constexpr uint32_t kMaxSessions = 1U << 16;
constexpr char kCapacities[] = "from 16 MiB to just under 4 TiB, in whole pages of 4 KiB";
constexpr char kMetadataMemories[] = "from 32 MiB to 1 TiB";
constexpr char kLineHint[] = "; a line is KEY = VALUE, such as dram-ratio = 0.5 or kind = \"term\"";

Status Bad(std::string_view key, std::string_view allowed) {
  return Status::Error(EINVAL, std::string(key) + " must be " + std::string(allowed));
}

// Takes a key's value into `to`, if it is there and of the right type and range.
Status Take(const toml::table& table, std::string_view key, uint64_t low, uint64_t high, auto& to) {
  const toml::node* node = table.get(key);
  if (node == nullptr) {
    return Status::Ok();
  }
  const auto value = node->is_integer() ? node->value<int64_t>() : std::nullopt;
  if (!value.has_value() || *value < 0 || static_cast<uint64_t>(*value) < low || static_cast<uint64_t>(*value) > high) {
    return Bad(key, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  to = static_cast<std::remove_reference_t<decltype(to)>>(*value);
  return Status::Ok();
}

Status TakeString(const toml::table& table, std::string_view key, std::string& to) {
  const toml::node* node = table.get(key);
  if (node == nullptr) {
    return Status::Ok();
  }
  if (!node->is_string()) {
    return Bad(key, "a string");
  }
  to = *node->value<std::string>();
  return Status::Ok();
}

Status TakeRatio(const toml::table& table, std::string_view key, double& to) {
  const toml::node* node = table.get(key);
  if (node == nullptr) {
    return Status::Ok();
  }
  if (!node->is_number()) {
    return Bad(key, "a number");
  }
  to = *node->value<double>();
  return Status::Ok();
}

Status TakeAll(const toml::table& table, VolumeSettings& s) {
  if (!Take(table, "capacity", kMinCapacity, kMaxCapacity, s.capacity_bytes).ok()) {
    return Bad("capacity", std::string("a number of bytes ") + kCapacities);
  }
  RETURN_IF_ERROR(TakeRatio(table, "dram-ratio", s.dram_ratio));
  RETURN_IF_ERROR(TakeString(table, "device", s.device));
  RETURN_IF_ERROR(TakeString(table, "kind", s.kind));
  RETURN_IF_ERROR(TakeString(table, "promoter", s.promoter));
  RETURN_IF_ERROR(Take(table, "workers", 1, 64, s.workers));
  RETURN_IF_ERROR(Take(table, "rnic-threads", 0, 64, s.rnic_threads));
  RETURN_IF_ERROR(Take(table, "metadata-threads", 1, 256, s.metadata_threads));
  if (!Take(table, "metadata-memory", kMinMetadataMemory, kMaxMetadataMemory, s.metadata_memory_bytes).ok()) {
    return Bad("metadata-memory", std::string("a number of bytes ") + kMetadataMemories);
  }
  RETURN_IF_ERROR(Take(table, "max-sessions", 1, kMaxSessions, s.max_sessions));
  RETURN_IF_ERROR(Take(table, "sample-period-ms", 10, 600000, s.sample_period_ms));
  RETURN_IF_ERROR(TakeString(table, "memory-directory", s.memory_directory));
  RETURN_IF_ERROR(TakeString(table, "listen", s.listen));
  RETURN_IF_ERROR(TakeString(table, "rdma", s.rdma));
  RETURN_IF_ERROR(TakeString(table, "rdma-wire", s.rdma_wire));
  RETURN_IF_ERROR(TakeString(table, "tls", s.tls));
  return CheckSettings(s);
}

// Settings are lines of a key and a number or string. What else TOML has is refused before toml++ sees it: version 3.3
// ends the process, or is undefined, for some tables and for some characters beyond ASCII where no string is.

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0x80) == 0; });
}

// Behind the string that begins at `begin`, at the end of the text if it does not end.
size_t EndOfString(std::string_view text, size_t begin) {
  const char quote = text[begin];
  for (size_t i = begin + 1; i < text.size(); i++) {
    if (text[i] == '\\' && quote == '"') {
      i++;
    } else if (text[i] == quote) {
      return i + 1;
    }
  }
  return text.size();
}

// What stands in a line that has no place in one; null: nothing.
const char* ForeignToSettings(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  if (std::any_of(line.begin(), line.end(),
                  [](char c) { return (c >= '\0' && c < ' ' && !IsBlank(c)) || c == '\x7f'; })) {
    return "a control character";
  }
  // The key and '=', a string if there is one, what follows; each up to a comment.
  const size_t plain = std::min(line.find_first_of("\"'#"), line.size());
  std::string_view rest = line.substr(plain);
  std::string_view outside = line.substr(0, plain);
  if (!rest.empty() && rest[0] != '#') {
    const size_t last = outside.find_last_not_of(kBlanks);
    if (last == std::string_view::npos || outside[last] != '=' ||
        std::count(outside.begin(), outside.end(), '=') != 1) {
      return "a quote that begins no value";
    }
    rest = rest.substr(EndOfString(rest, 0));
    const size_t behind = rest.find_first_not_of(kBlanks);
    if (behind != std::string_view::npos && rest[behind] != '#') {
      return "something behind a string";
    }
  }
  if (!IsAscii(outside)) {
    return "a character that is not ASCII, outside of quotes and comments";
  }
  return outside.find_first_of("[]{}") != std::string_view::npos ? "a table or an array, which no setting is" : nullptr;
}

// EINVAL: the text names the line.
Status CheckLines(std::string_view text, const std::string& name) {
  for (size_t number = 1; !text.empty(); number++) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (const char* const foreign = ForeignToSettings(line); foreign != nullptr) {
      return Status::Error(EINVAL, name + " line " + std::to_string(number) + ": " + foreign + kLineHint);
    }
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return Status::Ok();
}

// "" in a line without one.
std::string_view KeyOf(std::string_view line) {
  line = line.substr(0, line.find_first_of("=#"));
  const size_t first = line.find_first_not_of(" \t\r");
  return first == std::string_view::npos ? "" : line.substr(first, line.find_last_not_of(" \t\r") + 1 - first);
}

// What is wrong with a line that toml++ refuses; its own words are about its innards. Lines count from 1.
std::string WrongInLine(std::string_view text, size_t number) {
  std::vector<std::string_view> keys;
  while (keys.size() < number && !text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    keys.push_back(KeyOf(line));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  if (!keys.empty() && !keys.back().empty()) {
    const auto same = static_cast<size_t>(std::find(keys.begin(), keys.end(), keys.back()) - keys.begin());
    if (same + 1 < keys.size()) {
      return "the key '" + std::string(keys.back()) + "' is in line " + std::to_string(same + 1) +
             " already; remove one of the two";
    }
  }
  return std::string("no setting") + kLineHint;
}

// As short as it can be and be read back the same.
std::string Shortest(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), end.ptr);
}

std::string Quoted(const std::string& text) {
  std::ostringstream out;
  out << toml::value<std::string>(text);
  return out.str();
}

}  // namespace

Status CheckSettings(const VolumeSettings& s) {
  if (s.capacity_bytes < kMinCapacity || s.capacity_bytes > kMaxCapacity || s.capacity_bytes % kPageSize != 0) {
    return Bad("capacity", kCapacities);
  }
  if (!(s.dram_ratio >= 0.01 && s.dram_ratio <= 1.0)) {
    return Bad("dram-ratio", "from 0.01 to 1");
  }
  if (!s.device.empty() && (s.device.front() != '/' || s.device.find('\0') != std::string::npos)) {
    return Bad("device", "empty, or the absolute path of a file or a block device");
  }
  if (!driver::ParseRegionKind(s.kind).ok()) {
    return Bad("kind", "one of pin, odp, rpc, rpc_buffer, rpc_direct, rpc_tiering, term");
  }
  if (s.promoter != "heat" && s.promoter != "recent" && s.promoter != "static") {
    return Bad("promoter", "one of heat, recent, static");
  }
  if (s.workers < 1 || s.workers > 64) {
    return Bad("workers", "from 1 to 64");
  }
  if (s.rnic_threads > 64) {
    return Bad("rnic-threads", "from 0 to 64; 0: by processors");
  }
  if (s.metadata_threads < 1 || s.metadata_threads > 256) {
    return Bad("metadata-threads", "from 1 to 256");
  }
  if (s.metadata_memory_bytes < kMinMetadataMemory || s.metadata_memory_bytes > kMaxMetadataMemory) {
    return Bad("metadata-memory", kMetadataMemories);
  }
  if (s.max_sessions < 1 || s.max_sessions > kMaxSessions) {
    return Bad("max-sessions", "from 1 to " + std::to_string(kMaxSessions));
  }
  if (!s.memory_directory.empty() && s.memory_directory != "none" &&
      (s.memory_directory.front() != '/' || s.memory_directory.find('\n') != std::string::npos)) {
    return Bad("memory-directory", "empty, an absolute path, or 'none'");
  }
  if (!s.listen.empty()) {
    if (const auto place = tlib::ParseHostPort(s.listen); !place.ok()) {
      return Bad("listen", "empty, host or host:port: " + std::string(place.status().message()));
    }
  }
  if (!s.rdma.empty() && s.listen.empty()) {
    return Bad("rdma", "empty where listen is: an RDMA device serves other hosts");
  }
  if (!s.rdma_wire.empty() && (!driver::ParseWire(s.rdma_wire).ok() || (s.rdma_wire == "iwarp" && !s.rdma.empty()))) {
    return Bad("rdma-wire", "empty, roce, or iwarp, which an RDMA device does not speak");
  }
  if (!s.tls.empty() && s.tls != "on" && s.tls != "off") {
    return Bad("tls", "empty, on, or off: data may travel outside of TLS where the mount asks for it, too");
  }
  if (s.sample_period_ms < 10 || s.sample_period_ms > 600000) {
    return Bad("sample-period-ms", "from 10 to 600000");
  }
  return Status::Ok();
}

Result<VolumeSettings> ParseSettings(const std::string& text, const std::string& name) {
  RETURN_IF_ERROR(CheckLines(text, name));
  const toml::parse_result parsed = toml::parse(text, name);
  if (!parsed) {
    const auto& begin = parsed.error().source().begin;
    return Status::Error(EINVAL, name + " line " + std::to_string(begin.line) + ": " + WrongInLine(text, begin.line));
  }
  const toml::table& table = parsed.table();
  static constexpr std::array<std::string_view, 16> kKeys = {"capacity",
                                                             "dram-ratio",
                                                             "device",
                                                             "kind",
                                                             "promoter",
                                                             "workers",
                                                             "metadata-threads",
                                                             "metadata-memory",
                                                             "max-sessions",
                                                             "sample-period-ms",
                                                             "memory-directory",
                                                             "listen",
                                                             "rdma",
                                                             "rdma-wire",
                                                             "tls",
                                                             "rnic-threads"};
  for (const auto& [key, value] : table) {
    if (std::find(kKeys.begin(), kKeys.end(), key.str()) == kKeys.end()) {
      return Status::Error(EINVAL, name + ": unknown key '" + std::string(key.str()) + "'; remove its line");
    }
  }
  VolumeSettings s;
  if (!table.contains("capacity")) {
    return Status::Error(EINVAL, name + ": capacity is missing; add a line capacity = BYTES, the size of the volume");
  }
  if (const Status taken = TakeAll(table, s); !taken.ok()) {
    return Status::Error(EINVAL, name + ": " + std::string(taken.message()) + "; put it right there");
  }
  return s;
}

std::string FormatSettings(const VolumeSettings& s) {
  std::ostringstream out;
  out << "# Settings of a termfs volume. Bytes, milliseconds. The server writes what is changed while it runs.\n"
      << "capacity = " << s.capacity_bytes << "\n"
      << "dram-ratio = " << Shortest(s.dram_ratio) << "\n"
      << "device = " << Quoted(s.device) << "  # empty: the file region\n"
      << "kind = " << Quoted(s.kind) << "\n"
      << "promoter = " << Quoted(s.promoter) << "\n"
      << "workers = " << s.workers << "\n"
      << "metadata-threads = " << s.metadata_threads << "\n"
      << "metadata-memory = " << s.metadata_memory_bytes << "\n"
      << "sample-period-ms = " << s.sample_period_ms << "\n"
      << "memory-directory = " << Quoted(s.memory_directory) << "  # empty: a tmpfs of its own in /run/termfs\n";
  if (s.max_sessions != VolumeSettings().max_sessions) {
    out << "max-sessions = " << s.max_sessions << "  # mounts and other clients at a time\n";
  }
  if (!s.listen.empty()) {
    out << "listen = " << Quoted(s.listen) << "\n";
  }
  if (!s.rdma.empty()) {
    out << "rdma = " << Quoted(s.rdma) << "\n";
  }
  if (!s.rdma_wire.empty()) {
    out << "rdma-wire = " << Quoted(s.rdma_wire) << "\n";
  }
  if (s.rnic_threads != 0) {
    out << "rnic-threads = " << s.rnic_threads << "\n";
  }
  if (!s.tls.empty()) {
    out << "tls = " << Quoted(s.tls) << "\n";
  }
  return out.str();
}

Status SaveSettings(const std::string& directory, const VolumeSettings& settings) {
  RETURN_IF_ERROR(CheckSettings(settings));
  return ReplaceFile(directory + "/termfs.toml", FormatSettings(settings));
}

Result<VolumeSettings> LoadSettings(const std::string& directory) {
  const std::string path = directory + "/termfs.toml";
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path));
  return ParseSettings(text, path);
}

}  // namespace termfs::fs::server

// SPDX-License-Identifier: Apache-2.0
//
// The format of a log: blocks of 32 KiB; in them fragments of records, each a header {masked CRC-32C of type and bytes,
// 4; length, 2; type, 1} and its bytes; fewer than 7 bytes at a block's end are padding.
#include "metadata/torn_logs.h"

#include <fcntl.h>
#include <isa-l/crc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/log.h"
#include "base/unique_fd.h"

namespace termfs::metadata {
namespace {

constexpr size_t kBlock = 32768;
constexpr size_t kHeader = 7;
constexpr uint32_t kMaskDelta = 0xa282ead8;
enum Fragment : uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

bool IsWhole(const std::vector<unsigned char>& bytes, size_t at, size_t length) {
  uint32_t stored = 0;
  std::memcpy(&stored, bytes.data() + at, sizeof(stored));
  const uint32_t rotated = stored - kMaskDelta;
  const uint32_t expected = (rotated >> 17) | (rotated << 15);
  auto* const covered = const_cast<unsigned char*>(bytes.data()) + at + 6;  // the library's signature is not const
  return ~crc32_iscsi(covered, static_cast<int>(length + 1), ~0U) == expected;
}

// Where the last whole record ends; nothing when a fragment is of a kind that is not known.
std::optional<size_t> EndOfRecords(const std::vector<unsigned char>& bytes) {
  size_t end = 0;
  bool in_record = false;
  for (size_t at = 0; at + kHeader <= bytes.size();) {
    const size_t left_in_block = kBlock - at % kBlock;
    if (left_in_block < kHeader) {
      at += left_in_block;
      continue;
    }
    const size_t length = bytes[at + 4] | static_cast<size_t>(bytes[at + 5]) << 8;
    const uint8_t type = bytes[at + 6];
    if (kHeader + length > left_in_block || at + kHeader + length > bytes.size() || !IsWhole(bytes, at, length)) {
      return end;
    }
    if (type < kFull || type > kLast) {
      return std::nullopt;
    }
    if (in_record != (type == kMiddle || type == kLast)) {
      return end;
    }
    in_record = type == kFirst || type == kMiddle;
    at += kHeader + length;
    end = in_record ? end : at;
  }
  return end;
}

Result<std::vector<unsigned char>> ReadFile(int fd, const std::string& path) {
  struct stat found {};
  if (fstat(fd, &found) != 0) {
    return ErrnoStatus("examine " + path);
  }
  std::vector<unsigned char> bytes(static_cast<size_t>(found.st_size));
  for (size_t have = 0; have < bytes.size();) {
    const ssize_t got = pread(fd, bytes.data() + have, bytes.size() - have, static_cast<off_t>(have));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return got == 0 ? Status::Error(EIO, "read " + path + ": it became shorter") : ErrnoStatus("read " + path);
    }
    have += static_cast<size_t>(got);
  }
  return bytes;
}

// `drop`: all of it. True: something was cut off.
Result<bool> CutOne(const std::string& path, bool drop) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoStatus("open " + path);
  }
  ASSIGN_OR_RETURN(const std::vector<unsigned char> bytes, ReadFile(fd.get(), path));
  const std::optional<size_t> end = drop ? 0 : EndOfRecords(bytes);
  const bool cut = end.has_value() && *end < bytes.size();
  if (cut) {
    LOG_INFO("{}: the last {} bytes are no whole record, or follow one, and are cut off", path, bytes.size() - *end);
    if (ftruncate(fd.get(), static_cast<off_t>(*end)) != 0) {
      return ErrnoStatus("cut " + path);
    }
  }
  if (fsync(fd.get()) != 0) {
    return ErrnoStatus("sync " + path);
  }
  return cut;
}

}  // namespace

Result<size_t> CutTornLogs(const std::string& folder) {
  std::vector<std::string> logs;
  std::error_code none;  // a folder that is not there has no logs
  for (std::filesystem::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none)) {
    if (entry->path().extension() == ".log") {
      logs.push_back(entry->path().filename());
    }
  }
  bool torn = false;
  const auto number = [](const std::string& name) { return std::strtoull(name.c_str(), nullptr, 10); };
  std::sort(logs.begin(), logs.end(), [&](const auto& a, const auto& b) { return number(a) < number(b); });
  for (const std::string& log : logs) {
    // What follows a torn log was synced no more than that: it goes, too, or the history would have a gap.
    ASSIGN_OR_RETURN(const bool cut, CutOne(std::filesystem::path(folder) / log, torn));
    torn |= cut;
  }
  return logs.size();
}

}  // namespace termfs::metadata

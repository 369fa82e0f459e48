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
#include <span>
#include <utility>
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

size_t LengthAt(const std::vector<unsigned char>& bytes, size_t at) {
  return bytes[at + 4] | static_cast<size_t>(bytes[at + 5]) << 8;
}

bool IsWholeAt(const std::vector<unsigned char>& bytes, size_t at) {
  if (at + kHeader > bytes.size()) {
    return false;
  }
  const size_t length = LengthAt(bytes, at);
  return kHeader + length <= kBlock - at % kBlock && at + kHeader + length <= bytes.size() &&
         IsWhole(bytes, at, length);
}

// A fragment that is whole: the next in its block, if the length at `at` is right, or the first of a later block.
bool AnyWholeBehind(const std::vector<unsigned char>& bytes, size_t at) {
  const size_t next_block = (at / kBlock + 1) * kBlock;
  if (at + kHeader <= bytes.size()) {
    const size_t next = at + kHeader + LengthAt(bytes, at);
    if (next < next_block && IsWholeAt(bytes, next)) {
      return true;
    }
  }
  for (size_t block = next_block; block < bytes.size(); block += kBlock) {
    if (IsWholeAt(bytes, block)) {
      return true;
    }
  }
  return false;
}

struct Records {
  size_t end = 0;  // of the last whole one
  bool damaged = false;
};

// Nothing when a fragment is of a kind that is not known.
std::optional<Records> RecordsOf(const std::vector<unsigned char>& bytes) {
  Records records;
  bool in_record = false;
  for (size_t at = 0; at + kHeader <= bytes.size();) {
    const size_t left_in_block = kBlock - at % kBlock;
    if (left_in_block < kHeader) {
      at += left_in_block;
      continue;
    }
    if (!IsWholeAt(bytes, at)) {
      records.damaged = AnyWholeBehind(bytes, at);
      return records;
    }
    const uint8_t type = bytes[at + 6];
    if (type < kFull || type > kLast) {
      return std::nullopt;
    }
    if (in_record != (type == kMiddle || type == kLast)) {
      records.damaged = true;
      return records;
    }
    in_record = type == kFirst || type == kMiddle;
    at += kHeader + LengthAt(bytes, at);
    records.end = in_record ? records.end : at;
  }
  return records;
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

Result<UniqueFd> OpenLog(const std::string& path, int flags) {
  UniqueFd fd(open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
  return fd.valid() ? Result<UniqueFd>(std::move(fd)) : ErrnoStatus("open " + path);
}

Status SetAside(const std::string& path, std::span<const unsigned char> bytes) {
  const std::string aside = path + ".cut-off";
  unlink(aside.c_str());  // of a repair that was cut short
  const UniqueFd fd(open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return ErrnoStatus("create " + aside);
  }
  while (!bytes.empty()) {
    const ssize_t put = write(fd.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put < 0) {
      return ErrnoStatus("write " + aside);
    }
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  const std::string folder = std::filesystem::path(path).parent_path();
  const UniqueFd name(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fsync(fd.get()) == 0 && name.valid() && fsync(name.get()) == 0 ? Status::Ok() : ErrnoStatus("sync " + aside);
}

// `drop`: all of it, and what there is is kept aside. True: something was cut off.
Result<bool> CutOne(const std::string& path, bool drop) {
  ASSIGN_OR_RETURN(const UniqueFd fd, OpenLog(path, O_RDWR));
  ASSIGN_OR_RETURN(const std::vector<unsigned char> bytes, ReadFile(fd.get(), path));
  const std::optional<Records> records = drop ? Records{} : RecordsOf(bytes);
  const bool cut = records.has_value() && records->end < bytes.size();
  if (cut) {
    const std::span<const unsigned char> behind = std::span(bytes).subspan(records->end);
    if (drop || records->damaged) {
      RETURN_IF_ERROR(SetAside(path, behind));
      LOG_WARNING("{}: {} bytes behind records that are lost are cut off, and kept in {}.cut-off", path, behind.size(),
                  path);
    } else {
      LOG_INFO("{}: the last {} bytes are no whole record, or follow one, and are cut off", path, behind.size());
    }
    if (ftruncate(fd.get(), static_cast<off_t>(records->end)) != 0) {
      return ErrnoStatus("cut " + path);
    }
  }
  if (fsync(fd.get()) != 0) {
    return ErrnoStatus("sync " + path);
  }
  return cut;
}

// From the oldest on. A folder that is not there has none.
std::vector<std::string> LogsIn(const std::string& folder) {
  std::vector<std::string> logs;
  std::error_code none;
  for (std::filesystem::directory_iterator entry(folder, none), end; !none && entry != end; entry.increment(none)) {
    if (entry->path().extension() == ".log") {
      logs.push_back(entry->path());
    }
  }
  const auto number = [](const std::string& path) {
    return std::strtoull(std::filesystem::path(path).stem().c_str(), nullptr, 10);
  };
  std::sort(logs.begin(), logs.end(), [&](const auto& a, const auto& b) { return number(a) < number(b); });
  return logs;
}

}  // namespace

Result<std::vector<DamagedLog>> FindDamagedLogs(const std::string& folder) {
  std::vector<DamagedLog> damaged;
  for (const std::string& path : LogsIn(folder)) {
    ASSIGN_OR_RETURN(const UniqueFd fd, OpenLog(path, O_RDONLY));
    ASSIGN_OR_RETURN(const std::vector<unsigned char> bytes, ReadFile(fd.get(), path));
    const std::optional<Records> records = RecordsOf(bytes);
    if (records.has_value() && records->damaged) {
      damaged.push_back({.path = path, .whole = records->end, .behind = bytes.size() - records->end});
    }
  }
  return damaged;
}

std::string Describe(const DamagedLog& log) {
  return log.path + " is damaged behind its first " + std::to_string(log.whole) +
         " bytes, and there are changes in the " + std::to_string(log.behind) +
         " bytes that follow. Restore the volume from a backup, or do without the last " +
         "changes to names and sizes of files: termfs fsck --repair cuts them off, and keeps a copy";
}

Result<size_t> CutTornLogs(const std::string& folder, Damage damage) {
  if (damage == Damage::kRefuse) {
    ASSIGN_OR_RETURN(const std::vector<DamagedLog> damaged, FindDamagedLogs(folder));
    if (!damaged.empty()) {
      return Status::Error(EBADMSG, Describe(damaged.front()));
    }
  }
  const std::vector<std::string> logs = LogsIn(folder);
  bool torn = false;
  for (const std::string& log : logs) {
    // What follows a torn log was synced no more than that: it goes, too, or the history would have a gap.
    ASSIGN_OR_RETURN(const bool cut, CutOne(log, torn));
    torn |= cut;
  }
  return logs.size();
}

}  // namespace termfs::metadata

// SPDX-License-Identifier: Apache-2.0
#include "mount/mount_table.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

namespace termfs::mount {
namespace {

std::string_view TakeUntil(std::string_view& text, char end) {
  const size_t at = text.find(end);
  const std::string_view taken = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return taken;
}

template <typename Number>
Number ToNumber(std::string_view digits) {
  Number number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

// The kernel writes spaces, line ends and backslashes as three octal digits.
std::string Plain(std::string_view text) {
  const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string plain;
  while (!text.empty()) {
    if (text.size() > 3 && text[0] == '\\' && std::all_of(text.begin() + 1, text.begin() + 4, is_octal)) {
      plain += static_cast<char>((text[1] - '0') * 64 + (text[2] - '0') * 8 + (text[3] - '0'));
      text.remove_prefix(4);
    } else {
      plain += text.front();
      text.remove_prefix(1);
    }
  }
  return plain;
}

bool Lists(std::string_view options, std::string_view option) {
  while (!options.empty()) {
    if (TakeUntil(options, ',') == option) {
      return true;
    }
  }
  return false;
}

std::string NamespaceOf(const std::string& process) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/" + process + "/ns/mnt", error).string();
}

}  // namespace

bool MountEntry::Has(std::string_view option) const { return Lists(options, option) || Lists(super_options, option); }

std::vector<MountEntry> ParseMountTable(std::string_view table) {
  std::vector<MountEntry> entries;
  while (!table.empty()) {
    std::string_view line = TakeUntil(table, '\n');
    MountEntry& entry = entries.emplace_back();
    entry.mount.number = ToNumber<uint64_t>(TakeUntil(line, ' '));
    entry.parent = ToNumber<uint64_t>(TakeUntil(line, ' '));
    const auto major = ToNumber<unsigned>(TakeUntil(line, ':'));
    entry.mount.device = makedev(major, ToNumber<unsigned>(TakeUntil(line, ' ')));
    TakeUntil(line, ' ');  // which part of the file system
    entry.path = Plain(TakeUntil(line, ' '));
    entry.options = TakeUntil(line, ' ');
    while (!line.empty() && TakeUntil(line, ' ') != "-") {
    }
    entry.type = Plain(TakeUntil(line, ' '));
    TakeUntil(line, ' ');  // what is mounted
    entry.super_options = TakeUntil(line, ' ');
  }
  return entries;
}

Result<std::vector<MountEntry>> ReadMountTable(const std::string& process) {
  std::ifstream file("/proc/" + process + "/mountinfo");
  const std::string table{std::istreambuf_iterator<char>(file), {}};
  if (table.empty()) {
    return Status::Error(EIO, "the mount table cannot be read");
  }
  return ParseMountTable(table);
}

Result<MountNumber> MountAt(const std::string& path) {
  struct statx found {};
  // The number comes unasked; a file system would look at what is asked for.
  if (statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT | AT_SYMLINK_NOFOLLOW, 0, &found) != 0) {
    return ErrnoStatus(path);
  }
  if ((found.stx_mask & STATX_MNT_ID) == 0) {
    return Status::Error(ENOTSUP, "the kernel numbers no mounts");
  }
  return MountNumber{.number = found.stx_mnt_id, .device = makedev(found.stx_dev_major, found.stx_dev_minor)};
}

std::optional<std::pair<pid_t, std::string>> MountedInAnotherNamespace(dev_t device) {
  std::set<std::string> seen{"", NamespaceOf("self")};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string process = entry.path().filename().string();
    const auto pid = ToNumber<pid_t>(process);
    if (pid <= 0 || !seen.insert(NamespaceOf(process)).second) {
      continue;
    }
    const Result<std::vector<MountEntry>> table = ReadMountTable(process);
    for (const MountEntry& mounted : table.ok() ? *table : std::vector<MountEntry>{}) {
      if (mounted.mount.device == device) {
        return std::pair(pid, mounted.path);
      }
    }
  }
  return std::nullopt;
}

}  // namespace termfs::mount

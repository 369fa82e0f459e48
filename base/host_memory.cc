// SPDX-License-Identifier: Apache-2.0
#include "base/host_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace termfs {
namespace {

constexpr uint64_t kNoLimit = uint64_t{1} << 62;  // version 1 says "none" by a number near 2^63

// What a version of cgroups calls its files, and the fields of memory.stat that can be dropped.
struct Version {
  const char* file_system;
  std::vector<const char*> limits;
  const char* usage;
  std::vector<std::string_view> droppable;
};

const Version& VersionOf(bool first) {
  static const Version kFirst{
      "cgroup", {"/memory.limit_in_bytes"}, "/memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
  static const Version kSecond{
      "cgroup2", {"/memory.max", "/memory.high"}, "/memory.current", {"inactive_file", "active_file"}};
  return first ? kFirst : kSecond;
}

// A number at the beginning of the file; "max" is none.
std::optional<uint64_t> NumberIn(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

// The sum of the fields of that name, in a file of lines "NAME[:] NUMBER ...".
uint64_t SumOf(const std::string& path, const std::vector<std::string_view>& names) {
  std::ifstream in(path);
  uint64_t sum = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && std::find(names.begin(), names.end(), name) != names.end()) {
      sum += value;
    }
  }
  return sum;
}

// Whether `word` is one of the words between commas.
bool Lists(std::string_view list, std::string_view word) {
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    if (list.substr(at, comma - at) == word) {
      return true;
    }
    at = comma + 1;
  }
  return false;
}

// The memory cgroup of this process below its hierarchy's root: of version 1, or of version 2.
std::optional<std::string> GroupOf(const std::string& root, bool first) {
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t begin = line.find(':');
    const size_t end = begin == std::string::npos ? begin : line.find(':', begin + 1);
    if (end == std::string::npos) {
      continue;
    }
    const std::string_view controllers = std::string_view(line).substr(begin + 1, end - begin - 1);
    if (first ? Lists(controllers, "memory") : controllers.empty()) {
      return line.substr(end + 1);
    }
  }
  return std::nullopt;
}

struct Mounted {
  std::string root;  // the group that is mounted there
  std::string path;
};

// Where that hierarchy is mounted, as /proc/self/mountinfo has it: "ID PARENT DEVICE ROOT PATH ... - TYPE SOURCE
// OPTIONS".
std::optional<Mounted> MountOf(const std::string& root, bool first) {
  std::ifstream in(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) {
      continue;
    }
    std::istringstream tail(line.substr(dash + 3));
    std::string type, source, options;
    tail >> type >> source >> options;
    if (type != VersionOf(first).file_system || (first && !Lists(options, "memory"))) {
      continue;
    }
    std::istringstream head(line);
    std::string id, parent, device;
    Mounted mounted;
    head >> id >> parent >> device >> mounted.root >> mounted.path;
    return mounted;
  }
  return std::nullopt;
}

// `group` as a path below the mount's: "" for the mount itself, which is also all that can be seen of a group
// elsewhere.
std::string BelowMount(const std::string& group, const Mounted& mounted) {
  std::string below = group;
  if (mounted.root != "/") {
    below = group.starts_with(mounted.root) ? group.substr(mounted.root.size()) : "";
  }
  // What begins with another character is that of a group beside the mount's, such as /abcd where it is /abc, or no
  // path.
  const bool inside = below.starts_with('/') && below.find("/..") == std::string::npos;
  return inside && below != "/" ? below : "";
}

// The memory cgroups of this process, in one version's hierarchy.
struct Hierarchy {
  bool first = false;
  std::string mount;  // where it can be seen
  std::string below;  // the nearest group, as a path below that
};

std::vector<Hierarchy> FindHierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  for (const bool first : {true, false}) {
    const std::optional<std::string> group = GroupOf(root, first);
    const std::optional<Mounted> mounted = group.has_value() ? MountOf(root, first) : std::nullopt;
    if (mounted.has_value()) {
      found.push_back({.first = first, .mount = root + mounted->path, .below = BelowMount(*group, *mounted)});
    }
  }
  return found;
}

void AddMachine(const std::string& root, std::vector<MemoryBound>& bounds) {
  std::ifstream in(root + "/proc/meminfo");
  std::optional<uint64_t> total, available;
  for (std::string line; !(total && available) && std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t kibibytes = 0;
    if (!(words >> name >> kibibytes)) {
      continue;
    }
    if (name == "MemTotal:") {
      total = kibibytes << 10;
    } else if (name == "MemAvailable:") {
      available = kibibytes << 10;
    }
  }
  if (total.value_or(0) != 0) {
    bounds.push_back({.of = "the machine", .total = *total, .available = available.value_or(0)});
  }
}

void AddGroups(const Hierarchy& hierarchy, std::vector<MemoryBound>& bounds) {
  const Version& version = VersionOf(hierarchy.first);
  std::string below = hierarchy.below;
  while (true) {
    const std::string path = hierarchy.mount + below;
    uint64_t limit = kNoLimit;
    for (const char* name : version.limits) {
      limit = std::min(limit, NumberIn(path + name).value_or(kNoLimit));
    }
    if (limit < kNoLimit) {
      const uint64_t usage = NumberIn(path + version.usage).value_or(0);
      const uint64_t held = usage - std::min(usage, SumOf(path + "/memory.stat", version.droppable));
      bounds.push_back({.of = "the memory cgroup " + (below.empty() ? "/" : below),
                        .total = limit,
                        .available = limit - std::min(limit, held)});
    }
    if (below.empty()) {
      return;
    }
    below.resize(below.rfind('/'));
  }
}

}  // namespace

std::vector<MemoryBound> MemoryBounds(const std::string& root) {
  static const std::vector<Hierarchy> kOwn = FindHierarchies("");
  std::vector<MemoryBound> bounds;
  AddMachine(root, bounds);
  for (const Hierarchy& hierarchy : root.empty() ? kOwn : FindHierarchies(root)) {
    AddGroups(hierarchy, bounds);
  }
  return bounds;
}

MemoryBound TightestMemory(const std::vector<MemoryBound>& bounds) {
  const auto least = std::min_element(bounds.begin(), bounds.end(), [](const MemoryBound& a, const MemoryBound& b) {
    return a.available < b.available;
  });
  return least != bounds.end() ? *least
                               : MemoryBound{.of = "the machine", .total = UINT64_MAX, .available = UINT64_MAX};
}

}  // namespace termfs

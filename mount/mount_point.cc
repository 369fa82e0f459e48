// SPDX-License-Identifier: Apache-2.0
#include "mount/mount_point.h"

#include <mntent.h>
#include <sys/xattr.h>

#include <charconv>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "mount/front_end.h"

namespace termfs::mount {
namespace {

constexpr size_t kMaxDescription = 64U << 10;  // the kernel's limit for an extended attribute

Status ParseLine(std::string_view line, MountDescription& description) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return Status::Error(EPROTO, "a mount's description of itself");
  }
  const std::string_view name = line.substr(0, space);
  const std::string_view value = line.substr(space + 1);
  const std::pair<std::string_view, std::string*> texts[] = {{"address", &description.address},
                                                             {"transport", &description.transport},
                                                             {"fuse", &description.fuse},
                                                             {"libfuse", &description.libfuse}};
  for (const auto& [text, place] : texts) {
    if (name == text) {
      *place = value;
      return Status::Ok();
    }
  }
  uint64_t number = 0;
  const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
  if (parsed.ec != std::errc()) {
    return Status::Error(EPROTO, "a mount's description of itself");
  }
  if (name == "pid") {
    description.pid = static_cast<int>(number);
  } else {
    description.metrics[std::string(name)] = number;
  }
  return Status::Ok();
}

Status ForEachMount(const std::function<void(const mntent&)>& visit) {
  const std::unique_ptr<FILE, int (*)(FILE*)> table(setmntent("/proc/self/mounts", "re"), &endmntent);
  if (table == nullptr) {
    return ErrnoStatus("read the mount table");
  }
  mntent entry{};
  std::vector<char> line(16U << 10);
  while (getmntent_r(table.get(), &entry, line.data(), static_cast<int>(line.size())) != nullptr) {
    visit(entry);
  }
  return Status::Ok();
}

}  // namespace

Result<MountDescription> DescribeMount(const std::string& path) {
  std::vector<char> buffer(kMaxDescription);
  const ssize_t got = getxattr(path.c_str(), kDescriptionXattr, buffer.data(), buffer.size());
  if (got < 0) {
    if (errno == EOPNOTSUPP || errno == ENODATA) {
      return Status::Error(EINVAL, path + " is not the mount point of a termfs");
    }
    return ErrnoStatus(path);
  }
  MountDescription description;
  std::string_view text(buffer.data(), static_cast<size_t>(got));
  while (!text.empty()) {
    const size_t end = text.find('\n');
    RETURN_IF_ERROR(ParseLine(text.substr(0, end), description));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return description;
}

Result<std::vector<std::pair<std::string, MountDescription>>> DescribeMountsOf(const std::string& address,
                                                                               std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::vector<std::pair<std::string, std::future<Result<MountDescription>>>> asked;
  RETURN_IF_ERROR(ForEachMount([&](const mntent& entry) {
    if (address == entry.mnt_fsname && std::string_view(entry.mnt_type) == "fuse.termfs") {
      // On a thread that is left behind when the mount does not answer.
      std::packaged_task<Result<MountDescription>()> ask(
          [path = std::string(entry.mnt_dir)] { return DescribeMount(path); });
      asked.emplace_back(entry.mnt_dir, ask.get_future());
      std::thread(std::move(ask)).detach();
    }
  }));
  std::vector<std::pair<std::string, MountDescription>> found;
  for (auto& [path, answer] : asked) {
    if (answer.wait_until(deadline) == std::future_status::ready) {
      if (Result<MountDescription> description = answer.get(); description.ok()) {
        found.emplace_back(path, std::move(*description));
      }
    }
  }
  return found;
}

Result<std::string> MountType(const std::string& path) {
  std::string type;
  RETURN_IF_ERROR(ForEachMount([&](const mntent& entry) {
    if (path == entry.mnt_dir) {
      type = entry.mnt_type;
    }
  }));
  return type;
}

}  // namespace termfs::mount

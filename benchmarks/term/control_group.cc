// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/control_group.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/unique_fd.h"

namespace termfs::benchmarks::term {
namespace {

const std::string kMounted = "/sys/fs/cgroup";
constexpr std::array<std::string_view, 2> kVersion1 = {"memory", "blkio"};

Status WriteTo(const std::string& path, const std::string& value) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file.valid() && write(file.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size())
             ? Status::Ok()
             : ErrnoStatus("write " + path);
}

bool OfferedByVersion2(std::string_view controller) {
  std::ifstream controllers(kMounted + "/cgroup.controllers");
  for (std::string name; controllers >> name;) {
    if (name == controller) {
      return true;
    }
  }
  return false;
}

void SweepBelow(const std::string& hierarchy, const std::string& prefix) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(hierarchy, error)) {
    if (entry.path().filename().string().starts_with(prefix)) {
      // Its last process may still be on its way out.
      for (int i = 0; i < 200 && rmdir(entry.path().c_str()) != 0 && errno == EBUSY; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }
}

// "major:minor" of the disk: a partition has no limit of its own.
Result<std::string> DiskBelow(const std::string& directory) {
  struct stat status {};
  if (stat(directory.c_str(), &status) != 0) {
    return ErrnoStatus("look at " + directory);
  }
  const std::string number = fmt::format("{}:{}", major(status.st_dev), minor(status.st_dev));
  std::error_code error;
  const auto device = std::filesystem::canonical("/sys/dev/block/" + number, error);
  if (error) {
    return Status::Error(ENOTSUP, directory + " is not on a block device");
  }
  if (!std::filesystem::exists(device / "partition", error)) {
    return number;
  }
  std::string disk;
  std::ifstream(device.parent_path() / "dev") >> disk;
  return disk;
}

}  // namespace

void ControlGroup::Sweep(const std::string& prefix) {
  SweepBelow(kMounted, prefix);
  for (const std::string_view hierarchy : kVersion1) {
    SweepBelow(fmt::format("{}/{}", kMounted, hierarchy), prefix);
  }
}

Result<ControlGroup::Place> ControlGroup::Make(std::string_view controller) {
  Place place;
  const std::string hierarchy = fmt::format("{}/{}", kMounted, controller == "io" ? "blkio" : controller);
  if (std::filesystem::exists(hierarchy + "/cgroup.procs")) {
    place = {.path = hierarchy + "/" + name_, .version1 = true};
  } else if (OfferedByVersion2(controller)) {
    RETURN_IF_ERROR(WriteTo(kMounted + "/cgroup.subtree_control", fmt::format("+{}", controller)));
    place = {.path = kMounted + "/" + name_, .version1 = false};
  } else {
    return Status::Error(ENOTSUP, fmt::format("there is no controller \"{}\" in {}", controller, kMounted));
  }
  if (std::find(paths_.begin(), paths_.end(), place.path) == paths_.end()) {
    if (mkdir(place.path.c_str(), 0755) != 0) {
      return ErrnoStatus("make " + place.path);
    }
    paths_.push_back(place.path);
  }
  return place;
}

Status ControlGroup::LimitMemory(uint64_t bytes) {
  ASSIGN_OR_RETURN(const Place place, Make("memory"));
  return WriteTo(place.path + (place.version1 ? "/memory.limit_in_bytes" : "/memory.max"), std::to_string(bytes));
}

Status ControlGroup::LimitSsdReads(const std::string& directory, uint64_t per_second) {
  ASSIGN_OR_RETURN(const std::string disk, DiskBelow(directory));
  ASSIGN_OR_RETURN(const Place place, Make("io"));
  return place.version1
             ? WriteTo(place.path + "/blkio.throttle.read_iops_device", fmt::format("{} {}", disk, per_second))
             : WriteTo(place.path + "/io.max",
                       fmt::format("{} riops={}", disk, per_second == 0 ? "max" : std::to_string(per_second)));
}

Status ControlGroup::Enter() const {
  for (const std::string& path : paths_) {
    RETURN_IF_ERROR(WriteTo(path + "/cgroup.procs", std::to_string(getpid())));
  }
  return Status::Ok();
}

}  // namespace termfs::benchmarks::term

// SPDX-License-Identifier: Apache-2.0
#include "base/file_lock.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <vector>

namespace termfs {
namespace {

constexpr std::chrono::seconds kDyingPatience{10};

// Whether the process was killed and is on its way out.
bool IsDying(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  // PID (NAME) STATE ...; the name may hold anything.
  std::istringstream text(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  const std::vector<std::string> fields(std::istream_iterator<std::string>(text), {});
  constexpr size_t kFlags = 6;
  constexpr size_t kPending = 28;
  constexpr uint64_t kExiting = 4;  // the kernel's PF_EXITING
  constexpr uint64_t kKilled = uint64_t{1} << (SIGKILL - 1);
  return fields.size() > kPending && ((std::strtoull(fields[kFlags].c_str(), nullptr, 10) & kExiting) != 0 ||
                                      (std::strtoull(fields[kPending].c_str(), nullptr, 10) & kKilled) != 0);
}

}  // namespace

Result<bool> LockWhenDead(const UniqueFd& fd, const std::string& path, const std::function<pid_t()>& holder) {
  const auto deadline = std::chrono::steady_clock::now() + kDyingPatience;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return ErrnoStatus("lock " + path);
    }
    const pid_t pid = holder();
    if (pid <= 0 || !IsDying(pid) || std::chrono::steady_clock::now() > deadline) {
      // It may have died since it had the lock.
      return flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

pid_t LockedBy(const UniqueFd& fd) {
  struct stat found {};
  if (fstat(fd.get(), &found) != 0) {
    return 0;
  }
  const std::string wanted = fmt::format("{:02x}:{:02x}:{}", major(found.st_dev), minor(found.st_dev), found.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    // NUMBER: FLOCK ADVISORY WRITE PID DEVICE:INODE ...; of who waits an arrow comes before the kind.
    std::istringstream in(line);
    std::string number, kind, mode, access, place;
    pid_t pid = 0;
    if (in >> number >> kind >> mode >> access >> pid >> place && kind == "FLOCK" && place == wanted) {
      return pid;
    }
  }
  return 0;
}

}  // namespace termfs

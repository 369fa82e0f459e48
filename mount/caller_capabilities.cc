// SPDX-License-Identifier: Apache-2.0
#include "mount/caller_capabilities.h"

#include <linux/capability.h>
#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "mount/thread_status.h"

namespace termfs::mount {
namespace {

bool InOwnUserNamespace(pid_t thread) {
  struct stat own {};
  struct stat its {};
  return stat("/proc/self/ns/user", &own) == 0 &&
         stat(("/proc/" + std::to_string(thread) + "/ns/user").c_str(), &its) == 0 && own.st_dev == its.st_dev &&
         own.st_ino == its.st_ino;
}

}  // namespace

bool IsAdministrator(pid_t thread) {
  const Result<std::string> status = ReadThreadStatus(thread);
  return status.ok() && (SetInStatus(*status, "\nCapEff:") & (uint64_t{1} << CAP_SYS_ADMIN)) != 0 &&
         InOwnUserNamespace(thread);
}

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/memory_limit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/unique_fd.h"

namespace termfs::benchmarks::term {
namespace {

struct Hierarchy {
  std::string root;
  const char* limit;
};

Result<Hierarchy> FindHierarchy() {
  const std::string mounted = "/sys/fs/cgroup";
  if (std::filesystem::exists(mounted + "/memory/memory.limit_in_bytes")) {
    return Hierarchy{mounted + "/memory", "memory.limit_in_bytes"};
  }
  std::ifstream controllers(mounted + "/cgroup.controllers");
  for (std::string name; controllers >> name;) {
    if (name == "memory") {
      std::ofstream(mounted + "/cgroup.subtree_control") << "+memory";
      return Hierarchy{mounted, "memory.max"};
    }
  }
  return Status::Error(ENOTSUP, "there is no memory controller in " + mounted +
                                    ": odp, rpc and rpc_buffer cannot be compared without one");
}

Status WriteTo(const std::string& path, uint64_t value) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  const std::string text = std::to_string(value);
  return file.valid() && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())
             ? Status::Ok()
             : ErrnoStatus("write " + path);
}

}  // namespace

Result<MemoryLimit> MemoryLimit::Create(const std::string& name, uint64_t bytes) {
  ASSIGN_OR_RETURN(const Hierarchy hierarchy, FindHierarchy());
  const std::string path = hierarchy.root + "/" + name;
  if (mkdir(path.c_str(), 0755) != 0) {
    return ErrnoStatus("make " + path);
  }
  RETURN_IF_ERROR(WriteTo(path + "/" + hierarchy.limit, bytes));
  return MemoryLimit(path);
}

void MemoryLimit::Sweep(const std::string& prefix) {
  const auto hierarchy = FindHierarchy();
  if (!hierarchy.ok()) {
    return;
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(hierarchy->root, error)) {
    if (entry.path().filename().string().starts_with(prefix)) {
      // Its last process may still be on its way out.
      for (int i = 0; i < 200 && rmdir(entry.path().c_str()) != 0 && errno == EBUSY; i++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }
}

Status MemoryLimit::Enter() const { return WriteTo(path_ + "/cgroup.procs", static_cast<uint64_t>(getpid())); }

}  // namespace termfs::benchmarks::term

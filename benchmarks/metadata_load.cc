// SPDX-License-Identifier: Apache-2.0
//
// metadata_load DIRECTORY FILES: makes so many empty files in a fresh directory there, stats and unlinks each. Prints
// JSON: operations a second of create (open and close), stat and unlink.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace {

// Calls `operation` for the name of each file; calls a second.
template <typename Operation>
double Rate(const std::string& directory, int files, const char* what, Operation&& operation) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < files; i++) {
    const std::string path = directory + "/f" + std::to_string(i);
    if (operation(path.c_str()) != 0) {
      std::fprintf(stderr, "metadata_load: %s %s: %s\n", what, path.c_str(), std::strerror(errno));
      std::exit(1);
    }
  }
  return files / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int Create(const char* path) {
  const int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  return fd < 0 ? -1 : close(fd);
}

int Stat(const char* path) {
  struct stat st {};
  return stat(path, &st);
}

}  // namespace

int main(int argc, char** argv) {
  const int files = argc == 3 ? std::atoi(argv[2]) : 0;  // NOLINT(cert-err34-c): zero is refused
  std::string directory = argc == 3 ? std::string(argv[1]) + "/load-XXXXXX" : "";
  if (files <= 0) {
    std::fprintf(stderr, "usage: metadata_load DIRECTORY FILES\n");
    return 2;
  }
  if (mkdtemp(directory.data()) == nullptr) {
    std::fprintf(stderr, "metadata_load: %s: %s\n", directory.c_str(), std::strerror(errno));
    return 1;
  }
  const double create = Rate(directory, files, "create", &Create);
  const double stat = Rate(directory, files, "stat", &Stat);
  const double unlinked = Rate(directory, files, "unlink", [](const char* path) { return unlink(path); });
  std::printf("{\"create\": %.0f, \"stat\": %.0f, \"unlink\": %.0f}\n", create, stat, unlinked);
  return rmdir(directory.c_str()) == 0 ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
//
// metadata_load DIRECTORY FILES [BYTES]: makes so many files in a fresh directory there, stats and unlinks each.
// Without BYTES they are empty; with it each is given so many, and once everything has been looked at, each is looked
// at again. Prints JSON: operations a second of create (open, write and close), stat and unlink, and with BYTES of what
// a kernel may have cached: stat_again, open_again (and close), read_again (of a file that is opened, read and closed),
// and bytes_again (the same bytes of one open file, a page at a time).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr size_t kPage = 4096;

[[noreturn]] void Fail(const char* what, const std::string& path) {
  std::fprintf(stderr, "metadata_load: %s %s: %s\n", what, path.c_str(), std::strerror(errno));
  std::exit(1);
}

// Calls `operation` so often; calls a second.
template <typename Operation>
double RateOf(int calls, Operation&& operation) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; i++) {
    operation(i);
  }
  return calls / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string PathOf(const std::string& directory, int file) { return directory + "/f" + std::to_string(file); }

// For the name of each file.
template <typename Operation>
double Rate(const std::string& directory, int files, const char* what, Operation&& operation) {
  return RateOf(files, [&](int i) {
    const std::string path = PathOf(directory, i);
    if (operation(path.c_str()) != 0) {
      Fail(what, path);
    }
  });
}

int Create(const char* path, const std::vector<char>& bytes) {
  const int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    return -1;
  }
  return close(fd);
}

int Stat(const char* path) {
  struct stat st {};
  return stat(path, &st);
}

int Open(const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  return fd < 0 ? -1 : close(fd);
}

int Read(const char* path, std::vector<char>& into) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || read(fd, into.data(), into.size()) != static_cast<ssize_t>(into.size())) {
    return -1;
  }
  return close(fd);
}

// Pages of the first file, over and over.
double ReadPages(const std::string& directory, size_t bytes, int calls) {
  const std::string path = PathOf(directory, 0);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto pages = static_cast<int>(std::max<size_t>(bytes / kPage, 1));
  std::vector<char> page(std::min(bytes, kPage));
  const auto read_one = [&](int i) {
    if (pread(fd, page.data(), page.size(), static_cast<off_t>(kPage) * (i % pages)) !=
        static_cast<ssize_t>(page.size())) {
      Fail("read", path);
    }
  };
  RateOf(pages, read_one);
  const double rate = RateOf(calls, read_one);
  close(fd);
  return rate;
}

}  // namespace

int main(int argc, char** argv) {
  const bool usable = argc == 3 || argc == 4;
  const int files = usable ? std::atoi(argv[2]) : 0;     // NOLINT(cert-err34-c): zero is refused
  const int bytes = argc == 4 ? std::atoi(argv[3]) : 0;  // NOLINT(cert-err34-c): here, too
  std::string directory = usable ? std::string(argv[1]) + "/load-XXXXXX" : "";
  if (files <= 0 || (argc == 4 && bytes <= 0)) {
    std::fprintf(stderr, "usage: metadata_load DIRECTORY FILES [BYTES]\n");
    return 2;
  }
  if (mkdtemp(directory.data()) == nullptr) {
    std::fprintf(stderr, "metadata_load: %s: %s\n", directory.c_str(), std::strerror(errno));
    return 1;
  }
  std::vector<char> contents(static_cast<size_t>(bytes), 'x');
  const double create = Rate(directory, files, "create", [&](const char* path) { return Create(path, contents); });
  const double stat = Rate(directory, files, "stat", &Stat);
  std::string again;
  if (bytes > 0) {
    const auto read = [&](const char* path) { return Read(path, contents); };
    Rate(directory, files, "read", read);  // so that it is known
    const double stat_again = Rate(directory, files, "stat", &Stat);
    const double open_again = Rate(directory, files, "open", &Open);
    const double read_again = Rate(directory, files, "read", read);
    const double bytes_again = ReadPages(directory, contents.size(), 20 * files);
    char text[200];
    std::snprintf(text, sizeof(text),
                  "\"stat_again\": %.0f, \"open_again\": %.0f, \"read_again\": %.0f, \"bytes_again\": %.0f, ",
                  stat_again, open_again, read_again, bytes_again);
    again = text;
  }
  const double unlinked = Rate(directory, files, "unlink", [](const char* path) { return unlink(path); });
  std::printf("{\"create\": %.0f, \"stat\": %.0f, %s\"unlink\": %.0f}\n", create, stat, again.c_str(), unlinked);
  return rmdir(directory.c_str()) == 0 ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
//
// followed_file WRITTEN READ SECONDS RECORDS: a thread appends records to the file WRITTEN, and empties it after each
// RECORDS of them (0: never). Another one follows READ, the same file, by a descriptor that it has open for reading all
// the time: it reads again and again, and whatever it is shown was written, so it has no byte that is zero.
//
// Prints a line; exit code 1 when something else was read, 2 when something else failed.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/e2e/must.h"

namespace {

using termfs::tests::Must;

std::atomic<bool> stop{false};
long appended = 0;  // by the writer, and read when it has ended

void Append(const char* path, long records) {
  const int file = Must(open(path, O_WRONLY | O_APPEND), path);
  for (long i = 1; !stop; i++) {
    constexpr char kRecord[] = "<line>";
    Must(write(file, kRecord, sizeof(kRecord) - 1), "append");
    appended++;
    if (records != 0 && i % records == 0) {
      Must(ftruncate(file, 0), "empty the file");
    }
  }
  close(file);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: followed_file WRITTEN READ SECONDS RECORDS\n");
    return 2;
  }
  Must(open(argv[1], O_WRONLY | O_CREAT, 0644), argv[1]);
  const int file = Must(open(argv[2], O_RDONLY), argv[2]);
  std::thread writer(Append, argv[1], std::atol(argv[4]));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atol(argv[3]));
  std::array<char, 8192> read_bytes{};
  long reads = 0;
  long wrong = 0;
  for (off_t at = 0; std::chrono::steady_clock::now() < end; reads++) {
    const auto bytes = static_cast<size_t>(Must(pread(file, read_bytes.data(), read_bytes.size(), at), "read"));
    wrong += std::find(read_bytes.begin(), read_bytes.begin() + static_cast<std::ptrdiff_t>(bytes), '\0') !=
                     read_bytes.begin() + static_cast<std::ptrdiff_t>(bytes)
                 ? 1
                 : 0;
    at = bytes == read_bytes.size() ? at + 4096 : bytes == 0 ? 0 : at;
  }
  stop = true;
  writer.join();
  std::printf("%ld appended, %ld reads, %ld of them with bytes that were never written\n", appended, reads, wrong);
  return wrong == 0 ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
//
// shown_sizes WRITTEN READ append|cut|both READERS SECONDS: a process makes the file WRITTEN longer, cuts it off, or
// does one of the two at random, again and again, and says in shared memory when a change begins and when it has
// returned. READERS processes have READ, the same file on another mount, open for reading all the time and read its
// end. What each read gets must fit a size that the file had between the last change that had returned before the read
// and the last that had begun when it returned; and where nothing changed meanwhile there is no zero in it, as none is
// written.
//
// Prints a line; exit code 1 when a read did not fit, 2 when something else failed.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "tests/e2e/must.h"

namespace {

using termfs::tests::Must;

using std::chrono::steady_clock;

constexpr size_t kMostChanges = 1U << 20;
constexpr size_t kAsked = 16384;
constexpr uint64_t kBefore = 8192;        // so far before the end a read begins
constexpr uint64_t kMostAppended = 4096;  // bytes
constexpr uint64_t kLongest = 1U << 22;   // then it is cut
constexpr std::chrono::milliseconds kReadersBegin{20};

struct Shared {
  std::atomic<uint64_t> begun{0};  // changes
  std::atomic<uint64_t> returned{0};
  std::atomic<bool> ends{false};
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> faults{0};
  std::array<std::atomic<uint64_t>, kMostChanges> sizes{};  // after so many changes
};

void Read(const char* path, Shared& shared) {
  const int fd = Must(open(path, O_RDONLY), path);
  std::vector<char> bytes(kAsked);
  while (!shared.ends) {
    const uint64_t first = shared.returned;
    const uint64_t known = shared.sizes[first];
    const uint64_t offset = known > kBefore ? known - kBefore : 0;
    const auto got = static_cast<uint64_t>(Must(pread(fd, bytes.data(), kAsked, static_cast<off_t>(offset)), "pread"));
    const uint64_t last = shared.begun;
    uint64_t least = shared.sizes[first];
    uint64_t most = least;
    for (uint64_t change = first; change <= last; ++change) {
      least = std::min<uint64_t>(least, shared.sizes[change]);
      most = std::max<uint64_t>(most, shared.sizes[change]);
    }
    const uint64_t end = offset + got;
    const bool too_short = end < std::min(std::max(least, offset), offset + kAsked);
    const bool too_long = got > 0 && end > most;
    // Beside a change zeros may stand where bytes are going.
    const uint64_t sure = first == last ? got : least > offset ? std::min(got, least - offset) : 0;
    const bool zeros = std::memchr(bytes.data(), 0, sure) != nullptr;
    ++shared.reads;
    if ((too_short || too_long || zeros) && shared.faults++ < 3) {
      std::printf(
          "  %lu bytes at %lu after %lu changes had returned and before more than %lu had begun, sizes %lu to %lu%s\n",
          got, offset, first, last, least, most, zeros ? ", with zeros" : "");
    }
  }
  close(fd);
}

void Change(const char* path, std::string_view what, double seconds, Shared& shared) {
  const int fd = Must(open(path, O_RDWR), path);
  const std::vector<char> bytes(kMostAppended, 'x');
  std::mt19937 random(1);
  const auto until = steady_clock::now() + std::chrono::duration<double>(seconds);
  uint64_t size = 0;
  for (uint64_t change = 1; steady_clock::now() < until && change < kMostChanges; ++change) {
    const bool cuts = size > kLongest || (what == "cut" && change % 2 == 0) || (what == "both" && random() % 3 == 0);
    const uint64_t now = cuts ? (size > 0 ? random() % size : 0) : size + 1 + random() % kMostAppended;
    shared.sizes[change] = now;
    shared.begun = change;
    if (cuts) {
      Must(ftruncate(fd, static_cast<off_t>(now)), "ftruncate");
    } else {
      Must(pwrite(fd, bytes.data(), now - size, static_cast<off_t>(size)), "pwrite");
    }
    shared.returned = change;
    size = now;
  }
  close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: shown_sizes WRITTEN READ append|cut|both READERS SECONDS\n");
    return 2;
  }
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    return 2;
  }
  auto& shared = *new (memory) Shared;
  close(Must(open(argv[1], O_CREAT | O_RDWR | O_TRUNC, 0644), argv[1]));
  const int readers = std::atoi(argv[4]);
  for (int reader = 0; reader < readers; ++reader) {
    if (Must(fork(), "fork") == 0) {
      Read(argv[2], shared);
      std::fflush(stdout);
      _exit(0);
    }
  }
  usleep(std::chrono::microseconds(kReadersBegin).count());
  Change(argv[1], argv[3], std::atof(argv[5]), shared);
  shared.ends = true;
  int worst = 0;
  for (int status; wait(&status) > 0;) {
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  std::printf("%s, %d readers: %lu changes, %lu reads, %lu at fault\n", argv[3], readers, shared.returned.load(),
              shared.reads.load(), shared.faults.load());
  return worst != 0 ? worst : shared.faults > 0 ? 1 : 0;
}

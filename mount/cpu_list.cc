// SPDX-License-Identifier: Apache-2.0
#include "mount/cpu_list.h"

#include <pthread.h>
#include <sched.h>

#include <charconv>
#include <fstream>

#include "base/log.h"

namespace termfs::mount {
namespace {

constexpr unsigned kMostCpus = 1U << 16;

// Takes a number off the front of `text`.
bool TakeNumber(std::string_view& text, unsigned& number) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || number >= kMostCpus) {
    return false;
  }
  text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
  return true;
}

bool Take(std::string_view& text, char c) {
  if (!text.starts_with(c)) {
    return false;
  }
  text.remove_prefix(1);
  return true;
}

}  // namespace

Result<std::vector<unsigned>> ParseCpuList(std::string_view text) {
  const Status malformed = Status::Error(EPROTO, "a list of CPUs makes no sense");
  while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) {
    text.remove_suffix(1);
  }
  std::vector<unsigned> cpus;
  do {
    unsigned first = 0;
    if (!TakeNumber(text, first)) {
      return malformed;
    }
    unsigned last = first;
    if (Take(text, '-') && !TakeNumber(text, last)) {
      return malformed;
    }
    if (last < first || (!cpus.empty() && first <= cpus.back())) {
      return malformed;
    }
    for (unsigned cpu = first; cpu <= last; cpu++) {
      cpus.push_back(cpu);
    }
  } while (Take(text, ','));
  return text.empty() ? Result<std::vector<unsigned>>(std::move(cpus)) : malformed;
}

Result<std::vector<unsigned>> ReadCpuList(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) {
    return ErrnoStatus("read " + path);
  }
  return ParseCpuList(line);
}

// To the CPU whose requests it answers. One that is not ours to run on (or is not there now) has to come to us.
void BindToCpu(unsigned cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) != 0) {
    LOG_DEBUG("CPU {} is not for this process; its FUSE requests are answered by another", cpu);
  }
}

}  // namespace termfs::mount

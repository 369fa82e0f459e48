// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/cpus.h"

#include <pthread.h>
#include <sched.h>

#include "base/log.h"

namespace termfs::tlib::server {

std::vector<int> CpusOfThisThread(size_t most) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE && cpus.size() < most; cpu++) {
      if (CPU_ISSET(cpu, &set)) {
        cpus.push_back(cpu);
      }
    }
  }
  return cpus;
}

void BindThisThread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (const int error = pthread_setaffinity_np(pthread_self(), sizeof(set), &set); error != 0) {
    LOG_DEBUG("a thread cannot be bound to CPU {}: errno {}", cpu, error);
  }
}

}  // namespace termfs::tlib::server

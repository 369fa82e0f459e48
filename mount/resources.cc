// SPDX-License-Identifier: Apache-2.0
#include "mount/resources.h"

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace termfs::mount {
namespace {

[[noreturn]] void EndBecause(const char* text) {
  std::signal(SIGABRT, [](int) { _exit(1); });  // another thread may fail for the same lack, and abort
  static thread_local bool ending = false;
  if (!std::exchange(ending, true)) {
    std::fprintf(stderr, "termfs: %s\n", text);
    LOG_ERROR("{}", text);  // may want memory, and then comes here again
  }
  _exit(1);  // other threads may be anywhere: no destructor can run
}

[[noreturn]] void OnTerminate() {
  if (const std::exception_ptr thrown = std::current_exception(); thrown != nullptr) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      EndBecause("out of memory: give it more, or use fewer threads and a smaller DRAM tier");
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::resource_unavailable_try_again) {
        EndBecause("no thread can be started: raise the limits of memory and processes, or use fewer threads");
      }
    } catch (...) {  // a programmer's error: leave a core
    }
  }
  std::abort();
}

}  // namespace

void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
      LOG_WARNING("{}", ErrnoStatus("raise the limit of open files").ToString());
    }
  }
}

void EndCleanlyWithoutResources() { std::set_terminate(&OnTerminate); }

}  // namespace termfs::mount

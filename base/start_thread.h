// SPDX-License-Identifier: Apache-2.0
//
// StartThread: a thread that is begun while something is served. A limit of memory or of processes may be reached then,
// which std::thread reports by an exception; whoever is served already must not end for it. Where nothing is served
// yet, std::thread will do.
//
// Thread-safety: any thread. Ownership: as std::thread.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/result.h"

namespace termfs {

// EAGAIN: the limit is reached; nothing has begun, and it may go better later.
template <typename Function>
Result<std::thread> StartThread(Function&& function) {
  try {
    return std::thread(std::forward<Function>(function));
  } catch (const std::system_error& error) {
    return Status::Errno(error.code().value(),
                         "no thread can be started: raise the limits of memory and processes, or use fewer threads");
  }
}

}  // namespace termfs

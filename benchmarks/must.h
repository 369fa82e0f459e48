// SPDX-License-Identifier: Apache-2.0
//
// Must: the value, or the end of a benchmark that cannot go on; its name and the error go to stderr, exit code 1.
#pragma once

#include <errno.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/result.h"

namespace termfs::benchmarks {

[[noreturn]] inline void Die(const Status& status) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, status.ToString().c_str());
  std::exit(1);
}

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) {
    Die(result.status());
  }
  return std::move(result).value();
}

inline void Must(const Status& status) {
  if (!status.ok()) {
    Die(status);
  }
}

}  // namespace termfs::benchmarks

// SPDX-License-Identifier: Apache-2.0
//
// Must: the result of a system call, or the end of a program that cannot go on; exit code 2, as nothing was found out.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace termfs::tests {

template <typename T>
T Must(T result, const char* what) {
  if (result < 0) {
    std::perror(what);
    std::exit(2);
  }
  return result;
}

}  // namespace termfs::tests

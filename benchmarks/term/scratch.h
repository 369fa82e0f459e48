// SPDX-License-Identifier: Apache-2.0
//
// What a benchmark leaves behind is put away however it ends: it runs in a process of its own, and this one waits.
//
// Thread-safety: none. Errors: end the benchmark.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace termfs::benchmarks::term {

// A new directory in `parent`, whose name begins with `prefix`.
std::string MakeScratch(const std::string& parent, const std::string& prefix);

// Runs `body` in a new process, which ends with all of its own when it returns or when this one is told to end; then
// `after`; then removes `directories`. Returns the exit code. REQUIRES: this process has one thread.
int RunAndPutAway(const std::vector<std::string>& directories, const std::function<void()>& body,
                  const std::function<void()>& after);

}  // namespace termfs::benchmarks::term

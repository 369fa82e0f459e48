// SPDX-License-Identifier: Apache-2.0
//
// The CPUs that a server's threads may run on.
//
// Thread-safety: any thread; each call is about the caller.
#pragma once

#include <cstddef>
#include <vector>

namespace termfs::tlib::server {

// At most `most` of them; none when they cannot be found out.
std::vector<int> CpusOfThisThread(size_t most);
// When it may not, it runs where it did.
void BindThisThread(int cpu);

}  // namespace termfs::tlib::server

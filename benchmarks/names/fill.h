// SPDX-License-Identifier: Apache-2.0
//
// Makes the files of a volume that is not served, as records of the metadata layer in its store. A directory is made as
// a server makes one; its 1,000 files go in by one transaction, so that ten million are a matter of minutes.
//
// Errors: end the benchmark.
#pragma once

#include <cstdint>
#include <string>

namespace termfs::benchmarks::names {

// REQUIRES: `volume` is a volume's directory, newly formatted.
void Fill(const std::string& volume, uint64_t files);

}  // namespace termfs::benchmarks::names

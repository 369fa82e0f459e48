// SPDX-License-Identifier: Apache-2.0
//
// SparseRegion: the files of a region whose SSD is a sparse file, so that a large one costs no space.
//
// Thread-safety: free functions. Errors: end the benchmark.
#pragma once

#include <string>

#include "benchmarks/grow/settings.h"
#include "tlib/server/server.h"

namespace termfs::benchmarks::grow {

// A region of `bytes` with its files in `directory`, its tier's in `memory_directory`.
tlib::server::RegionOptions OptionsFor(const Settings& settings, uint64_t bytes, const std::string& directory,
                                       const std::string& memory_directory);
// As Server::FormatRegion, but nothing is allocated.
void MakeSparse(const tlib::server::RegionOptions& options);
// Says of every page that the SSD holds it, as of a volume that is full.
void MarkAllWritten(const tlib::server::RegionOptions& options);

}  // namespace termfs::benchmarks::grow

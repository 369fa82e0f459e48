// SPDX-License-Identifier: Apache-2.0
//
// The tree that names_bench makes and measures: so many empty files, 1,000 in each directory of the root.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>

namespace termfs::benchmarks::names {

inline constexpr uint64_t kNamesPerDirectory = 1000;

inline uint64_t DirectoriesOf(uint64_t files) { return (files + kNamesPerDirectory - 1) / kNamesPerDirectory; }
inline std::string DirectoryName(uint64_t directory) { return fmt::format("directory-{:05}", directory); }
inline std::string FileName(uint64_t file) { return fmt::format("file-{:08}.dat", file); }

}  // namespace termfs::benchmarks::names

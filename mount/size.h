// SPDX-License-Identifier: Apache-2.0
//
// Numbers as people write them. Errors: EINVAL with a text that says what is allowed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace termfs::mount {

// Bytes: "4096", "8G", "1.5T", "512KiB", "10 MB"; units K, M, G, T, P are powers of 1024, with or without "B" or "iB".
Result<uint64_t> ParseSize(std::string_view text);
// A ratio within [0.01, 1]: "0.5", "1".
Result<double> ParseRatio(std::string_view text);
// A whole number within [low, high].
Result<uint64_t> ParseCount(std::string_view text, uint64_t low, uint64_t high);

// "1 inode", "2 inodes".
std::string FormatCount(uint64_t count, std::string_view one, std::string_view many);
// For people, three digits: "1.50 GiB", "512 B".
std::string FormatSize(uint64_t bytes);

}  // namespace termfs::mount

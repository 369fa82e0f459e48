// SPDX-License-Identifier: Apache-2.0
//
// Numbers of bytes in errors and logs.
#pragma once

#include <cstdint>
#include <string>

namespace termfs {

// As a person writes it, and exact where that is short: "16 MiB", "2 GiB", "1025 MiB", "512 bytes"; else "1.91 MiB".
std::string ReadableSize(uint64_t bytes);

}  // namespace termfs

// SPDX-License-Identifier: Apache-2.0
//
// The kernel's notation for sets of CPUs: "0-3,8"; and who runs where. Thread-safety: functions without state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace termfs::mount {

// Ascending, without repetition, not empty. EPROTO: something else.
Result<std::vector<unsigned>> ParseCpuList(std::string_view text);
// Of the file `path`.
Result<std::vector<unsigned>> ReadCpuList(const std::string& path);

// The calling thread runs on that CPU only, if it may.
void BindToCpu(unsigned cpu);

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// A personality of filebench: which files there are, and what each thread does with them over and over. All of them are
// in benchmarks/filebench/personalities.toml, which also says what the operations mean.
//
// Thread-safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace termfs::benchmarks {

enum class Action : uint8_t { kCreate, kOpen, kDelete, kStat, kClose, kSync, kReadWhole, kWriteWhole, kAppendRandom };

// By Action.
inline constexpr std::array<std::string_view, 9> kActionNames = {
    "create", "open", "delete", "stat", "close", "sync", "read_whole", "write_whole", "append_random"};
inline constexpr int kDescriptors = 8;

struct FileSetSpec {
  std::string name;
  uint64_t entries = 0;  // 0: the personality's number of files
  uint64_t width = 0;    // entries of a directory
  double mean = 0;       // bytes of a file
  double gamma = 0;      // shape of the distribution; 0: all are of the mean
  unsigned present = 0;  // percent
};

struct Operation {
  Action action = Action::kStat;
  int files = -1;   // index of the file set, or none
  int fd = -1;      // below kDescriptors, or none
  int source = -1;  // likewise
  uint64_t bytes = 0;
};

struct Personality {
  std::string name;
  uint64_t threads = 0;
  uint64_t files = 0;
  bool ends_with_files = false;
  std::vector<FileSetSpec> file_sets;
  std::vector<Operation> operations;  // one turn of a thread
};

std::vector<std::string> PersonalityNames();
Result<Personality> FindPersonality(std::string_view name);

}  // namespace termfs::benchmarks

// SPDX-License-Identifier: Apache-2.0
#include "fs/server/kept_memory.h"

#include <optional>
#include <sstream>
#include <string>

namespace termfs::fs::server {

namespace {

struct Kept {
  uint64_t since = 0;
  uint64_t memory = 0;
};

std::optional<Kept> Parse(const std::string& text) {
  std::istringstream words(text);
  Kept kept;
  std::string more;
  if (!(words >> kept.since >> kept.memory) || words >> more) {
    return std::nullopt;
  }
  return kept;
}

Status Save(const VolumePaths& paths, const Kept& kept) {
  return ReplaceFile(paths.kept, std::to_string(kept.since) + " " + std::to_string(kept.memory) + "\n");
}

// Nothing: the file is absent or damaged.
Result<std::optional<Kept>> Load(const VolumePaths& paths) {
  const Result<std::string> text = ReadSmallFile(paths.kept);
  if (!text.ok() && text.status().code() != EUCLEAN) {
    return text.status();
  }
  return text.ok() ? Parse(*text) : std::nullopt;
}

MemoryLeft LeftOf(const std::optional<Kept>& last, uint64_t memory) {
  if (!last) {
    return MemoryLeft::kNone;
  }
  return last->memory == 0 ? MemoryLeft::kNoNeed : last->memory == memory ? MemoryLeft::kAll : MemoryLeft::kNone;
}

}  // namespace

Result<MemoryLeft> FindMemory(const VolumePaths& paths, uint64_t memory) {
  ASSIGN_OR_RETURN(const auto last, Load(paths));
  return LeftOf(last, memory);
}

Result<uint64_t> NoteMemory(const VolumePaths& paths, uint64_t epoch, uint64_t memory) {
  ASSIGN_OR_RETURN(const auto last, Load(paths));
  const bool kept = LeftOf(last, memory) != MemoryLeft::kNone;
  const Kept now{.since = kept && last->since < epoch ? last->since : epoch, .memory = memory};
  RETURN_IF_ERROR(Save(paths, now));
  return now.since;
}

Status NoteCleanStop(const VolumePaths& paths, uint64_t kept_since) {
  return Save(paths, {.since = kept_since, .memory = 0});
}

}  // namespace termfs::fs::server

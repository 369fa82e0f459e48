// SPDX-License-Identifier: Apache-2.0
//
// Since which start of a volume's server no write that returned has been lost. A server that was killed leaves its
// memory to the next one, or does not (a reboot, memory-directory = "none"); one that was stopped had flushed it all.
// The file `kept` in the volume's directory says, in a line, that start and the memory in which there may be writes
// that the SSD does not have; 0: in none.
//
//   NoteMemory, before the first request is served      "START MEMORY"
//   NoteCleanStop, after everything was flushed         "START 0"
//
// A server that dies in between, at whatever instant, leaves a file that makes the next one find a loss where there was
// one. It may find one where there was none only when it died in the last moments of a clean stop.
//
// Thread-safety: one server at a time, by the volume's lock.
// Errors:        those of the file system; a file that is damaged or absent counts as a loss.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "fs/server/volume_directory.h"

namespace termfs::fs::server {

enum class MemoryLeft {
  kNone,    // what was written and not flushed is lost
  kAll,     // it is in `memory`
  kNoNeed,  // the last server was stopped, and had flushed it
};
// Before NoteMemory.
Result<MemoryLeft> FindMemory(const VolumePaths& paths, uint64_t memory);

// For the start `epoch`, whose server uses `memory` (tlib::server::Server::memory). Returns the start asked for.
Result<uint64_t> NoteMemory(const VolumePaths& paths, uint64_t epoch, uint64_t memory);
Status NoteCleanStop(const VolumePaths& paths, uint64_t kept_since);

}  // namespace termfs::fs::server

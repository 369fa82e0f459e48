// SPDX-License-Identifier: Apache-2.0
//
// ReadsUnderWay: what a lane knows of its reads that have begun and not ended. Each is read by a map of its file, in as
// many pieces as that has segments there. A read is *void* when nobody reads it: the channel has dropped it, or the map
// did not last until its bytes were there. It is begun again then, by FileSystem::AwaitReads or PollReads.
//
// Thread-safety: the lane's thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fs/client/file_system.h"

namespace termfs::fs::client {

struct ReadUnderWay {
  static constexpr uint64_t kVoid = ~uint64_t{0};
  static constexpr uint64_t kNoGeneration = ~uint64_t{0};

  FileRead what;
  std::chrono::steady_clock::time_point begin{};  // the clock's start: it is not timed
  int attempts = 0;                               // by maps that did not last
  uint64_t epoch = 0;                             // of the map
  size_t length = 0;                              // bytes it will have
  size_t pieces = 0;                              // still to come
  // In which it was begun; others, and the time starts anew. No lane's: the server has answered, or is lost.
  uint64_t generation = kNoGeneration;
  std::chrono::steady_clock::time_point since{};  // it has been under way in that generation
  uint64_t voids = kVoid;                         // the lane's when it was begun; with others it is void
};

struct ReadsUnderWay {
  // Whose place has that byte of the lane's places; reads.end(): nobody's.
  std::vector<ReadUnderWay>::iterator Of(size_t byte) {
    return std::find_if(reads.begin(), reads.end(), [byte](const ReadUnderWay& candidate) {
      return byte - candidate.what.place < candidate.what.size;
    });
  }

  std::vector<ReadUnderWay> reads;
  std::vector<std::byte*> pieces;  // the channel's last answer; kept for its memory
};

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
//
// ChunkRetirer: takes the memory of frames back that clients READ by validation. Chunks that a smaller tier leaves
// empty are revoked, together as they come; the clients are told, and have acknowledged or are gone; then the memory is
// deregistered and given back. A chunk that the tier grows into again meanwhile stays.
//
// Thread-safety: Kick: any thread; Stop in a task, once.
// Errors:        while clients cannot be told the memory stays, and it is tried again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "base/result.h"
#include "tlib/server/frames.h"
#include "tlib/server/region.h"

namespace termfs::tlib::server {

class ChunkRetirer {
 public:
  ChunkRetirer(Frames& frames, Spawner spawn, TellReaders tell)
      : frames_(frames), spawn_(std::move(spawn)), tell_(std::move(tell)) {}
  ChunkRetirer(const ChunkRetirer&) = delete;
  ChunkRetirer& operator=(const ChunkRetirer&) = delete;

  // Chunks may be waiting. Does not block.
  void Kick();
  void Stop();

 private:
  void Run();

  Frames& frames_;
  const Spawner spawn_;
  const TellReaders tell_;
  std::atomic<bool> running_{false};
  std::atomic<bool> stopping_{false};
};

}  // namespace termfs::tlib::server

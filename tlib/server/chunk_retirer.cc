// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/chunk_retirer.h"

#include <chrono>

#include "base/log.h"
#include "tlib/server/task.h"

namespace termfs::tlib::server {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetry{200};
constexpr std::chrono::milliseconds kLook{2};

}  // namespace

void ChunkRetirer::Kick() {
  if (frames_.retiring() != 0 && !stopping_.load() && !running_.exchange(true)) {
    spawn_([this] { Run(); });
  }
}

void ChunkRetirer::Run() {
  while (!stopping_.load()) {
    const uint64_t epoch = frames_.BeginRetiring();
    if (epoch == 0) {
      break;
    }
    if (const Status told = tell_ ? tell_(epoch) : Status::Ok(); told.ok()) {
      frames_.EndRetiring();
    } else {
      if (told.code() != EAGAIN) {
        LOG_WARNING("the memory of a smaller DRAM tier is given back later: {}", told.ToString());
      }
      Task::ParkUntil(steady_clock::now() + kRetry);
    }
  }
  running_.store(false);
  Kick();  // for what came between the last look and now
}

void ChunkRetirer::Stop() {
  stopping_.store(true);
  while (running_.load()) {  // bounded by what clients are given to acknowledge
    Task::ParkUntil(steady_clock::now() + kLook);
  }
}

}  // namespace termfs::tlib::server

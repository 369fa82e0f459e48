// SPDX-License-Identifier: Apache-2.0
//
// FrameChunks: the keys of the server's chunks of frames, for a session that validates its READs, and the promise that
// a revoked one is not used any more. The server revokes chunks before it takes their memory: it tells every client the
// new epoch, and waits. Here that
//   (1) forgets all keys, those that are good still are asked for again when they are needed;
//   (2) waits for the READs that were posted before, by any channel;
//   (3) from then on takes no keys of an earlier epoch, which a reply that was under way may bring.
//
// A reader enters before it posts, with the version that its keys are of, and leaves when all that it posted has
// completed. Entering stores the reader's word and then looks at the version, revoking stores the version and then
// looks at the readers' words, both sequentially consistent: so one sees the other.
//
// Thread-safety: any thread; a Reader belongs to one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "driver/nic.h"

namespace termfs::tlib::client {

class FrameChunks {
 public:
  struct Keys {
    uint32_t chunk_frames = 1;
    uint64_t epoch = 0;
    std::vector<driver::RKey> chunks;

    // 0: the frame is in none that is known.
    driver::RKey Of(uint32_t frame) const {
      const size_t chunk = frame / chunk_frames;
      return chunk < chunks.size() ? chunks[chunk] : driver::RKey{};
    }
  };

  class Reader {
   public:
    // False: the keys of `version` are not those in force; nothing may be posted that uses them.
    bool Enter(uint64_t version) {
      reading_.store(version, std::memory_order_seq_cst);
      if (chunks_.version() == version) {
        return true;
      }
      Leave();
      return false;
    }
    void Leave() { reading_.store(0, std::memory_order_release); }

   private:
    friend class FrameChunks;
    explicit Reader(const FrameChunks& chunks) : chunks_(chunks) {}
    const FrameChunks& chunks_;
    alignas(64) std::atomic<uint64_t> reading_{0};  // 0: nothing
  };

  std::shared_ptr<Reader> AddReader() EXCLUDES(mutex_);
  void RemoveReader(const std::shared_ptr<Reader>& reader) EXCLUDES(mutex_);

  uint64_t version() const { return version_.load(std::memory_order_seq_cst); }
  std::shared_ptr<const Keys> Get(uint64_t* version) const EXCLUDES(mutex_);
  void Learn(Keys keys) EXCLUDES(mutex_);
  // ETIMEDOUT: a READ that was posted before has not completed in time.
  Status Revoke(uint64_t epoch, std::chrono::steady_clock::time_point deadline) EXCLUDES(mutex_);

  // Whether the caller shall ask the server for the keys now, as it met a frame in a chunk that it does not know; not
  // while another does, and not again and again where that does not help. Then EndAsking.
  bool BeginAsking();
  void EndAsking() { asking_.store(false, std::memory_order_release); }

 private:
  bool AllBeyond(uint64_t version) const EXCLUDES(mutex_);

  std::atomic<uint64_t> version_{1};
  std::atomic<bool> asking_{false};
  std::atomic<int64_t> ask_again_at_{0};  // steady_clock
  mutable Mutex mutex_;
  std::shared_ptr<const Keys> keys_ GUARDED_BY(mutex_) = std::make_shared<Keys>();
  std::vector<std::shared_ptr<Reader>> readers_ GUARDED_BY(mutex_);
};

}  // namespace termfs::tlib::client

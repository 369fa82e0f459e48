// SPDX-License-Identifier: Apache-2.0
//
// FuseReads: how a FuseCarrier reads for several requests at once. Whose it is answers what it finds in memory, and
// waits for the rest of all of them together.
//
// Thread-safety: the carrier's thread.
// Ownership:     bytes of a result lie in memory of this, until its next call.
// Errors:        of a read: its code goes to the application as it is, but for EAGAIN: see Begin.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "mount/fuse_wire.h"

namespace termfs::mount {

class FuseReads {
 public:
  static constexpr size_t kMost = 32;            // under way
  static constexpr size_t kLargest = 32U << 10;  // bytes of one
  struct Request {
    ReadArguments what;
    bool caches = false;  // the kernel keeps the bytes
    std::chrono::steady_clock::time_point received;
  };
  struct Done {
    size_t place = 0;
    Result<std::span<const std::byte>> data;
  };

  // Called by the carrier's thread, which may run on one CPU only.
  using Factory = std::function<Result<std::unique_ptr<FuseReads>>()>;

  virtual ~FuseReads() = default;
  // What is in memory: the bytes. Nothing: it is under way until Poll names its place. EAGAIN, there and here: a thread
  // of its own should read it. REQUIRES: place < kMost, and nothing is under way in it; size <= kLargest.
  virtual Result<std::optional<std::span<const std::byte>>> Begin(const Request& request, size_t place) = 0;
  // Appends what has ended, and waits for nothing.
  virtual void Poll(std::vector<Done>& done) = 0;
  // True: Poll has nothing to say before one of `fds` is readable (negative: none). False: it may have now. Disarm
  // comes after the wait. REQUIRES: something is under way.
  virtual bool Arm(std::array<int, 2>& fds) = 0;
  virtual void Disarm() = 0;
  // Nothing is under way any more, nor will Poll name it.
  virtual void Drop() = 0;
};

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// FrontEndReads: a carrier's reads of a FileSystem, each by the map of its file. What takes the server beyond its
// absent pages, a map or the right to have the kernel keep pages, is for a thread of the request's own.
//
// Thread-safety and errors: as FuseReads.
// Ownership:     its lane; the file system, the notifier and the metrics outlive it.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "base/metrics.h"
#include "fs/client/file_system.h"
#include "mount/fuse_reads.h"
#include "mount/kernel_cache.h"

namespace termfs::mount {

class FrontEndReads final : public FuseReads {
 public:
  // `latency`: as FrontEnd's read_latency. `carried` counts the reads.
  static Result<std::unique_ptr<FuseReads>> Create(fs::client::FileSystem& file_system, KernelCacheNotifier& cache,
                                                   Histogram& latency, Counter& carried);

  Result<std::optional<std::span<const std::byte>>> Begin(const Request& request, size_t place) override;
  void Poll(std::vector<Done>& done) override;
  bool Arm(std::array<int, 2>& fds) override { return file_system_.ArmReads(*lane_, fds); }
  void Disarm() override { file_system_.DisarmReads(*lane_); }
  void Drop() override { file_system_.DropReads(*lane_); }

 private:
  // One is read, and about to be answered. EAGAIN: not before the kernel knows how long the file is.
  Status NoteRead(size_t place, std::span<const std::byte> bytes);
  FrontEndReads(fs::client::FileSystem& file_system, KernelCacheNotifier& cache, Histogram& latency, Counter& carried,
                std::unique_ptr<fs::client::Lane> lane)
      : file_system_(file_system), cache_(cache), latency_(latency), carried_(carried), lane_(std::move(lane)) {}

  fs::client::FileSystem& file_system_;
  KernelCacheNotifier& cache_;
  Histogram& latency_;
  Counter& carried_;
  const std::unique_ptr<fs::client::Lane> lane_;
  std::array<Request, kMost> requests_{};  // by place
  std::vector<fs::client::ReadDone> ended_;
};

}  // namespace termfs::mount

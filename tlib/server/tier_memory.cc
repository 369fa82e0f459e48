// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/tier_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/page.h"
#include "base/size.h"
#include "driver/nic.h"

namespace termfs::tlib::server {
namespace {

// Beside the tier's files. Of a page: its heat, and bits of bitmap and written log. Of a frame: its owner, and where
// the process maps it.
constexpr uint64_t kBesidePage = 5;
constexpr uint64_t kBesideFrame = 12;
constexpr double kLeastRatio = 0.01;  // that the settings allow
constexpr uint64_t kMebibyte = uint64_t{1} << 20;

uint64_t TableBytes(uint64_t pages) { return 2 * (RoundUpToPage(pages * sizeof(uint64_t)) + kPageSize); }

uint64_t BesideBytes(const TierDemand& demand, uint64_t frames) {
  return demand.beside ? demand.pages * kBesidePage + frames * kBesideFrame : 0;
}

uint64_t InWholeChunks(uint64_t frames, uint64_t max_pages) {
  const uint64_t chunk = driver::ChunkFramesOf(max_pages);
  return std::min((frames + chunk - 1) / chunk * chunk, std::max(frames, max_pages));
}

// In hundredths, so that it fits later, too, when a little less is available.
double LargestRatio(const TierDemand& demand, uint64_t room) {
  const uint64_t tables = TableBytes(demand.pages) + BesideBytes(demand, 0);
  const uint64_t chunk_frames = driver::ChunkFramesOf(demand.max_pages);
  const uint64_t chunk_bytes = chunk_frames * kPageSize + BesideBytes({.beside = demand.beside}, chunk_frames);
  const uint64_t chunks = (room - std::min(room, tables)) / chunk_bytes;
  const double ratio = static_cast<double>(chunks * chunk_frames) / static_cast<double>(demand.pages);
  return std::min(1.0, std::floor(ratio * 100) / 100);
}

// Of a tier of the least ratio, or of a region that is in memory as a whole.
uint64_t LargestCapacity(double ratio, uint64_t room, uint64_t chunk_bytes) {
  const double page_bytes = 2 * sizeof(uint64_t) + kBesidePage + ratio * (kPageSize + kBesideFrame);
  const auto frames_rounded = static_cast<double>(room - std::min(room, chunk_bytes));
  return (static_cast<uint64_t>(frames_rounded / page_bytes) << kPageBits) / kMebibyte * kMebibyte;
}

std::string WhatFits(const TierDemand& demand, uint64_t room) {
  const double ratio = demand.by_ratio ? LargestRatio(demand, room) : 0;
  if (ratio >= kLeastRatio) {
    return fmt::format("the largest dram-ratio that fits is {}", ratio);
  }
  const uint64_t capacity =
      LargestCapacity(demand.by_ratio ? kLeastRatio : 1, room, driver::ChunkFramesOf(demand.max_pages) * kPageSize);
  if (capacity == 0) {
    return "no volume fits";
  }
  return fmt::format("the largest capacity that fits{} is {} MiB",
                     demand.by_ratio ? fmt::format(" with a dram-ratio of {}", kLeastRatio) : "", capacity / kMebibyte);
}

}  // namespace

uint64_t TierBytes(uint64_t pages, uint64_t frames, uint64_t max_pages) {
  return InWholeChunks(frames, max_pages) * kPageSize + TableBytes(pages);
}

uint64_t BytesOf(const TierDemand& demand) {
  return TierBytes(demand.pages, demand.frames, demand.max_pages) +
         BesideBytes(demand, InWholeChunks(demand.frames, demand.max_pages));
}

Status CheckTierFits(const TierDemand& demand, const MemoryBound& bound) {
  const uint64_t needed = BytesOf(demand);
  const uint64_t more = needed - std::min(needed, demand.has);
  if (more == 0 || (more <= bound.available && demand.spare <= bound.available - more)) {
    return Status::Ok();
  }
  const uint64_t room = bound.available - std::min(bound.available, demand.spare) + demand.has;
  const std::string spare = demand.spare == 0 ? "" : " and " + ReadableSize(demand.spare) + " beside it";
  const bool fits_alone = demand.beside && more <= bound.available;
  return Status::Error(
      ENOMEM, fmt::format("the DRAM tier needs {} MiB more memory{}, of which {} has {} MiB; {}{}",
                          more / kMebibyte + 1, spare, bound.of, bound.available / kMebibyte, WhatFits(demand, room),
                          fits_alone ? "; or lower metadata-memory, most of what is beside it" : ""));
}

}  // namespace termfs::tlib::server

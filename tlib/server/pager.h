// SPDX-License-Identifier: Apache-2.0
//
// Pager: brings pages into frames, and moves the budget D while everything runs.
//
// Thread-safety: tasks of any workers; SetBudget one caller at a time waits for the one before.
// Errors:        EIO from the device; a page whose load failed is absent as before.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include "base/page.h"
#include "base/result.h"
#include "driver/nic.h"
#include "tlib/server/block_device.h"
#include "tlib/server/cleaner.h"
#include "tlib/server/frame_supply.h"
#include "tlib/server/frames.h"
#include "tlib/server/page_states.h"
#include "tlib/server/storage_metrics.h"
#include "tlib/server/tier_policy.h"

namespace termfs::tlib::server {

class Pager {
 public:
  enum class Urgency : uint8_t {
    kIfWorthIt,  // only pages that beat a victim, as the policy says
    kPassing,    // of a sequential read: frames that such pages pass through
    kAny,        // whatever frame can be had at once
  };

  Pager(BlockDevice& device, Frames& frames, PageStates& states, FrameSupply& supply, TierPolicy& policy,
        Cleaner& cleaner, StorageMetrics& metrics, std::chrono::milliseconds shrink_timeout);
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // Loads those of `pages` (ascending, at most PageRuns::kMaxPages) that are absent and get a frame. Returns how many
  // were loaded.
  Result<uint32_t> Load(std::span<const PageIndex> pages, Urgency urgency);

  // An absent page whose bytes (those of the SSD, or zeros) the caller has read under a shared hold that he still has:
  // gives it a frame if it is worth one.
  void Admit(PageIndex page, const std::byte* bytes);

  // kOdp: the page is in a frame when this returns. ETIMEDOUT: no frame was to be had.
  Status Fault(PageIndex page);

  // The budget becomes `frames`; returns when it is in force. Shrinking evicts the least worthy pages, then moves what
  // is in frames beyond the new limit. ENOMEM: growing stopped where memory ended; ETIMEDOUT: what is dirty could not
  // be written back in time; the new limit stands, and frames beyond it go as they become free.
  Status SetBudget(uint32_t frames);

 private:
  std::optional<driver::FrameIndex> TakeFrame(PageIndex page, Urgency urgency);
  bool BeginLoad(PageIndex page, Urgency urgency);
  void EndLoad(PageIndex page, Urgency urgency, bool ok);
  Status ResizeOnce();
  // No frame of [limit, taken_end) is taken when this returns.
  Status Shrink(uint32_t taken_end, uint32_t limit);
  Status EmptyFrame(driver::FrameIndex frame, std::chrono::steady_clock::time_point deadline);
  bool TryMove(PageIndex page, driver::FrameIndex from);

  BlockDevice& device_;
  Frames& frames_;
  PageStates& states_;
  FrameSupply& supply_;
  TierPolicy& policy_;
  Cleaner& cleaner_;
  StorageMetrics& metrics_;
  const std::chrono::milliseconds shrink_timeout_;
  GroupCommit resize_;
  std::atomic<uint32_t> wanted_{0};
};

}  // namespace termfs::tlib::server

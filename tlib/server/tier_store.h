// SPDX-License-Identifier: Apache-2.0
//
// TierStore: what of the DRAM tier outlives the server's process, and how the next server knows that it may trust it.
//
// In the directory (tier_place.h):  header      who wrote this, below
//                                   states      a word per page: page_entry.h
//                                   owner       the folder of the record (tier_owner.h)
//                                   page-table, frames     the RNIC's (driver/nic.h, TermRegionOptions::directory)
// Beside the SSD, in a file:        the record  that a server runs, or ended without a clean stop; and where its tier
// is
//
//   Open ──► Commit ────────── serving ────────── Remove (after everything was flushed)
//   look     owner, header, states, record,         record first, then the directory
//            page-table, frames
//
// Before Commit the files have no names, and end with the process: a server that is killed before it serves leaves no
// memory behind. Frames are most of it, and come last; where they have a name the tier is complete.
//
// A tier is *resumed* when all that is there, its header is of this boot, and of the layout that the record names. So
// it was never stopped cleanly, no other server ran since, and every word in it was stored by a server that followed
// the order of page_states.h; a process that dies leaves each word old or new. All else is discarded: what an earlier
// boot left, what a server left that died before Commit, what is older than a later start elsewhere. Three cases refuse
// to start (EUCLEAN), because acknowledged writes may be in a tier that this server cannot read or may not use: the
// header of a tier that was not stopped cleanly is damaged or of another version or volume, or its frames are dense
// where they now would be sparse, or the other way about; the record names another directory of this boot; and the
// directory is that of another volume of the same uuid, which is copied. While a server runs it has the directory
// locked (EBUSY).
//
// The files are as long as the largest region that they have room for, and sparse: a region grows without another
// mapping here or at a client. How much room there is stands in the header, and does not change while a tier is
// resumed.
//
// Without a directory the words are the process's own memory, and everything else here does nothing; but a record of
// the server before ends here, too: refused or removed before anything is written to the SSD.
//
// Thread-safety: one thread, but for cells().
// Ownership:     the mapping lives as long as the object.
// Errors:        EUCLEAN and EBUSY as said, TierPlace's, and those of the file system.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "tlib/server/server.h"
#include "tlib/server/tier_memory.h"
#include "tlib/server/tier_place.h"

namespace termfs::tlib::server {

// What a killed server left for the next one.
struct KeptTier {
  std::string directory;
  std::optional<uint64_t> dirty_pages;  // newer there than on the SSD; absent: a server has to look at it
};

class TierStore {
 public:
  // For a region of `pages`, of which `frames` get memory at once, that may grow to `max_pages`. ENOMEM, ENOSPC: the
  // machine or the tmpfs has not so much; the text says what would fit.
  static Result<std::unique_ptr<TierStore>> Open(const TierOptions& options, uint64_t pages, uint64_t max_pages,
                                                 uint32_t frames);
  // What Open for a region of `pages` would resume, or refuse to start for; nothing is changed. Absent: there is none.
  // REQUIRES: no server runs. Errors: EUCLEAN: the record is damaged; and those of the file system.
  static Result<std::optional<KeptTier>> LookAtKept(const TierOptions& options, uint64_t pages);
  // What is new and was not committed is gone; of a tier that was to be resumed nothing is.
  ~TierStore();
  TierStore(const TierStore&) = delete;
  TierStore& operator=(const TierStore&) = delete;

  bool resumed() const { return resumed_; }
  bool sparse_frames() const { return options_.sparse_frames; }
  // Empty: there is none.
  const std::string& directory() const { return directory_; }
  // Random; the same for every server that resumes it, and of no other.
  uint64_t layout() const { return layout_; }
  // As asked for, or what the resumed tier has.
  uint64_t max_pages() const { return max_pages_; }
  std::span<std::atomic<uint64_t>> cells() const { return {cells_, max_pages_}; }

  // The region shall have `pages`, and `frames` instead of `frames_now` in memory: raises the limit of the tmpfs if it
  // is the volume's own. ENOSPC, ENOMEM: the tmpfs or the machine has not so much memory. One caller at a time, here
  // and below.
  Status CheckRoom(uint64_t pages, uint32_t frames, uint32_t frames_now);
  // The cells of a region of `pages` get their memory. ENOSPC: there is none.
  Status MakeRoom(uint64_t pages);
  // The region has only `pages` any more.
  void GiveRoomBack(uint64_t pages);

  // Everything is complete: from now on it counts. `keep_frames` gives the RNIC's files their names, frames last.
  Status Commit(const std::function<Status()>& keep_frames);
  // Everything is on the SSD, durably.
  Status Remove();
  // `status`, which stands in the way of resuming, with what to do about it.
  Status Refusal(const Status& status) const;

 private:
  struct Header;
  struct Record {
    std::string boot;
    uint64_t layout = 0;
    std::string directory;
  };

  TierStore(const TierOptions& options, uint64_t pages, uint64_t max_pages)
      : options_(options), pages_(pages), max_pages_(max_pages) {}
  size_t CellBytes() const { return max_pages_ * sizeof(uint64_t); }
  Status AllocateCells(uint64_t pages);
  Status ForgetCellsBeyond(uint64_t pages);
  Status EndRecord();
  Status CheckElsewhere(const Record& record) const;
  void TellOfLoss(const Record& record) const;
  Status OpenPlace(uint32_t frames);
  Status CheckRoomToOpen(uint32_t frames) const;
  Status CheckPlace(const TierDemand& demand, uint64_t free_bytes) const;
  Result<std::optional<Record>> ReadRecord() const;
  static Result<Header> DecodeHeader(const std::string& bytes);
  // Whether the tier in the directory is the record's, whole.
  Result<bool> Examine(const std::optional<Record>& record);
  // That it is no other volume's. `takeable`: it could be resumed if it were not.
  Status CheckOwner(bool takeable) const;
  Status OpenCells(const std::string& path);
  Status MakeCells(const std::string& path);
  Status MapCells();
  Status WriteHeader() const;
  Status WriteRecord() const;

  const TierOptions options_;
  uint64_t pages_;  // that the cells have memory for
  uint64_t max_pages_;
  UniqueFd states_;
  std::optional<TierPlace> place_;
  std::string directory_;
  std::string boot_;
  bool resumed_ = false;
  uint64_t layout_ = 0;   // random; of the files in the directory
  bool cleared_ = false;  // what was in the directory is not needed any more
  bool recorded_ = false;
  bool committed_ = false;
  std::atomic<uint64_t>* cells_ = nullptr;
};

}  // namespace termfs::tlib::server

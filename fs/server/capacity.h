// SPDX-License-Identifier: Apache-2.0
//
// Capacity: how large the volume is, and changing it while it is served. See "A region that changes its size" in
// docs/design_notes.md.
//
//   Set, larger:   returns when the volume is as large.
//   Set, smaller:  looks whether what is in use fits, and begins: a thread moves what is in the way, then cuts. Set to
//                  the size of now calls it off. It ends by itself when there is no room to move to, or when nothing
//                  can be moved for a minute; or with the server, and the next one does not go on.
//   Set, the same: where settings, tier or SSD did not follow an earlier change, they do now.
//
// Thread-safety: Set and Stop one caller at a time, where it may block; the rest from any thread.
// Ownership:     everything is borrowed.
// Durability:    what progress() shows is kept. After a crash the volume has the old capacity or the new one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"
#include "fs/server/evacuation.h"
#include "metadata/namespace.h"
#include "tlib/server/server.h"

namespace termfs::fs::server {

class Capacity {
 public:
  struct Parts {
    metadata::Namespace& names;
    tlib::server::Server& server;
    std::string device;  // the file or block device of the region
    std::string meta;    // where the namespace is
    // Writes the capacity to the settings, durably.
    std::function<Status(uint64_t pages)> note;
    // FileService's.
    std::function<Status(uint64_t pages)> confine;
    std::function<Result<Evacuation::Pass>(const std::function<bool()>& cancelled)> evacuate;
    // Runs it while no other setting is changed.
    std::function<Status(const std::function<Status()>&)> alone;
  };
  explicit Capacity(Parts parts) : p_(std::move(parts)) {}
  ~Capacity() { Stop(); }

  // EINVAL: more than this server has room for; EBUSY: it is being made smaller; ENOSPC, ENOMEM: the SSD, the tmpfs of
  // the DRAM tier or the machine is too small, or more is in use than would fit; EAGAIN: there is no thread. After an
  // error nothing has changed.
  Status Set(uint64_t pages) EXCLUDES(mutex_);
  // Ends what Set has begun. Before the server stops.
  void Stop() EXCLUDES(mutex_);

  struct Progress {
    uint64_t pages = 0;         // how large it is
    uint64_t target_pages = 0;  // what it is being changed to; the same, when it is not
    uint64_t pages_to_move = 0;
    bool changing = false;  // also when it has the new size, and tier and SSD are still to follow
    std::string failure;    // why the last change that Set has begun came to nothing; empty: it did not
  };
  Progress progress() const EXCLUDES(mutex_);

 private:
  uint64_t pages() const { return p_.names.superblock().capacity_pages; }
  Status Grow(uint64_t pages);
  Status CheckDisk(uint64_t pages) const;
  Status BeginShrink(uint64_t pages) EXCLUDES(mutex_);
  Status Shrink(uint64_t pages);
  Status Cut(uint64_t pages);
  Status Follow(uint64_t pages);

  const Parts p_;
  std::atomic<uint64_t> target_{0};  // pages; 0: none
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> behind_{false};  // settings, tier or SSD may have another size than the superblock says
  mutable Mutex mutex_;
  std::string failure_ GUARDED_BY(mutex_);
  std::thread thread_;  // Set's and Stop's
};

}  // namespace termfs::fs::server

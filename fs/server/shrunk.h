// SPDX-License-Identifier: Apache-2.0
//
// ShrunkFile: tells the sessions whose kernels read a file through their page caches that it is smaller now. Until they
// go by the smaller size the file is not changed, or they could show bytes of a later change up to the size of before.
// But a kernel takes no size of a file that it is itself cutting, allocating or copying to, so these calls of a session
// wait for others only; while it writes it takes one. See "The size that a reader is shown" in docs/design_notes.md.
//
// Sessions that have reopened the file are told as well, once, before another one changes it: it may have been cut off
// while they were away, or by a server that ended before it told them.
//
// Thread-safety: a task's. Ownership: borrows all. Made before the gate is entered, so that it ends after that is left.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "fs/server/coherence.h"
#include "fs/server/inode.h"
#include "fs/server/sessions.h"

namespace termfs::fs::server {

class ShrunkFile {
 public:
  // `writer`: the session that changes it; its kernel knows.
  ShrunkFile(Coherence& coherence, Inode& inode, uint64_t writer)
      : coherence_(coherence), inode_(inode), writer_(writer) {}
  // Returns when they have been told.
  ~ShrunkFile();
  ShrunkFile(const ShrunkFile&) = delete;
  ShrunkFile& operator=(const ShrunkFile&) = delete;

  // It is smaller. REQUIRES: exclusive in the gate.
  void Begin(uint64_t generation);

  // Tells those that have reopened the file. Any mode of the gate, or none.
  void BeginReopened(uint64_t generation);

  enum class Others : uint8_t { kKnow, kAreToBeTold, kAreBeingTold };
  // With `whose` kAll the session's own kernel counts, too.
  enum class Whose : uint8_t { kOthers, kAll };
  static Others Look(Inode& inode, const Session& session, Whose whose);
  // Until none is being told, or the session is gone (ECANCELED). REQUIRES: not in the gate.
  static Status Await(Inode& inode, const Session& session, Whose whose);

 private:
  void Add(uint64_t session) REQUIRES(inode_.mutex);

  Coherence& coherence_;
  Inode& inode_;
  const uint64_t writer_;
  uint64_t generation_ = 0;
  std::vector<uint64_t> told_;
};

}  // namespace termfs::fs::server

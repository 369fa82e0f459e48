// SPDX-License-Identifier: Apache-2.0
//
// TierOwner: which folder's server made a tier, as the file `owner` beside the tier's header says it. A copy of a
// volume has its uuid, and a snapshot's record may name the tier of the server that ran; but neither is in the folder
// that the tier's owner is in.
//
//   folder DEVICE INODE BIRTH     of the folder with the record
//   record PATH                   for people, and to see whether that server was stopped cleanly
//
// A folder stays the same when it is moved within its file system, not when it is copied elsewhere. It becomes another
// one, too, when its file system is mounted anew with another device number: then people have to say that it is the
// same, by removing the file. A tier without the file belongs to the volume that its header names.
//
// Thread-safety: values.
// Errors:        EUCLEAN: the file is damaged; and those of the file system.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"

namespace termfs::tlib::server {

struct TierOwner {
  std::string folder;  // its identity
  std::string record;

  // The one whose record is there.
  static Result<TierOwner> Of(const std::string& record);
  // Absent: the file is.
  static Result<std::optional<TierOwner>> Read(const std::string& directory);
  Status Write(const std::string& directory) const;

  bool operator==(const TierOwner& other) const;
  // Not if its folder is where it was and has no record: its server flushed everything.
  bool MayNeedIt() const;
};

// Who has a claim to the tier in `directory` and has not its record at `record`. Absent: nobody.
Result<std::optional<TierOwner>> OtherOwner(const std::string& directory, const std::string& record);

}  // namespace termfs::tlib::server

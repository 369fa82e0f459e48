// SPDX-License-Identifier: Apache-2.0
//
// VolumeClient::PageChange: a change of a file's bytes that this mount's kernel has asked for, while it may have pages
// of the file. Stores through mappings are kept apart from it (store_merge.h); and when it ends, the kernel has no page
// of the range any more that is older than the change.
//
// Thread-safety: the lane's. Ownership: what it was given outlives it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fs/client/volume_client.h"

namespace termfs::fs::client {

class VolumeClient::PageChange {
 public:
  PageChange(VolumeClient& client, Lane& lane, OpenFile* file) : client_(client), lane_(Of(lane)), file_(file) {}
  // Has the kernel drop what is older than the change, whether that came to something or not.
  ~PageChange();
  PageChange(const PageChange&) = delete;
  PageChange& operator=(const PageChange&) = delete;

  // Before the change of these bytes is made; may use the lane's buffer.
  Status Begin(uint64_t offset, uint64_t length);
  // The same for bytes that are to be written, which may lie in that buffer: then `data` may lie elsewhere afterwards,
  // in memory of this. `append`: they go to the end of the file, wherever that is.
  Status BeginWrite(uint64_t offset, std::span<const std::byte>& data, bool append);

 private:
  static constexpr size_t kMostBases = 64;  // pages; of more the kernel drops what it has first

  Status Prepare(uint64_t offset, uint64_t length, std::span<const std::byte>* data);
  Status ReadBase(uint64_t page);
  bool Drop();

  VolumeClient& client_;
  VolumeLane& lane_;
  OpenFile* const file_;
  uint64_t offset_ = 0;
  uint64_t length_ = 0;  // StoreMerge::kToEnd: to the end
  std::vector<std::byte> aside_;
  StoreMerge::Change change_;
};

}  // namespace termfs::fs::client

// SPDX-License-Identifier: Apache-2.0
//
// Mapping: a peer's shared object in our address space. MappingCache shares one mapping between the queue pairs of a
// Nic: a region of many gigabytes costs its page tables once, not once per thread.
//
// A descriptor that comes from a peer is mapped only if it is shared memory of root's or of this process's effective
// user, that no process can shrink, and that is as large as the peer says (EPROTO otherwise): touching the mapping can
// never raise SIGBUS, whatever the peer does later. The frames and the page table of a region may be files on a tmpfs
// instead, which outlive their server and cannot be sealed: only their owner can open them for writing, so none but
// root and this user can shrink them, which could end this process anyway. A server maps none of a client's
// (QueuePairOptions::maps_files).
//
// Thread-safety: Mapping is immutable; MappingCache may be used from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs::driver::softnic {

class Mapping {
 public:
  Mapping(std::byte* data, size_t size) : data_(data), size_(size) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // What has been touched of it is no memory of this process any more, until it is touched again. Any thread.
  void LetGo() const;

 private:
  std::byte* data_;
  size_t size_;
};

// What a descriptor must be.
enum class MappedKind : uint8_t {
  kSealed,  // a memfd that no process can shrink, to be read
  kSealedToWrite,
  kRegion,  // sealed, or a file on a tmpfs that only its owner may open; to be read
};

class MappingCache {
 public:
  // Maps the whole object behind `fd`, which must hold at least `bytes`.
  Result<std::shared_ptr<Mapping>> Map(const UniqueFd& fd, size_t bytes, MappedKind kind) EXCLUDES(mutex_);

 private:
  // What tells one live object from another: device, inode number, time of birth, and how it is mapped.
  using Key = std::tuple<uint64_t, uint64_t, int64_t, bool>;

  Mutex mutex_;
  std::map<Key, std::weak_ptr<Mapping>> mappings_ GUARDED_BY(mutex_);
};

}  // namespace termfs::driver::softnic

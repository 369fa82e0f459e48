// SPDX-License-Identifier: Apache-2.0
//
// SharedObject: memory that this process owns and may hand to peers as a descriptor. Two kinds:
//
// - A memfd, sealed against changes of its size, so that neither side can make the other take a SIGBUS. It ends with
//   the last process that has it.
// - A file on a tmpfs (`path`), which outlives the process once it has its name (Keep). A tmpfs seals no files:
//   who may open it for writing can resize it, and those are root and its owner. It is never resized here: another size
//   is another file.
//
// What keeps a peer that got a read-only descriptor from writing: a mapping of it cannot be made writable; reopening
// it through /proc is refused to other users, because the file's mode allows reading only; and where
// `peers_may_write` is false and nothing is ever punched, a seal of a memfd refuses new writable mappings to everybody.
// (Frames have to be punched, which that seal forbids. Who could reopen them, root or the same user, could trace us as
// well, and open the SSD.)
//
// Thread-safety: immutable after Create; Allocate and Punch from any thread, for different ranges.
// Errors:        ENOMEM when there is no memory for what is to be allocated.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace termfs::driver::softnic {

struct SharedObjectOptions {
  std::string name;
  size_t bytes = 0;              // rounded up to whole pages
  bool allocate = true;          // all bytes now; false: by Allocate
  bool peers_may_write = false;  // ReadWriteFd works
  bool punchable = false;        // Punch works
  bool sparse = false;           // memory comes and goes page by page: never huge ones
  std::string path;              // of a file on a tmpfs; empty: a memfd. REQUIRES: not peers_may_write
  bool resume =
      false;  // the file is there, with what an earlier process left. EUCLEAN: it is not, differs, or is not ours alone
};

class SharedObject {
 public:
  static Result<std::shared_ptr<SharedObject>> Create(const SharedObjectOptions& options);
  ~SharedObject();
  SharedObject(const SharedObject&) = delete;
  SharedObject& operator=(const SharedObject&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  bool peers_may_write() const { return peers_may_write_; }

  // Descriptors to pass to a peer.
  Result<UniqueFd> ReadOnlyFd() const;
  Result<UniqueFd> ReadWriteFd() const;

  // Gives memory to [offset, offset + length), in whole pages, and locks it where the limits allow. When it fails,
  // nothing in the range is allocated. REQUIRES: nothing in it was before; of a resumed file some or all may have been,
  // and keeps its bytes, also on failure.
  Status Allocate(size_t offset, size_t length);
  // The same for a sparse object, a few pages at a time; what is there already stays as it is.
  Status AllocateSparse(size_t offset, size_t length);
  // A file on a tmpfs gets its name, unless it has it already.
  Status Keep() const;
  // Takes it back; the bytes read as zeros.
  void Punch(size_t offset, size_t length);

 private:
  SharedObject() = default;
  Status OpenMemfd(const SharedObjectOptions& options);
  Status OpenFile(const SharedObjectOptions& options);
  Status Seal(bool punchable);
  // Whether every byte of the range has memory, as far as can be told.
  bool IsAllocated(size_t offset, size_t length) const;
  void Lock(size_t offset, size_t length);
  void MakeSparse();

  UniqueFd fd_;
  std::string path_;
  bool resumed_ = false;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool peers_may_write_ = false;
  bool sparse_ = false;
};

}  // namespace termfs::driver::softnic

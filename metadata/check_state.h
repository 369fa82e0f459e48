// SPDX-License-Identifier: Apache-2.0
//
// What Check knows: first the inodes as stored, then beside each what the other records say of it. The tree and the
// space are compared in files of their own.
//
// Thread-safety: none. Ownership: borrows reader and report.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "metadata/key_value_store.h"
#include "metadata/name_hash.h"
#include "metadata/namespace.h"
#include "metadata/records.h"

namespace termfs::metadata {

struct CheckedInode {
  // As stored.
  uint32_t mode = 0;
  uint32_t nlink = 0;
  uint64_t size = 0;
  uint64_t blocks = 0;
  uint64_t ahead_end = 0;
  bool cut = false;
  InodeNumber parent = 0;
  uint64_t trim_page = kNoTrim;
  uint32_t xattr_bytes = 0;
  ProjectNumber project = 0;
  // As found.
  uint32_t names = 0;
  uint32_t subdirectories = 0;
  uint64_t entries = 0;
  InodeNumber named_in = 0;
  uint64_t pages = 0;
  uint64_t xattr_found = 0;
  bool orphan = false;
  bool truncation = false;
  bool reached = false;  // from the root

  FileType type() const { return TypeOfMode(mode); }
  bool is_directory() const { return type() == FileType::kDirectory; }
};

// Pages of the region with their owner, 0: pending-free.
struct OwnedPages {
  uint64_t first = 0;
  uint64_t pages = 0;
  InodeNumber owner = 0;
};

struct CheckState {
  Reader& reader;
  const Superblock superblock;
  const NameHash hash;
  const size_t max_problems;
  CheckReport report;
  std::unordered_map<InodeNumber, CheckedInode> inodes;
  std::vector<OwnedPages> owned;
  uint64_t inodes_in_receipts = 0;  // wraps around

  template <typename... Args>
  void Problem(fmt::format_string<Args...> format, Args&&... args) {
    ++report.problem_count;
    if (report.problems.size() < max_problems) {
      report.problems.push_back(fmt::format(format, std::forward<Args>(args)...));
    }
  }
  // Nothing when there is no such inode.
  CheckedInode* Find(InodeNumber ino) {
    const auto it = inodes.find(ino);
    return it == inodes.end() ? nullptr : &it->second;
  }
};

// Calls `visit` for every pair whose key begins with `type`, in order.
Status ForEachOfType(Reader& reader, char type, const std::function<void(const KeyValue&)>& visit);

Status CheckInodes(CheckState& state);  // reads them; the others need that
Status CheckDentries(CheckState& state);
Status CheckXattrs(CheckState& state);
Status CheckOrphansAndTruncations(CheckState& state);
void CompareTree(CheckState& state);  // after all of the above
Status CheckExtents(CheckState& state);
Status CheckAhead(CheckState& state);
Status CheckCuts(CheckState& state);
Status CheckPendingFree(CheckState& state);
Status CompareSpace(CheckState& state);  // after both

}  // namespace termfs::metadata

// SPDX-License-Identifier: Apache-2.0
//
// Acl: a POSIX access control list, as Linux has them in the attributes system.posix_acl_access and _default, and what
// it has to do with the mode: the bits of owner, group and others are three of its entries; when a list has a mask, the
// mode's group bits are that. Permissions are checked by the kernels that mount; here lists and modes are kept in step,
// and new inodes inherit.
//
// Thread-safety: none.
// Errors:        EINVAL: bytes that are no list, or a list that means nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace termfs::metadata {

inline constexpr std::string_view kAccessAcl = "system.posix_acl_access";
inline constexpr std::string_view kDefaultAcl = "system.posix_acl_default";

class Acl {
 public:
  // The value of such an attribute: version 2 of the format, little-endian; entries in the order of their tags.
  static Result<Acl> Decode(std::string_view value);
  std::string Encode() const;

  // The nine permission bits it stands for.
  uint32_t Mode() const;
  // It says no more than these nine bits do.
  bool IsMinimal() const;
  // The mode became `mode`: its nine bits count from now on.
  void SetMode(uint32_t mode);
  // Of a default list: becomes the access list of a new inode that is asked for with `mode`. Neither grants more than
  // the other; the mode that the inode gets.
  uint32_t Inherit(uint32_t mode);

 private:
  struct Entry {
    uint16_t tag = 0;
    uint16_t permissions = 0;
    uint32_t id = 0;
  };
  Entry* Find(uint16_t tag);
  const Entry* Find(uint16_t tag) const { return const_cast<Acl*>(this)->Find(tag); }
  // Of the mode's group bits: the mask, or where there is none the owning group.
  Entry& GroupClass();

  std::vector<Entry> entries_;
};

}  // namespace termfs::metadata

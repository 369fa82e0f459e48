// SPDX-License-Identifier: Apache-2.0
#include "metadata/acl.h"

#include <endian.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>

#include <algorithm>
#include <cstring>

namespace termfs::metadata {

namespace {

constexpr uint32_t kBits = 7;
constexpr uint32_t kAllBits = 0777;

bool Names(uint16_t tag) { return tag == ACL_USER || tag == ACL_GROUP; }
bool IsTag(uint16_t tag) {
  return Names(tag) || tag == ACL_USER_OBJ || tag == ACL_GROUP_OBJ || tag == ACL_MASK || tag == ACL_OTHER;
}

Status NoList() { return Status::Error(EINVAL, "not an access control list"); }

}  // namespace

Result<Acl> Acl::Decode(std::string_view value) {
  posix_acl_xattr_header header{};
  if (value.size() < sizeof(header) || (value.size() - sizeof(header)) % sizeof(posix_acl_xattr_entry) != 0) {
    return NoList();
  }
  std::memcpy(&header, value.data(), sizeof(header));
  if (le32toh(header.a_version) != POSIX_ACL_XATTR_VERSION) {
    return NoList();
  }
  Acl acl;
  for (size_t at = sizeof(header); at < value.size(); at += sizeof(posix_acl_xattr_entry)) {
    posix_acl_xattr_entry raw{};
    std::memcpy(&raw, value.data() + at, sizeof(raw));
    const Entry entry{.tag = le16toh(raw.e_tag), .permissions = le16toh(raw.e_perm), .id = le32toh(raw.e_id)};
    // The tags' numbers are in the order in which entries come; only named ones come more than once.
    const uint16_t last = acl.entries_.empty() ? 0 : acl.entries_.back().tag;
    const bool nobody = Names(entry.tag) && entry.id == ~uint32_t{0};
    if (!IsTag(entry.tag) || nobody || entry.permissions > kBits || entry.tag < last ||
        (entry.tag == last && !Names(last))) {
      return NoList();
    }
    acl.entries_.push_back(entry);
  }
  const bool named = std::any_of(acl.entries_.begin(), acl.entries_.end(), [](const Entry& e) { return Names(e.tag); });
  const bool whole = acl.Find(ACL_USER_OBJ) != nullptr && acl.Find(ACL_GROUP_OBJ) != nullptr &&
                     acl.Find(ACL_OTHER) != nullptr && (!named || acl.Find(ACL_MASK) != nullptr);
  return whole ? Result<Acl>(std::move(acl)) : NoList();
}

std::string Acl::Encode() const {
  const posix_acl_xattr_header header{.a_version = htole32(POSIX_ACL_XATTR_VERSION)};
  std::string value(reinterpret_cast<const char*>(&header), sizeof(header));
  for (const Entry& entry : entries_) {
    const posix_acl_xattr_entry raw{.e_tag = htole16(entry.tag),
                                    .e_perm = htole16(entry.permissions),
                                    .e_id = htole32(Names(entry.tag) ? entry.id : ~uint32_t{0})};
    value.append(reinterpret_cast<const char*>(&raw), sizeof(raw));
  }
  return value;
}

Acl::Entry* Acl::Find(uint16_t tag) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [tag](const Entry& e) { return e.tag == tag; });
  return found == entries_.end() ? nullptr : &*found;
}

Acl::Entry& Acl::GroupClass() {
  Entry* const mask = Find(ACL_MASK);
  return mask != nullptr ? *mask : *Find(ACL_GROUP_OBJ);
}

uint32_t Acl::Mode() const {
  const uint32_t group = const_cast<Acl*>(this)->GroupClass().permissions;
  return uint32_t{Find(ACL_USER_OBJ)->permissions} << 6 | group << 3 | Find(ACL_OTHER)->permissions;
}

bool Acl::IsMinimal() const { return Find(ACL_MASK) == nullptr; }  // what is named has a mask

void Acl::SetMode(uint32_t mode) {
  Find(ACL_USER_OBJ)->permissions = static_cast<uint16_t>(mode >> 6 & kBits);
  GroupClass().permissions = static_cast<uint16_t>(mode >> 3 & kBits);
  Find(ACL_OTHER)->permissions = static_cast<uint16_t>(mode & kBits);
}

uint32_t Acl::Inherit(uint32_t mode) {
  const uint32_t both = Mode() & mode;
  SetMode(both);
  return (mode & ~kAllBits) | both;
}

}  // namespace termfs::metadata

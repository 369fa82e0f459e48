// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as the value of an access control list, as setxattr(2) brings it. What is a list comes back with the same
// entries, has no bits beyond those of a mode, and follows every mode that it is given.
//
// The input is a mode of two bytes, then the value.
#include <endian.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>

#include <cstring>

#include "base/check.h"
#include "metadata/acl.h"

namespace termfs::metadata {
namespace {

constexpr uint32_t kPermissions = 0777;

// As stored: entries without a user or group have no ID, also if the caller gave one.
std::string WithoutUnusedIds(std::string_view value) {
  std::string stored(value);
  for (size_t at = sizeof(posix_acl_xattr_header); at < stored.size(); at += sizeof(posix_acl_xattr_entry)) {
    posix_acl_xattr_entry entry;
    std::memcpy(&entry, stored.data() + at, sizeof(entry));
    const uint16_t tag = le16toh(entry.e_tag);
    entry.e_id = tag == ACL_USER || tag == ACL_GROUP ? entry.e_id : ~uint32_t{0};
    std::memcpy(stored.data() + at, &entry, sizeof(entry));
  }
  return stored;
}

// Counted in the bytes, so that it does not rest on what the decoder has counted.
size_t CountTag(std::string_view value, uint16_t tag) {
  size_t count = 0;
  for (size_t at = sizeof(posix_acl_xattr_header); at < value.size(); at += sizeof(posix_acl_xattr_entry)) {
    posix_acl_xattr_entry entry;
    std::memcpy(&entry, value.data() + at, sizeof(entry));
    TERMFS_CHECK(le16toh(entry.e_perm) <= 7);
    count += le16toh(entry.e_tag) == tag ? 1 : 0;
  }
  return count;
}

void Try(std::string_view value, uint32_t mode) {
  auto acl = Acl::Decode(value);
  if (!acl.ok()) {
    TERMFS_CHECK(acl.status().code() == EINVAL);
    return;
  }
  TERMFS_CHECK(acl->Encode() == WithoutUnusedIds(value));
  const size_t masks = CountTag(value, ACL_MASK);
  TERMFS_CHECK(CountTag(value, ACL_USER_OBJ) == 1 && CountTag(value, ACL_GROUP_OBJ) == 1 && masks <= 1 &&
               CountTag(value, ACL_OTHER) == 1);
  TERMFS_CHECK(masks == 1 || CountTag(value, ACL_USER) + CountTag(value, ACL_GROUP) == 0);
  TERMFS_CHECK(acl->IsMinimal() == (masks == 0));
  const uint32_t own = acl->Mode();
  TERMFS_CHECK((own & ~kPermissions) == 0);
  acl->SetMode(own);
  TERMFS_CHECK(acl->Encode() == WithoutUnusedIds(value));
  Acl inherited = *acl;
  TERMFS_CHECK(inherited.Inherit(mode) == ((mode & ~kPermissions) | (mode & own)));
  TERMFS_CHECK(inherited.Mode() == (mode & own));
  acl->SetMode(mode);
  TERMFS_CHECK(acl->Mode() == (mode & kPermissions));
  TERMFS_CHECK(Acl::Decode(acl->Encode()).ok() && Acl::Decode(inherited.Encode()).ok());
}

}  // namespace
}  // namespace termfs::metadata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size >= 2) {
    const std::string_view value(reinterpret_cast<const char*>(data + 2), size - 2);
    termfs::metadata::Try(value, data[0] | uint32_t{data[1]} << 8);
  }
  return 0;
}

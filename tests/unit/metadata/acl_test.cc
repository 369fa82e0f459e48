// SPDX-License-Identifier: Apache-2.0
#include "metadata/acl.h"

#include <endian.h>
#include <linux/posix_acl.h>

#include <cstring>

#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

struct Entry {
  uint16_t tag;
  uint16_t permissions;
  uint32_t id = ~uint32_t{0};
};

std::string List(std::initializer_list<Entry> entries, uint32_t version = 2) {
  const auto put = [](std::string& to, auto value) { to.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  std::string list;
  put(list, htole32(version));
  for (const Entry& entry : entries) {
    put(list, htole16(entry.tag));
    put(list, htole16(entry.permissions));
    put(list, htole32(entry.id));
  }
  return list;
}

const std::string kMinimal = List({{ACL_USER_OBJ, 6}, {ACL_GROUP_OBJ, 4}, {ACL_OTHER, 0}});
const std::string kNamed = List(
    {{ACL_USER_OBJ, 7}, {ACL_USER, 6, 1000}, {ACL_USER, 0, 1001}, {ACL_GROUP_OBJ, 5}, {ACL_MASK, 6}, {ACL_OTHER, 1}});

TEST(Acl, Decode_WhatMeansNothing_IsInvalid) {
  for (const std::string& bad : {
           std::string(),
           std::string("abc"),
           List({}),
           kMinimal.substr(0, kMinimal.size() - 1),
           kMinimal + "x",
           List({{ACL_USER_OBJ, 6}, {ACL_GROUP_OBJ, 4}, {ACL_OTHER, 0}}, 1),
           List({{ACL_USER_OBJ, 6}, {ACL_GROUP_OBJ, 4}}),
           List({{ACL_USER_OBJ, 6}, {ACL_OTHER, 4}}),
           List({{ACL_GROUP_OBJ, 6}, {ACL_OTHER, 4}}),
           List({{ACL_USER_OBJ, 8}, {ACL_GROUP_OBJ, 4}, {ACL_OTHER, 0}}),
           List({{ACL_GROUP_OBJ, 6}, {ACL_USER_OBJ, 4}, {ACL_OTHER, 0}}),
           List({{ACL_USER_OBJ, 6}, {ACL_USER_OBJ, 6}, {ACL_GROUP_OBJ, 4}, {ACL_OTHER, 0}}),
           List({{ACL_USER_OBJ, 6}, {ACL_USER, 6, 1000}, {ACL_GROUP_OBJ, 4}, {ACL_OTHER, 0}}),
           List({{ACL_USER_OBJ, 6}, {3, 6}, {ACL_GROUP_OBJ, 4}, {ACL_OTHER, 0}}),
           List({{ACL_USER_OBJ, 6}, {ACL_USER, 6}, {ACL_GROUP_OBJ, 4}, {ACL_MASK, 4}, {ACL_OTHER, 0}}),
       }) {
    EXPECT_EQ(Acl::Decode(bad).status().code(), EINVAL) << ::testing::PrintToString(bad);
  }
}

TEST(Acl, DecodeThenEncode_IsTheSame) {
  for (const std::string& list : {kMinimal, kNamed}) {
    const auto acl = Acl::Decode(list);
    ASSERT_TRUE(acl.ok());
    EXPECT_EQ(acl->Encode(), list);
  }
  EXPECT_TRUE(Acl::Decode(kMinimal)->IsMinimal());
  EXPECT_FALSE(Acl::Decode(kNamed)->IsMinimal());
}

TEST(Acl, Mode_IsOwnerMaskAndOthers) {
  EXPECT_EQ(Acl::Decode(kMinimal)->Mode(), 0640U);
  EXPECT_EQ(Acl::Decode(kNamed)->Mode(), 0761U);
  Acl acl = *Acl::Decode(kNamed);
  acl.SetMode(S_IFREG | 04427);
  EXPECT_EQ(acl.Mode(), 0427U);
  EXPECT_EQ(acl.Encode(), List({{ACL_USER_OBJ, 4},
                                {ACL_USER, 6, 1000},
                                {ACL_USER, 0, 1001},
                                {ACL_GROUP_OBJ, 5},
                                {ACL_MASK, 2},
                                {ACL_OTHER, 7}}));
}

class AclsTest : public VolumeTest {
 protected:
  void Chmod(InodeNumber ino, uint32_t mode) {
    AttributeChange change;
    change.mode = mode;
    EXPECT_TRUE(ns().SetAttr(ino, change, Tick()).ok());
  }
  int Set(InodeNumber ino, std::string_view name, std::string_view value, bool outside_group = false) {
    return ns().SetXattr(ino, name, value, XattrMode::kEither, Tick(), nullptr, outside_group).code();
  }
  Attributes MakeAs(InodeNumber parent, std::string_view name, uint32_t mode, uint32_t umask) {
    const NewInode wanted{.mode = mode, .rdev = 0, .symlink_target = S_ISLNK(mode) ? "target" : ""};
    const auto made = ns().Create(parent, name, wanted, {.uid = 0, .gid = 0, .umask = umask}, Tick());
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return made.ok() ? *made : Attributes{};
  }
  const InodeNumber file_ = Make(kRootInode, "f");
  const InodeNumber dir_ = Make(kRootInode, "d", S_IFDIR | 0755);
};

TEST_F(AclsTest, AccessList_ChangesTheMode_AndChmodChangesIt) {
  EXPECT_EQ(Set(file_, kAccessAcl, kNamed), 0);
  EXPECT_EQ(Get(file_).mode, S_IFREG | 0761U);
  EXPECT_EQ(*ns().GetXattr(file_, kAccessAcl), kNamed);
  Chmod(file_, 0600);
  EXPECT_EQ(Acl::Decode(*ns().GetXattr(file_, kAccessAcl))->Mode(), 0600U);
  EXPECT_EQ(Get(file_).mode, S_IFREG | 0600U);
  EXPECT_EQ(Set(file_, kAccessAcl, kMinimal), 0);
  EXPECT_EQ(Get(file_).mode, S_IFREG | 0640U);
  EXPECT_THAT(*ns().ListXattr(file_), IsEmpty());
  Chmod(file_, 06775);
  EXPECT_EQ(Set(file_, kAccessAcl, kNamed), 0);
  EXPECT_EQ(Get(file_).mode, S_IFREG | 06761U);
  EXPECT_EQ(Set(file_, kAccessAcl, kNamed, true), 0);
  EXPECT_EQ(Get(file_).mode, S_IFREG | 04761U);
}

TEST_F(AclsTest, Nonsense_ChangesNothing) {
  const Attributes before = Get(file_);
  EXPECT_EQ(Set(file_, kAccessAcl, "abc"), EINVAL);
  EXPECT_EQ(Set(file_, kDefaultAcl, kNamed), EACCES);
  EXPECT_EQ(Set(dir_, kDefaultAcl, "abc"), EINVAL);
  EXPECT_EQ(Get(file_).mode, before.mode);
  EXPECT_EQ(Get(file_).ctime, before.ctime);
  EXPECT_THAT(*ns().ListXattr(file_), IsEmpty());
}

TEST_F(AclsTest, DefaultList_IsInheritedInPlaceOfTheUmask) {
  EXPECT_EQ(MakeAs(dir_, "before", S_IFREG | 0666, 022).mode, S_IFREG | 0644U);
  EXPECT_EQ(Set(dir_, kDefaultAcl, kNamed), 0);
  EXPECT_EQ(Get(dir_).mode, S_IFDIR | 0755U);
  const Attributes file = MakeAs(dir_, "file", S_IFREG | 0666, 077);
  EXPECT_EQ(file.mode, S_IFREG | 0660U);
  EXPECT_EQ(Acl::Decode(*ns().GetXattr(file.ino, kAccessAcl))->Mode(), 0660U);
  EXPECT_THAT(*ns().ListXattr(file.ino), UnorderedElementsAre(kAccessAcl));
  const Attributes below = MakeAs(dir_, "below", S_IFDIR | 0777, 077);
  EXPECT_EQ(below.mode, S_IFDIR | 0761U);
  EXPECT_EQ(*ns().GetXattr(below.ino, kDefaultAcl), kNamed);
  EXPECT_EQ(MakeAs(below.ino, "deep", S_IFIFO | 0600, 0).mode, S_IFIFO | 0600U);
  const Attributes link = MakeAs(dir_, "link", S_IFLNK | 0777, 077);
  EXPECT_EQ(link.mode, S_IFLNK | 0777U);
  EXPECT_THAT(*ns().ListXattr(link.ino), IsEmpty());
  const NewInode unnamed{.mode = S_IFREG | 0644, .rdev = 0, .symlink_target = ""};
  const auto made = ns().CreateUnnamed(dir_, unnamed, {.uid = 0, .gid = 0, .umask = 077}, Tick(), true);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->mode, S_IFREG | 0640U);
  EXPECT_EQ(Set(dir_, kDefaultAcl, kMinimal), 0);
  const Attributes plain = MakeAs(dir_, "plain", S_IFREG | 0666, 0);
  EXPECT_EQ(plain.mode, S_IFREG | 0640U);
  EXPECT_THAT(*ns().ListXattr(plain.ino), IsEmpty());
}

}  // namespace
}  // namespace termfs::metadata

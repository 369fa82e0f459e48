// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class XattrTest : public VolumeTest {
 protected:
  int Set(std::string_view name, std::string_view value, XattrMode mode = XattrMode::kEither) {
    return ns().SetXattr(file_, name, value, mode, Tick()).code();
  }
  const InodeNumber file_ = Make(kRootInode, "f");
};

TEST_F(XattrTest, Set_GetListRemove) {
  EXPECT_EQ(Set("user.a", "1"), 0);
  EXPECT_EQ(Set("user.b", ""), 0);
  EXPECT_EQ(Set("user.a", "22"), 0);
  EXPECT_EQ(*ns().GetXattr(file_, "user.a"), "22");
  EXPECT_EQ(*ns().GetXattr(file_, "user.b"), "");
  EXPECT_THAT(*ns().ListXattr(file_), UnorderedElementsAre("user.a", "user.b"));
  EXPECT_TRUE(ns().RemoveXattr(file_, "user.a", Nanoseconds(12345)).ok());
  EXPECT_EQ(Get(file_).ctime, Nanoseconds(12345));
  EXPECT_THAT(*ns().ListXattr(file_), UnorderedElementsAre("user.b"));
  EXPECT_EQ(ns().GetXattr(file_, "user.a").status().code(), ENODATA);
  EXPECT_EQ(ns().RemoveXattr(file_, "user.a", Tick()).code(), ENODATA);
}

TEST_F(XattrTest, Set_ObeysModeAndLimits) {
  EXPECT_EQ(Set("user.a", "1", XattrMode::kReplace), ENODATA);
  EXPECT_EQ(Set("user.a", "1", XattrMode::kBoth), ENODATA);
  EXPECT_EQ(Set("user.a", "1", XattrMode::kCreate), 0);
  EXPECT_EQ(Set("user.a", "2", XattrMode::kCreate), EEXIST);
  EXPECT_EQ(Set("user.a", "2", XattrMode::kBoth), EEXIST);
  EXPECT_EQ(Set("user.a", "3", XattrMode::kReplace), 0);
  EXPECT_EQ(Set("user.big", std::string(65536, 'x')), 0);
  EXPECT_EQ(Set("user.big", std::string(65537, 'x')), E2BIG);
  EXPECT_EQ(ns().GetXattr(file_, "user.big")->size(), 65536u);
  EXPECT_EQ(Set("", "1"), ERANGE);
  EXPECT_EQ(Set(std::string(256, 'n'), "1"), ERANGE);
  EXPECT_EQ(Set(std::string(255, 'n'), "1"), 0);
  EXPECT_EQ(ns().SetXattr(999, "user.a", "", XattrMode::kEither, Tick()).code(), ESTALE);
  EXPECT_EQ(ns().GetXattr(999, "user.a").status().code(), ESTALE);
}

TEST_F(XattrTest, List_IsBoundedAndGoesWithTheInode) {
  int code = 0;
  int count = 0;
  for (; code == 0; ++count) {
    code = Set("user." + std::string(240, 'n') + std::to_string(1000 + count), "v");
  }
  EXPECT_EQ(code, ENOSPC);
  EXPECT_EQ(count - 1, 65536 / 250);
  EXPECT_EQ(ns().ListXattr(file_)->size(), static_cast<size_t>(count - 1));
  const auto removed = ns().Unlink(kRootInode, "f", kNotOpen, Tick());
  ASSERT_TRUE(removed.ok());
  EXPECT_TRUE(removed->orphaned);  // more than one transaction frees
  EXPECT_THAT(Problems(store()), IsEmpty());
  EXPECT_TRUE(ns().ReleaseOrphan(file_).ok());
}

}  // namespace
}  // namespace termfs::metadata

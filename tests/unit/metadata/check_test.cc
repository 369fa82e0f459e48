// SPDX-License-Identifier: Apache-2.0
//
// One seeded corruption of each kind, and the line that reports it.
#include "metadata/allocator.h"
#include "metadata/keys.h"
#include "metadata/operation.h"
#include "metadata/records.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckTest : public VolumeTest {
 protected:
  CheckTest() {
    EXPECT_EQ(Allocate(file_, 0, 10), 0);
    EXPECT_TRUE(ns().SetXattr(file_, "user.a", "v", XattrMode::kEither, Tick()).ok());
    Make(dir_, "inner");
    EXPECT_THAT(Problems(store()), IsEmpty());
  }
  void TearDown() override {}  // what these tests leave is not sound

  void Put(const std::string& key, const std::string& value) {
    ASSERT_TRUE(Retry(store(), [&](Transaction& t) { return t.Put(key, value); }).ok());
  }
  void Delete(const std::string& key) {
    ASSERT_TRUE(Retry(store(), [&](Transaction& t) { return t.Delete(key); }).ok());
  }
  void Change(InodeNumber ino, const std::function<void(InodeRecord&)>& change) {
    InodeRecord inode = *ReadInode(*store().Snapshot(), ino);
    change(inode);
    Put(InodeKey(ino), EncodeInode(inode));
  }
  std::string NameKey(InodeNumber dir, std::string_view name) {
    return DentryKey(dir, NameHash(SmallVolume().uuid, SmallVolume().name_hash_bits)(name), name);
  }
  void ExpectProblem(const std::string& part) { EXPECT_THAT(Problems(store()), Contains(HasSubstr(part))); }

  const InodeNumber dir_ = MakeDir(kRootInode, "dir");
  const InodeNumber file_ = Make(kRootInode, "file");
};

TEST_F(CheckTest, DanglingDentry) {
  Delete(InodeKey(file_));
  ExpectProblem("entry 'file' names inode " + std::to_string(file_) + ", which does not exist");
  ExpectProblem("attribute of inode");
  ExpectProblem("which is no regular file");
  ExpectProblem("inode count is");
}

TEST_F(CheckTest, UnreachableInode) {
  Delete(NameKey(kRootInode, "file"));
  ExpectProblem("inode " + std::to_string(file_) + ": no directory names it");
  ExpectProblem("directory 1: size is 2, but it has 1 entries");
}

TEST_F(CheckTest, WrongLinkCounts) {
  Change(file_, [](InodeRecord& inode) { inode.attributes.nlink = 3; });
  Change(dir_, [](InodeRecord& inode) { inode.attributes.nlink = 5; });
  ExpectProblem("inode " + std::to_string(file_) + ": nlink is 3, but it has 1 names");
  ExpectProblem("directory " + std::to_string(dir_) + ": nlink is 5, should be 2");
}

TEST_F(CheckTest, OrphanLists) {
  Put(OrphanKey(file_), EncodeBytes(""));
  Put(OrphanKey(4711), EncodeBytes(""));
  Put(TruncationKey(file_), EncodeBytes(""));
  Change(dir_, [](InodeRecord& inode) { inode.attributes.nlink = 0; });
  ExpectProblem("listed as an orphan, but it has links");
  ExpectProblem("orphan 4711: no such inode");
  ExpectProblem("listed as truncated, but it is not");
  ExpectProblem("no links, but it is not listed as an orphan");
}

TEST_F(CheckTest, UnlistedTruncation) {
  Change(file_, [](InodeRecord& inode) { inode.trim_page = 5; });
  ExpectProblem("its unfinished truncation is not listed");
}

TEST_F(CheckTest, CircleOfDirectories) {
  const InodeNumber below = MakeDir(dir_, "below");
  Delete(NameKey(kRootInode, "dir"));
  Put(NameKey(below, "dir"), EncodeDentry({dir_, FileType::kDirectory, 0}));
  ExpectProblem("directory " + std::to_string(dir_) + ": the root does not lead to it");
  ExpectProblem("directory " + std::to_string(below) + ": the root does not lead to it");
  ExpectProblem("its parent is 1, but it is in");
}

TEST_F(CheckTest, BadDentries) {
  Put(DentryKey(kRootInode, 12345, "odd"), EncodeDentry({file_, FileType::kFifo, 0}));
  Put(NameKey(file_, "in-a-file"), EncodeDentry({file_, FileType::kRegular, 0}));
  Put(NameKey(kRootInode, "torn"), "x");
  ExpectProblem("entry 'odd' has the wrong hash");
  ExpectProblem("entry 'odd' has another type than inode");
  ExpectProblem("entry 'in-a-file' is in no directory");
  ExpectProblem("damaged entry");
}

TEST_F(CheckTest, DirectoryWithTwoNames) {
  Put(NameKey(kRootInode, "again"), EncodeDentry({dir_, FileType::kDirectory, 0}));
  ExpectProblem("directory " + std::to_string(dir_) + ": it has 2 names");
}

TEST_F(CheckTest, ExtentWithTwoOwners) {
  const InodeNumber thief = Make(kRootInode, "thief");
  const PageIndex page = ns().GetExtents(file_, 0, 10, 1)->at(0).region_page;
  Put(ExtentKey(thief, 0), EncodeExtent({0, 3, 0, page, false}));
  ExpectProblem("belong to");
  ExpectProblem("inode " + std::to_string(thief) + ": blocks is 0, but its extents have 3 pages");
}

TEST_F(CheckTest, ExtentsThatOverlapInTheFileOrLeaveTheRegion) {
  Put(ExtentKey(file_, 5), EncodeExtent({5, 1, 0, {4095}, false}));
  Put(ExtentKey(file_, 50), EncodeExtent({50, 2, 0, {4095}, false}));
  ExpectProblem("extents overlap at file page 5");
  ExpectProblem("are not in the region");
  ExpectProblem("pages 4095+1 are in use, but marked as free");
}

TEST_F(CheckTest, SpaceAheadThatIsNotListed) {
  ASSERT_TRUE(ns().AllocateExtents(file_, 20, 10, std::nullopt, Nanoseconds(1), 10).ok());
  Put(AheadKey(file_), EncodeNumber(29));
  ExpectProblem("space ahead up to file page 30, but listed up to 29");
  Delete(AheadKey(file_));
  ExpectProblem("its space ahead is not listed");
}

TEST_F(CheckTest, CutsThatAreNotListed) {
  Change(file_, [](InodeRecord& inode) { inode.attributes.cut = {.from = 100, .id = 1}; });
  Put(CutKey(dir_), EncodeBytes(""));
  ExpectProblem("inode " + std::to_string(file_) + ": that it is cut within a page is not listed");
  ExpectProblem("inode " + std::to_string(dir_) + " is listed as cut within a page, and is not");
}

TEST_F(CheckTest, LeakedPages) {
  const PageIndex page = ns().GetExtents(file_, 0, 10, 1)->at(0).region_page;
  Delete(ExtentKey(file_, 0));
  ExpectProblem("pages " + std::to_string(page.value) + "+10 are taken, but nobody has them");
}

TEST_F(CheckTest, LostBitmap) {
  Delete(GroupKey(0, 0));
  ExpectProblem("+10 are in use, but marked as free");
}

TEST_F(CheckTest, PendingPagesThatAreUsed) {
  const PageIndex page = ns().GetExtents(file_, 0, 10, 1)->at(0).region_page;
  Put(PendingKey(0, page), EncodeNumber(2));
  ExpectProblem("the pending-free list");
}

TEST_F(CheckTest, BadSizesAndCounts) {
  const InodeNumber link = Make(kRootInode, "link", S_IFLNK | 0777);
  Change(link, [](InodeRecord& inode) { inode.attributes.size = 99; });
  Change(file_, [](InodeRecord& inode) { inode.attributes.size = ~uint64_t{0}; });
  Change(dir_, [](InodeRecord& inode) { inode.attributes.size = 9; });
  Put(XattrKey(file_, "user.b"), EncodeBytes(""));
  Put(NextInodeKey(), EncodeNumber(2));
  ExpectProblem("impossible size 99");
  ExpectProblem("impossible size 18446744073709551615");
  ExpectProblem("size is 9, but it has 1 entries");
  ExpectProblem("names of attributes should have 7 bytes, but have 14");
  ExpectProblem("its number was never given out");
}

TEST_F(CheckTest, DamagedAndUnknownRecords) {
  Put("Y?", "?");
  Put(ClientKey(1), "?");
  Put(ReceiptKey(1, 0), "?");
  Put(InodeKey(file_), "?");
  Put(GroupKey(0, 0), "?");
  Put(GroupKey(0, 7), "?");
  Put(PendingKey(0, {77}), "?");
  Put(ExtentKey(file_, 3), "?");
  ExpectProblem("keys of unknown type 0x59");
  ExpectProblem("clients: damaged record");
  ExpectProblem("receipts: damaged record");
  ExpectProblem("inode " + std::to_string(file_) + ": damaged record");
  ExpectProblem("allocation group 0: damaged record");
  ExpectProblem("allocation group 7 of server 0 is not in the region");
  ExpectProblem("damaged range");
  ExpectProblem("damaged extent");
}

TEST_F(CheckTest, Problems_AreCountedBeyondTheLimit) {
  Delete(InodeKey(file_));
  const auto report = Check(store(), {1});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->problems.size(), 1u);
  EXPECT_GT(report->problem_count, 3u);
}

}  // namespace
}  // namespace termfs::metadata

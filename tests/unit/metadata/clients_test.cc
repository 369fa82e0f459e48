// SPDX-License-Identifier: Apache-2.0
//
// Clients that may come back, and the receipts of what was done for them.
#include "metadata/records.h"
#include "tests/unit/metadata/test_volume.h"

namespace termfs::metadata {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ClientsTest : public VolumeTest {
 protected:
  std::optional<Receipt> Find(const Stamp& stamp) {
    const auto found = ns().FindReceipt(stamp);
    EXPECT_TRUE(found.ok()) << found.status().ToString();
    return found.ok() ? *found : std::nullopt;
  }
  int CreateCode(std::string_view name, const Stamp& stamp) {
    return ns().Create(kRootInode, name, {S_IFREG | 0644, 0, ""}, {}, Tick(), &stamp).status().code();
  }
  std::vector<ClientRecord> Clients() {
    const auto clients = ns().ListClients();
    EXPECT_TRUE(clients.ok()) << clients.status().ToString();
    return clients.ok() ? *clients : std::vector<ClientRecord>{};
  }
};

TEST_F(ClientsTest, AreListedUntilRemoved) {
  const ClientRecord a{.client = 5, .reconnect_seconds = 60, .pid = 77, .started = 1234, .caches = true};
  ClientRecord b{.client = ~uint64_t{0}, .reconnect_seconds = 1, .pid = 0, .started = 0};
  ASSERT_TRUE(ns().AddClient(a).ok());
  ASSERT_TRUE(ns().AddClient(b).ok());
  b.pid = 9;
  ASSERT_TRUE(ns().AddClient(b).ok());
  EXPECT_THAT(Clients(), ElementsAre(a, b));
  ASSERT_TRUE(ns().RemoveClient(5).ok());
  EXPECT_THAT(Clients(), ElementsAre(b));
  EXPECT_TRUE(ns().RemoveClient(5).ok()) << "it is not there";
  ASSERT_TRUE(ns().RemoveClient(b.client).ok());
  EXPECT_THAT(Clients(), IsEmpty());
}

TEST(ClientRecords, WrittenBeforeThereWereGrants_AreRead) {
  const ClientRecord record{.client = 5, .reconnect_seconds = 60, .pid = 77, .started = 1234, .caches = true};
  const std::string bytes = EncodeClient(record);
  const auto before = DecodeClient(5, std::string_view(bytes).substr(0, bytes.size() - 1));
  ASSERT_TRUE(before.ok()) << before.status().ToString();
  EXPECT_EQ(before->pid, 77u);
  EXPECT_FALSE(before->caches);
  EXPECT_FALSE(DecodeClient(5, std::string_view(bytes).substr(0, bytes.size() - 2)).ok());
  EXPECT_FALSE(DecodeClient(5, bytes + '\0').ok());
}

TEST(ClientRecords, SayWhetherItWasExpelled) {
  ClientRecord record{.client = 5, .reconnect_seconds = 60, .pid = 77, .started = 1234, .caches = false};
  for (const bool caches : {false, true}) {
    for (const bool expelled : {false, true}) {
      record.caches = caches;
      record.expelled = expelled;
      const auto decoded = DecodeClient(5, EncodeClient(record));
      ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
      EXPECT_EQ(*decoded, record);
    }
  }
  std::string bytes = EncodeClient(record);
  bytes.back() = 4;
  EXPECT_FALSE(DecodeClient(5, bytes).ok());
}

TEST_F(ClientsTest, Receipt_ComesWithTheEffectAndOnlyWithIt) {
  const Stamp stamp{.client = 5, .slot = 3, .sequence = 1};
  EXPECT_EQ(CreateCode("f", stamp), 0);
  const auto receipt = Find(stamp);
  ASSERT_TRUE(receipt.has_value());
  EXPECT_EQ(receipt->ino, ns().Lookup(kRootInode, "f")->ino);
  const Stamp failing{.client = 5, .slot = 3, .sequence = 2};
  EXPECT_EQ(CreateCode("f", failing), EEXIST);
  EXPECT_FALSE(Find(failing).has_value());
  EXPECT_TRUE(Find(stamp).has_value());
  EXPECT_FALSE(Find({.client = 5, .slot = 4, .sequence = 1}).has_value());
  EXPECT_FALSE(Find({.client = 6, .slot = 3, .sequence = 1}).has_value());
}

TEST_F(ClientsTest, Receipt_IsReplacedByTheNextAndNeverByAnOlder) {
  EXPECT_EQ(CreateCode("a", {.client = 5, .slot = 0, .sequence = 1}), 0);
  EXPECT_EQ(CreateCode("b", {.client = 5, .slot = 0, .sequence = 4}), 0);
  EXPECT_FALSE(Find({.client = 5, .slot = 0, .sequence = 1}).has_value());
  EXPECT_EQ(CreateCode("c", {.client = 5, .slot = 0, .sequence = 4}), ECANCELED) << "twice";
  EXPECT_EQ(CreateCode("c", {.client = 5, .slot = 0, .sequence = 3}), ECANCELED) << "late";
  EXPECT_EQ(ns().Lookup(kRootInode, "c").status().code(), ENOENT) << "nothing has happened then";
  EXPECT_EQ(CreateCode("c", {.client = 5, .slot = 1, .sequence = 1}), 0) << "another slot";
}

TEST_F(ClientsTest, Receipt_OfAPart_IsReplacedByThatOfTheWhole) {
  const InodeNumber file = Make(kRootInode, "f");
  const Stamp stamp{.client = 5, .slot = 0, .sequence = 1};
  ASSERT_TRUE(ns().Truncate(file, 100, Tick(), &stamp, /*partly=*/true).ok());
  ASSERT_TRUE(Find(stamp).has_value());
  EXPECT_TRUE(Find(stamp)->partly);
  AttributeChange change;
  change.mode = 0600;
  ASSERT_TRUE(ns().SetAttr(file, change, Tick(), &stamp).ok());
  EXPECT_FALSE(Find(stamp)->partly);
  EXPECT_EQ(ns().SetAttr(file, change, Tick(), &stamp).status().code(), ECANCELED);
}

TEST_F(ClientsTest, Receipt_OfAnAppend_SaysWhere) {
  const InodeNumber file = Make(kRootInode, "f");
  const Stamp stamp{.client = 5, .slot = 0, .sequence = 1};
  ASSERT_TRUE(ns().SetSizeAndTimes(file, 107, SizeRule::kIfLarger, Tick(), Tick(), &stamp, 100).ok());
  ASSERT_TRUE(Find(stamp).has_value());
  EXPECT_EQ(Find(stamp)->offset, 100u);
}

TEST_F(ClientsTest, Remove_TakesTheReceiptsOfThatClient) {
  const Stamp mine{.client = 5, .slot = 2, .sequence = 1};
  const Stamp others{.client = 6, .slot = 2, .sequence = 1};
  ASSERT_TRUE(ns().AddClient({.client = 5, .reconnect_seconds = 60, .pid = 0, .started = 0}).ok());
  EXPECT_EQ(CreateCode("f", mine), 0);
  EXPECT_EQ(CreateCode("g", others), 0);
  ASSERT_TRUE(ns().RemoveClient(5).ok());
  EXPECT_FALSE(Find(mine).has_value());
  EXPECT_TRUE(Find(others).has_value());
}

TEST_F(ClientsTest, InodesAreCounted_WhoeverMadeThem) {
  EXPECT_EQ(CreateCode("a", {.client = 5, .slot = 0, .sequence = 1}), 0);
  EXPECT_EQ(CreateCode("b", {.client = 5, .slot = 1, .sequence = 1}), 0);
  EXPECT_EQ(CreateCode("c", {.client = 6, .slot = 0, .sequence = 1}), 0);
  Make(kRootInode, "d");
  const Stamp removal{.client = 6, .slot = 0, .sequence = 2};
  ASSERT_TRUE(ns().Unlink(kRootInode, "a", kNotOpen, Tick(), &removal).ok());
  const Stamp again{.client = 6, .slot = 0, .sequence = 3};
  ASSERT_TRUE(ns().Unlink(kRootInode, "d", kNotOpen, Tick(), &again).ok());
  EXPECT_EQ(CreateCode("b", {.client = 6, .slot = 0, .sequence = 4}), EEXIST);
  constexpr uint64_t kRootAndBAndC = 3;
  EXPECT_EQ(ns().StatFs().inodes, kRootAndBAndC);
  Reopen();
  EXPECT_EQ(ns().StatFs().inodes, kRootAndBAndC);
  for (const ClientNumber client : {5, 6}) {
    ASSERT_TRUE(ns().RemoveClient(client).ok());
    EXPECT_THAT(Problems(store()), IsEmpty());
    Reopen();
    EXPECT_EQ(ns().StatFs().inodes, kRootAndBAndC) << "without client " << client;
  }
}

TEST(Receipts, WrittenBeforeInodesWereCountedThere_AreRead) {
  const Receipt receipt{.sequence = 9, .ino = 8, .offset = 7, .partly = true, .inodes = -6};
  const std::string bytes = EncodeReceipt(receipt);
  EXPECT_EQ(*DecodeReceipt(bytes), receipt);
  const auto before = DecodeReceipt(std::string_view(bytes).substr(0, bytes.size() - 8));
  ASSERT_TRUE(before.ok()) << before.status().ToString();
  EXPECT_EQ(before->sequence, 9u);
  EXPECT_EQ(before->inodes, 0);
  EXPECT_FALSE(DecodeReceipt(std::string_view(bytes).substr(0, bytes.size() - 1)).ok());
  EXPECT_FALSE(DecodeReceipt(bytes + '\0').ok());
}

}  // namespace
}  // namespace termfs::metadata

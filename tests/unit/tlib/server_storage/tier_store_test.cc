// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/tier_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <span>

#include "driver/checksum.h"
#include "tests/unit/tlib/server_storage/temp_folder.h"
#include "tlib/server/page_entry.h"

namespace termfs::tlib::server {
namespace {

constexpr uint64_t kPages = 1024;
constexpr uint32_t kFrames = 256;
// Of the header.
constexpr size_t kCrcAt = 12;
constexpr size_t kMaxPagesAt = 32;
constexpr size_t kTextBytes = 48;  // of the volume and, at the end, of the boot

std::string Slurp(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A directory on a tmpfs, and a folder on a disk for the record.
class TierStoreTest : public testing::Test {
 protected:
  TierStoreTest() {
    std::string name = "/dev/shm/termfs-tier-XXXXXX";
    TERMFS_CHECK(mkdtemp(name.data()) != nullptr);
    shm_ = name;
    options_ = {.directory = shm_ + "/one", .own_tmpfs = false, .record = disk_.path() + "/tier", .volume = "v"};
  }
  ~TierStoreTest() override { std::filesystem::remove_all(shm_); }

  std::unique_ptr<TierStore> Open(bool commit = true) {
    auto store = TierStore::Open(options_, kPages, kPages, kFrames);
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    if (commit) {
      const Status committed = Commit(**store);
      EXPECT_TRUE(committed.ok()) << committed.ToString();
    }
    return std::move(*store);
  }
  // With frames as the RNIC would name them.
  Status Commit(TierStore& store) {
    return store.Commit([this] {
      std::ofstream(File("frames")) << "frames";
      return Status::Ok();
    });
  }
  // What a server that is killed leaves.
  void Leave(uint64_t word) {
    const auto store = Open();
    store->cells()[7].store(word);
  }
  Status Refused() { return TierStore::Open(options_, kPages, kPages, kFrames).status(); }
  std::string File(const char* name) const { return options_.directory + "/" + name; }
  void Overwrite(const char* name, const std::string& bytes) { std::ofstream(File(name)) << bytes; }
  // The header has `bytes` at `at`, and the checksum that belongs to them.
  void ForgeHeader(size_t at, const std::string& bytes) {
    std::string header = Slurp(File("header"));
    header.replace(at, bytes.size(), bytes);
    header.replace(kCrcAt, sizeof(uint32_t), sizeof(uint32_t), '\0');
    const uint32_t crc = driver::Crc32c(std::as_bytes(std::span(header)));
    header.replace(kCrcAt, sizeof(crc), {reinterpret_cast<const char*>(&crc), sizeof(crc)});
    Overwrite("header", header);
  }

  TempFolder disk_;
  std::string shm_;
  TierOptions options_;
};

TEST_F(TierStoreTest, Open_AfterAKill_ResumesTheWords) {
  Leave(42);
  const auto again = Open();
  EXPECT_TRUE(again->resumed());
  EXPECT_EQ(again->cells()[7].load(), 42u);
  EXPECT_EQ(again->cells()[8].load(), 0u);
}

TEST_F(TierStoreTest, Open_AfterARefusalInBetween_StillResumes) {
  Leave(42);
  { const auto never_committed = Open(/*commit=*/false); }
  EXPECT_EQ(Open()->cells()[7].load(), 42u);
}

TEST_F(TierStoreTest, Open_BeforeCommit_DiscardsWhatWasNeverComplete) {
  { Open(/*commit=*/false)->cells()[7].store(42); }
  const auto again = Open();
  EXPECT_FALSE(again->resumed());
  EXPECT_EQ(again->cells()[7].load(), 0u);
}

// What is where in the frames is not what a server of the other kind would take it for.
TEST_F(TierStoreTest, Open_KeptWithFramesOfTheOtherKind_IsRefused) {
  Leave(42);
  options_.sparse_frames = true;
  EXPECT_EQ(Refused().code(), EUCLEAN);
  options_.sparse_frames = false;
  EXPECT_EQ(Open()->cells()[7].load(), 42u);
  ASSERT_TRUE(Open()->Remove().ok());
  options_.sparse_frames = true;
  Leave(43);
  EXPECT_TRUE(Open()->resumed());
  EXPECT_EQ(TierStore::LookAtKept(options_, kPages)->value().directory, options_.directory);
  options_.sparse_frames = false;
  EXPECT_EQ(Refused().code(), EUCLEAN);
}

// Of its own: with huge pages where the kernel has them, for frames that a random read touches.
TEST_F(TierStoreTest, OwnTmpfs_HasHugePagesAndGoesWithRemove) {
  options_.own_tmpfs = true;
  const auto store = TierStore::Open(options_, kPages, kPages, kFrames);
  if (!store.ok() && store.status().code() == EPERM) {
    GTEST_SKIP() << "this user may not mount";
  }
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const std::string mounts = Slurp("/proc/self/mounts");
  const size_t at = mounts.find(' ' + options_.directory + " tmpfs ");
  ASSERT_NE(at, std::string::npos);
  if (std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) {
    EXPECT_NE(mounts.substr(at, mounts.find('\n', at) - at).find("huge=within_size"), std::string::npos);
  }
  ASSERT_TRUE((*store)->Remove().ok());
  EXPECT_EQ(Slurp("/proc/self/mounts").find(options_.directory), std::string::npos);
}

// What a refused start has made, and nothing else, is gone: neither its directory stays, nor that of all volumes.
TEST_F(TierStoreTest, Open_Refused_LeavesNothingBehind) {
  const std::string elsewhere = disk_.path() + "/elsewhere";
  options_.directory = elsewhere + "/volume";
  EXPECT_EQ(Refused().code(), EINVAL);
  EXPECT_FALSE(std::filesystem::exists(elsewhere));
  std::filesystem::create_directory(elsewhere);
  EXPECT_EQ(Refused().code(), EINVAL);
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere));
  std::filesystem::remove(elsewhere);
}

// Its memory is that of files without names, which end with the process.
TEST_F(TierStoreTest, Open_BeforeCommit_HasNothingThatOutlivesTheProcess) {
  const auto store = Open(/*commit=*/false);
  store->cells()[7].store(42);
  EXPECT_TRUE(std::filesystem::is_empty(options_.directory));
  ASSERT_TRUE(Commit(*store).ok());
  EXPECT_TRUE(std::filesystem::exists(File("states")));
  EXPECT_TRUE(std::filesystem::exists(options_.record));
}

TEST_F(TierStoreTest, Open_ThatIsNotCommitted_LeavesNothingBehind) {
  { const auto store = Open(/*commit=*/false); }
  EXPECT_FALSE(std::filesystem::exists(options_.directory));
  EXPECT_FALSE(std::filesystem::exists(options_.record));
}

TEST_F(TierStoreTest, Open_OfWhatDiedWhileItBecameComplete_StartsAnew) {
  {
    const auto store = Open(/*commit=*/false);
    ASSERT_EQ(store->Commit([] { return Status::Error(EIO, "injected"); }).code(), EIO);
    std::filesystem::copy(options_.directory, shm_ + "/left");
    std::filesystem::copy(options_.record, shm_ + "/record");
  }
  std::filesystem::rename(shm_ + "/left", options_.directory);
  std::filesystem::permissions(options_.directory, std::filesystem::perms::owner_all);
  std::filesystem::copy(shm_ + "/record", options_.record);
  EXPECT_FALSE(Open()->resumed());
}

TEST_F(TierStoreTest, Open_WhereTheMachineHasTooLittle_SaysWhatWouldFit) {
  options_.spare_bytes = UINT64_MAX / 2;
  const Status refused = Refused();
  EXPECT_EQ(refused.code(), ENOMEM);
  EXPECT_NE(refused.message().find("fits"), std::string::npos) << refused.message();
  EXPECT_FALSE(std::filesystem::exists(options_.directory));
  options_.directory.clear();
  EXPECT_EQ(Refused().code(), ENOMEM);
}

// What the rest of the server has taken since the start is not available any more, and is not asked for again.
TEST_F(TierStoreTest, CheckRoom_LeavesWhatTheRestOfTheServerWantsNow) {
  constexpr uint64_t kRoom = 64 * kPages;
  uint64_t spare = 0;
  options_.spare_now = [&spare] { return spare; };
  auto store = TierStore::Open(options_, kPages, kRoom, kFrames);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_TRUE((*store)->CheckRoom(2 * kPages, kFrames, kFrames).ok());
  spare = UINT64_MAX / 2;
  EXPECT_EQ((*store)->CheckRoom(2 * kPages, kFrames, kFrames).code(), ENOMEM);
}

// Its own memory is there; that there is no page besides does not matter.
TEST_F(TierStoreTest, Resume_WhereTheMachineIsFull_NeedsNoMore) {
  Leave(42);
  options_.spare_bytes = UINT64_MAX / 2;
  Overwrite("frames", std::string(kFrames * kPageSize, 'f'));
  EXPECT_EQ(Open()->cells()[7].load(), 42U);
}

TEST_F(TierStoreTest, LookAtKept_CountsThePagesThatTheSsdHasNot) {
  const auto kept = [this] {
    auto found = TierStore::LookAtKept(options_, kPages);
    EXPECT_TRUE(found.ok()) << found.status().ToString();
    return found.ok() ? *found : std::nullopt;
  };
  EXPECT_FALSE(kept().has_value()) << "no server has run";
  PageEntry clean;
  clean.set_state(PageState::kClean);
  Leave(clean.bits());
  ASSERT_TRUE(kept().has_value());
  EXPECT_EQ(kept()->dirty_pages, 0U);
  for (const PageState state : {PageState::kDirty, PageState::kWritingBack, PageState::kWritingBackRedirtied}) {
    PageEntry dirty;
    dirty.set_state(state);
    Leave(dirty.bits());
    EXPECT_EQ(kept()->dirty_pages, 1U);
    EXPECT_EQ(kept()->directory, options_.directory);
  }
  EXPECT_TRUE(Open()->resumed()) << "looking changes nothing";
  ASSERT_TRUE(Open()->Remove().ok());
  EXPECT_FALSE(kept().has_value()) << "a clean stop";
}

TEST_F(TierStoreTest, LookAtKept_OfWhatItCannotReadNamesThePlace) {
  Leave(42);
  const std::string old = options_.directory;
  options_.directory = shm_ + "/two";
  auto kept = TierStore::LookAtKept(options_, kPages);
  ASSERT_TRUE(kept.ok() && kept->has_value());
  EXPECT_EQ((*kept)->directory, old);
  EXPECT_FALSE((*kept)->dirty_pages.has_value());
  options_.directory = old;
  Overwrite("header", "short");
  kept = TierStore::LookAtKept(options_, kPages);
  ASSERT_TRUE(kept.ok() && kept->has_value());
  EXPECT_FALSE((*kept)->dirty_pages.has_value());
}

TEST_F(TierStoreTest, LookAtKept_OfAnEarlierBootFindsNothing) {
  Leave(42);
  std::string record = Slurp(options_.record);
  record.replace(record.find("boot ") + 5, 8, "00000000");
  std::ofstream(options_.record) << record;
  const auto kept = TierStore::LookAtKept(options_, kPages);
  ASSERT_TRUE(kept.ok()) << kept.status().ToString();
  EXPECT_FALSE(kept->has_value());
}

TEST_F(TierStoreTest, Remove_LeavesNothing) {
  ASSERT_TRUE(Open()->Remove().ok());
  EXPECT_FALSE(std::filesystem::exists(options_.directory));
  EXPECT_FALSE(std::filesystem::exists(options_.record));
  EXPECT_FALSE(Open()->resumed());
}

TEST_F(TierStoreTest, Open_WithoutDirectory_IsTheProcesssMemory) {
  options_.directory.clear();
  const auto store = Open();
  EXPECT_FALSE(store->resumed());
  EXPECT_EQ(store->directory(), "");
  EXPECT_EQ(store->cells().size(), kPages);
  EXPECT_FALSE(std::filesystem::exists(options_.record));
}

TEST_F(TierStoreTest, Open_OfAnEarlierBoot_Discards) {
  Leave(42);
  std::string record = Slurp(options_.record);
  record.replace(record.find("boot ") + 5, 8, "00000000");
  std::ofstream(options_.record) << record;
  EXPECT_FALSE(Open()->resumed());
}

TEST_F(TierStoreTest, Open_AfterTheTmpfsWasDropped_StartsAnew) {
  Leave(42);
  std::filesystem::remove_all(options_.directory);
  EXPECT_FALSE(Open()->resumed());
}

TEST_F(TierStoreTest, Open_WithADamagedHeader_RefusesAndSaysWhatToDo) {
  Leave(42);
  std::string header = Slurp(File("header"));
  header[20] = static_cast<char>(header[20] ^ 1);
  Overwrite("header", header);
  const Status refused = Refused();
  EXPECT_EQ(refused.code(), EUCLEAN);
  EXPECT_NE(refused.message().find(options_.record), std::string::npos) << refused.message();
  std::filesystem::remove(options_.record);  // as it says
  EXPECT_FALSE(Open()->resumed());
}

// With a checksum that is right, as a program with a defect would have written it.
TEST_F(TierStoreTest, Open_HeaderWhoseTextsDoNotEnd_IsRefused) {
  Leave(42);
  const std::string header = Slurp(File("header"));
  const size_t texts = header.size() - 2 * kTextBytes;
  ForgeHeader(texts + kTextBytes, std::string(kTextBytes, 'b'));
  EXPECT_EQ(Refused().code(), EUCLEAN);
  Overwrite("header", header);
  ForgeHeader(texts, std::string(kTextBytes, 'v'));
  EXPECT_NE(Refused().message().find("damaged"), std::string::npos) << Refused().message();
}

TEST_F(TierStoreTest, Open_HeaderWithMorePagesThanCanBeCounted_IsRefused) {
  Leave(42);
  const uint64_t pages = (uint64_t{1} << 61) + kPages;  // their words take as many bytes as those of kPages
  ForgeHeader(kMaxPagesAt, {reinterpret_cast<const char*>(&pages), sizeof(pages)});
  EXPECT_EQ(Refused().code(), EUCLEAN);
}

TEST_F(TierStoreTest, Open_OfAnotherSizeOrVolume_Refuses) {
  Leave(42);
  EXPECT_EQ(TierStore::Open(options_, kPages * 2, kPages * 2, kFrames).status().code(), EUCLEAN);
  options_.volume = "w";
  EXPECT_EQ(Refused().code(), EUCLEAN);
  options_.volume = "v";
  Overwrite("states", "short");
  EXPECT_EQ(Refused().code(), EUCLEAN);
}

TEST_F(TierStoreTest, Resume_OfALargerRegion_HasItsRoomAndForgetsWhatIsBeyond) {
  constexpr uint64_t kRoom = 64 * kPages;
  {
    auto store = TierStore::Open(options_, kPages, kRoom, kFrames);
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    ASSERT_TRUE(Commit(**store).ok());
    ASSERT_TRUE((*store)->CheckRoom(kRoom, 0, 0).ok());
    ASSERT_TRUE((*store)->MakeRoom(kRoom).ok());
    EXPECT_EQ((*store)->cells().size(), kRoom);
    (*store)->cells()[0].store(1);
    (*store)->cells()[2 * kPages - 1].store(2);
    (*store)->cells()[2 * kPages].store(3);
    (*store)->cells()[kRoom - 1].store(4);
    EXPECT_EQ((*store)->CheckRoom(kRoom, UINT32_MAX - 1, 0).code(), ENOSPC) << "16 TiB of frames";
  }
  auto store = TierStore::Open(options_, 2 * kPages, 2 * kPages, kFrames);
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_TRUE((*store)->resumed());
  EXPECT_EQ((*store)->max_pages(), kRoom);
  EXPECT_EQ((*store)->cells()[0].load(), 1U);
  EXPECT_EQ((*store)->cells()[2 * kPages - 1].load(), 2U);
  ASSERT_TRUE((*store)->MakeRoom(kRoom).ok());
  EXPECT_EQ((*store)->cells()[2 * kPages].load(), 0U);
  EXPECT_EQ((*store)->cells()[kRoom - 1].load(), 0U);
}

TEST_F(TierStoreTest, Open_Elsewhere_RefusesWhileTheOldMayHoldWrites) {
  Leave(42);
  const std::string old = options_.directory;
  options_.directory = shm_ + "/two";
  const Status refused = Refused();
  EXPECT_EQ(refused.code(), EUCLEAN);
  EXPECT_NE(refused.message().find(old), std::string::npos) << refused.message();
  std::filesystem::remove_all(old);
  EXPECT_FALSE(Open()->resumed());
}

// Somebody has to look: what cannot be seen is not gone.
TEST_F(TierStoreTest, Open_Elsewhere_RefusesWhenTheOldCannotBeSeen) {
  Leave(42);
  std::filesystem::rename(options_.directory, shm_ + "/hidden");
  std::ofstream(options_.directory) << "not a directory";
  options_.directory = shm_ + "/two";
  EXPECT_EQ(Refused().code(), EUCLEAN);
  options_.directory.clear();
  EXPECT_EQ(Refused().code(), EUCLEAN);
}

TEST_F(TierStoreTest, Open_WithoutDirectory_RefusesWhileTheOldMayHoldWrites) {
  Leave(42);
  const std::string old = options_.directory;
  options_.directory.clear();
  const Status refused = Refused();
  EXPECT_EQ(refused.code(), EUCLEAN);
  EXPECT_NE(refused.message().find(old), std::string::npos) << refused.message();
  const auto kept = TierStore::LookAtKept(options_, kPages);
  ASSERT_TRUE(kept.ok() && kept->has_value());
  EXPECT_EQ((*kept)->directory, old);
  options_.directory = old;  // as it says
  EXPECT_EQ(Open()->cells()[7].load(), 42u);
  ASSERT_TRUE(Open()->Remove().ok());
  options_.directory.clear();
  EXPECT_TRUE(Refused().ok());
}

// A server that had no tier wrote to the SSD: what an earlier one kept is older, wherever it turns up again.
TEST_F(TierStoreTest, Open_WithoutDirectory_EndsTheRecordOfWhatIsGone) {
  Leave(42);
  const std::string old = options_.directory;
  std::filesystem::rename(old, shm_ + "/hidden");
  options_.directory.clear();
  EXPECT_FALSE(Open()->resumed());
  EXPECT_FALSE(std::filesystem::exists(options_.record));
  std::filesystem::rename(shm_ + "/hidden", old);
  options_.directory = old;
  EXPECT_FALSE(Open()->resumed());
}

TEST_F(TierStoreTest, Open_OfWhatIsOlderThanALaterStart_Discards) {
  Leave(42);
  const std::string old = options_.directory;
  std::filesystem::rename(old, shm_ + "/hidden");
  options_.directory = shm_ + "/two";
  Leave(43);
  std::filesystem::remove_all(options_.directory);
  std::filesystem::rename(shm_ + "/hidden", old);
  options_.directory = old;
  EXPECT_FALSE(Open()->resumed()) << "a server has written to the SSD since";
}

TEST_F(TierStoreTest, Open_OfWhatIsOlderThanALaterStartAtTheSamePlace_Discards) {
  Leave(42);
  std::filesystem::rename(options_.directory, shm_ + "/hidden");
  Leave(43);
  std::filesystem::remove_all(options_.directory);
  std::filesystem::rename(shm_ + "/hidden", options_.directory);
  EXPECT_FALSE(Open()->resumed());
}

// The same volume, as its copy in another folder would be served.
class TierStoreCopyTest : public TierStoreTest {
 protected:
  TierStoreCopyTest() : copy_(options_) { copy_.record = elsewhere_.path() + "/tier"; }
  void CopyRecord() { std::filesystem::copy_file(options_.record, copy_.record); }
  Result<std::unique_ptr<TierStore>> OpenCopy() { return TierStore::Open(copy_, kPages, kPages, kFrames); }

  TempFolder elsewhere_;
  TierOptions copy_;
};

TEST_F(TierStoreCopyTest, Open_WhileTheOriginalIsServed_IsRefused) {
  const auto store = Open();
  store->cells()[7].store(42);
  for (const bool with_record : {false, true}) {
    if (with_record) {
      CopyRecord();
    }
    const Status refused = OpenCopy().status();
    EXPECT_EQ(refused.code(), EBUSY) << refused.ToString();
    EXPECT_NE(refused.message().find("is in use by process " + std::to_string(getpid())), std::string::npos)
        << refused.message();
    EXPECT_TRUE(std::filesystem::exists(File("header")) && std::filesystem::exists(File("states")));
  }
}

// Its limit would change under who runs, and its name go to another.
TEST_F(TierStoreCopyTest, Open_WhileTheOriginalIsServed_LeavesItsTmpfs) {
  options_.own_tmpfs = copy_.own_tmpfs = true;
  const auto store = TierStore::Open(options_, kPages, kPages, kFrames);
  if (!store.ok() && store.status().code() == EPERM) {
    GTEST_SKIP() << "this user may not mount";
  }
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  const auto before = std::filesystem::space(options_.directory).capacity;
  EXPECT_EQ(TierStore::Open(copy_, 4 * kPages, 4 * kPages, kFrames).status().code(), EBUSY);
  EXPECT_EQ(std::filesystem::space(options_.directory).capacity, before);
  ASSERT_TRUE((*store)->Remove().ok());
  EXPECT_EQ(Slurp("/proc/self/mounts").find(options_.directory), std::string::npos) << "one was mounted over it";
}

TEST_F(TierStoreCopyTest, Open_AfterTheOriginalWasKilled_IsRefused) {
  Leave(42);
  for (const bool with_record : {false, true}) {
    if (with_record) {
      CopyRecord();
    }
    const Status refused = OpenCopy().status();
    EXPECT_EQ(refused.code(), EUCLEAN) << refused.ToString();
    EXPECT_NE(refused.message().find(disk_.path()), std::string::npos) << refused.message();
    EXPECT_EQ(refused.message().find(File("owner")) != std::string::npos, with_record) << refused.message();
    const auto kept = TierStore::LookAtKept(copy_, kPages);
    ASSERT_TRUE(kept.ok() && kept->has_value());
    EXPECT_FALSE((*kept)->dirty_pages.has_value());
  }
  EXPECT_EQ(Open()->cells()[7].load(), 42u);
}

TEST_F(TierStoreCopyTest, Open_OfOneThatGivesTheWritesUp_StartsAnew) {
  Leave(42);
  std::filesystem::remove(File("header"));  // as the refusal says
  const auto store = OpenCopy();
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_FALSE((*store)->resumed());
}

// To another file system, say: only people know that it is no copy.
TEST_F(TierStoreCopyTest, Open_OfOneThatWasMoved_ResumesWhenItIsTold) {
  Leave(42);
  CopyRecord();
  std::filesystem::remove(options_.record);
  std::filesystem::remove(disk_.path());
  EXPECT_EQ(OpenCopy().status().code(), EUCLEAN);
  std::filesystem::remove(File("owner"));  // as the refusal says
  {
    const auto store = OpenCopy();
    ASSERT_TRUE(store.ok()) << store.status().ToString();
    EXPECT_EQ((*store)->cells()[7].load(), 42u);
    ASSERT_TRUE(Commit(**store).ok());
  }
  EXPECT_TRUE((*OpenCopy())->resumed()) << "it is the owner now";
}

TEST_F(TierStoreCopyTest, Open_AfterTheOriginalHadFlushedEverything_StartsAnew) {
  Leave(42);
  std::filesystem::remove(options_.record);  // how a clean stop begins
  const auto store = OpenCopy();
  ASSERT_TRUE(store.ok()) << store.status().ToString();
  EXPECT_FALSE((*store)->resumed());
}

TEST_F(TierStoreTest, Open_AfterAMoveOfTheFolder_Resumes) {
  const std::string folder = disk_.path() + "/volume";
  std::filesystem::create_directory(folder);
  options_.record = folder + "/tier";
  Leave(42);
  std::filesystem::rename(folder, disk_.path() + "/moved");
  options_.record = disk_.path() + "/moved/tier";
  EXPECT_EQ(Open()->cells()[7].load(), 42u);
  std::filesystem::remove_all(disk_.path() + "/moved");
}

// One that an earlier program left.
TEST_F(TierStoreTest, Open_WithoutOwner_Resumes) {
  Leave(42);
  std::filesystem::remove(File("owner"));
  EXPECT_EQ(Open()->cells()[7].load(), 42u);
}

TEST_F(TierStoreTest, Open_WithADamagedOwner_Refuses) {
  Leave(42);
  for (const char* text : {"", "folder 1", "record x\n", "folder 1\nrecord x"}) {
    Overwrite("owner", text);
    const Status refused = Refused();
    EXPECT_EQ(refused.code(), EUCLEAN) << text;
    EXPECT_NE(refused.message().find(File("owner")), std::string::npos) << refused.message();
  }
}

TEST_F(TierStoreTest, Open_NotOnATmpfs_IsAnErrorWithAdvice) {
  options_.directory = disk_.path() + "/memory";
  const Status refused = Refused();
  EXPECT_EQ(refused.code(), EINVAL) << refused.ToString();
  EXPECT_NE(refused.message().find("tmpfs"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(options_.directory));
}

TEST_F(TierStoreTest, Open_ADirectoryThatOthersMayEnter_IsRefused) {
  ASSERT_EQ(mkdir(options_.directory.c_str(), 0700), 0);
  ASSERT_EQ(chmod(options_.directory.c_str(), 0755), 0);
  EXPECT_EQ(Refused().code(), EACCES);
}

TEST_F(TierStoreTest, Open_OnATmpfsThatIsTooSmall_NamesWhatIsNeeded) {
  const Status refused = TierStore::Open(options_, uint64_t{1} << 32, uint64_t{1} << 32, UINT32_MAX - 1).status();
  EXPECT_EQ(refused.code(), ENOSPC) << refused.ToString();
  EXPECT_NE(refused.message().find("MiB"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("dram-ratio"), std::string::npos) << refused.message();
}

}  // namespace
}  // namespace termfs::tlib::server

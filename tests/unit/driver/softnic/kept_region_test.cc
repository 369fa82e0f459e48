// SPDX-License-Identifier: Apache-2.0
//
// Regions whose frames and page table are files on a tmpfs and outlive their process.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "driver/softnic/page_table.h"
#include "driver/softnic/shared_object.h"
#include "tests/unit/driver/softnic/connection.h"

namespace termfs::driver {
namespace {

constexpr uint64_t kPages = 64;

class KeptRegion : public testing::Test {
 protected:
  KeptRegion() {
    std::string name = "/dev/shm/termfs-region-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  ~KeptRegion() override { std::filesystem::remove_all(directory_); }

  Result<std::unique_ptr<TermRegion>> Register(ProtectionDomain& domain, bool resume) {
    TermRegionOptions options;
    options.pages = kPages;
    options.max_pages = kPages;
    options.directory = directory_;
    options.resume = resume;
    return domain.RegisterTermRegion(options);
  }
  uint64_t EntryInFile(PageIndex page) {
    const UniqueFd fd(open((directory_ + "/page-table").c_str(), O_RDONLY));
    uint64_t entry = 0;
    EXPECT_EQ(pread(fd.get(), &entry, 8, static_cast<off_t>(softnic::kEntriesOffset + page.value * 8)), 8);
    return entry;
  }

  std::string directory_;
};

TEST_F(KeptRegion, Resume_KeepsBytesAndGoesOnWithTheGenerations) {
  constexpr PageIndex kPage{3};
  constexpr FrameIndex kFrame{5};
  uint64_t before = 0;
  {
    Side server;
    const auto term = Register(*server.domain, false).value();
    ASSERT_TRUE(term->Commit({0}, 16).ok());
    memset(term->frame(kFrame), 0x5a, kPageSize);
    term->Publish(kPage, kFrame);
    term->Publish(kPage, kFrame);
    ASSERT_TRUE(term->Keep().ok());
    before = EntryInFile(kPage);
  }
  Connection next;
  const auto term = Register(*next.server.domain, true).value();
  ASSERT_TRUE(term->Commit({0}, 16).ok());
  term->Publish(kPage, kFrame);
  EXPECT_EQ(GenerationOf(EntryInFile(kPage)), GenerationOf(before) + 1);
  ASSERT_EQ(next.client.Run(next.client.Request(Opcode::kRdmaRead, 0, kPageSize, term->rkey(), StartOf(kPage).value)),
            WcStatus::kSuccess);
  for (size_t i = 0; i < kPageSize; i++) {
    ASSERT_EQ(next.client.memory->data()[i], std::byte{0x5a});
  }
}

TEST_F(KeptRegion, Resume_OfWhatIsMissingOrDiffersIsEuclean) {
  Side server;
  EXPECT_EQ(Register(*server.domain, true).status().code(), EUCLEAN);
  ASSERT_TRUE(Register(*server.domain, false).value()->Keep().ok());
  EXPECT_EQ(Register(*server.domain, false).value()->Keep().code(), EEXIST);
  ASSERT_EQ(chmod((directory_ + "/frames").c_str(), 0600), 0);
  ASSERT_EQ(truncate((directory_ + "/frames").c_str(), 4096), 0);
  EXPECT_EQ(Register(*server.domain, true).status().code(), EUCLEAN);
}

// A server that is killed before it was ready leaves no memory.
TEST_F(KeptRegion, BeforeKeep_NothingOutlivesTheProcess) {
  Side server;
  {
    const auto term = Register(*server.domain, false).value();
    ASSERT_TRUE(term->Commit({0}, 16).ok());
    memset(term->frame({3}), 0x5a, kPageSize);
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
  }
  const auto term = Register(*server.domain, false).value();
  ASSERT_TRUE(term->Keep().ok());
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/frames"));
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/page-table"));
  EXPECT_EQ(Register(*server.domain, true).value()->Keep().code(), 0) << "a resumed one has its names";
}

TEST_F(KeptRegion, Decommit_GivesTheMemoryBackToTheTmpfs) {
  Side server;
  const auto term = Register(*server.domain, false).value();
  ASSERT_TRUE(term->Commit({0}, 16).ok());
  ASSERT_TRUE(term->Keep().ok());
  const auto blocks = [&] {
    struct stat found {};
    EXPECT_EQ(stat((directory_ + "/frames").c_str(), &found), 0);
    return found.st_blocks;
  };
  EXPECT_EQ(blocks(), 16 * 8);
  term->Decommit({8}, 8);
  EXPECT_EQ(blocks(), 8 * 8);
}

// What another user can do with the descriptor that a peer gets: read. (Root and the owner could open the file by its
// name, and trace the server.)
TEST_F(KeptRegion, PeersDescriptor_CannotBeWrittenResizedOrReopened) {
  if (geteuid() != 0) {
    GTEST_SKIP() << "needs root, to become another user";
  }
  softnic::SharedObjectOptions options;
  options.path = directory_ + "/frames";
  options.bytes = 1 << 20;
  const auto object = softnic::SharedObject::Create(options).value();
  const UniqueFd fd = object->ReadOnlyFd().value();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string again = "/proc/self/fd/" + std::to_string(fd.get());
    constexpr uid_t kNobody = 65534;
    int wrong = setgid(kNobody) != 0 || setuid(kNobody) != 0 ? 1 : 0;
    wrong |= open(again.c_str(), O_RDWR) >= 0 ? 2 : 0;
    wrong |= ftruncate(fd.get(), 0) == 0 ? 4 : 0;
    wrong |= fchmod(fd.get(), 0666) == 0 ? 8 : 0;
    wrong |= mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0) != MAP_FAILED ? 16 : 0;
    void* const mapped = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0);
    wrong |= mapped == MAP_FAILED || mprotect(mapped, 4096, PROT_READ | PROT_WRITE) == 0 ? 32 : 0;
    wrong |= fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0 ? 64 : 0;
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace termfs::driver

// SPDX-License-Identifier: Apache-2.0
//
// The front end on a real mount: what depends on flags that were agreed with the kernel, and what an application sees.
#include "mount/front_end.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "mount/mount_point.h"
#include "mount/mount_service.h"
#include "tests/fakes/memory_file_system.h"
#include "tests/unit/eventually.h"
#include "tests/unit/mount/mounted_memory.h"
#include "tests/unit/mount/ring_switch.h"

namespace termfs::mount {
namespace {

// The parameter: what requests come over.
class FrontEndTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!MountedMemory::Available()) {
      GTEST_SKIP() << "needs root and /dev/fuse";
    }
    const bool rings = std::string(GetParam()) == "io_uring";
    if (rings) {
      switch_ = std::make_unique<RingSwitch>();
      if (!switch_->on()) {
        GTEST_SKIP() << switch_->said();
      }
    }
    mount_ = std::make_unique<MountedMemory>(2, std::string("threads=2,fuse=") + GetParam());
    ASSERT_TRUE(mount_->mounted());
    const Result<MountDescription> description = DescribeMount(mount_->root());
    ASSERT_TRUE(description.ok());
    ASSERT_EQ(description->fuse, rings ? "io_uring" : "/dev/fuse");
  }
  UniqueFd Open(const std::string& name, int flags, mode_t mode = 0644) const {
    return UniqueFd(open(mount_->Path(name).c_str(), flags | O_CLOEXEC, mode));
  }
  mode_t ModeOf(const std::string& name) const {
    struct stat st {};
    EXPECT_EQ(stat(mount_->Path(name).c_str(), &st), 0);
    return st.st_mode & 07777;
  }
  // Runs `body` as an ordinary user in a process of its own; whether it returned true.
  static bool AsUser(const std::function<bool()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      _exit(setgid(1000) == 0 && setuid(1000) == 0 && body() ? 0 : 1);
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  std::unique_ptr<RingSwitch> switch_;
  std::unique_ptr<MountedMemory> mount_;
};

INSTANTIATE_TEST_SUITE_P(Transports, FrontEndTest, testing::Values("device", "io_uring"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(FrontEndTest, ReadWrite_KeepsBytesOfEverySize) {
  const UniqueFd file = Open("f", O_RDWR | O_CREAT);
  ASSERT_TRUE(file.valid());
  for (const size_t size : {1UL, 4095UL, 4096UL, 100'000UL, kMaxIo, 3 * kMaxIo + 17}) {
    std::string data(size, '\0');
    for (size_t i = 0; i < size; i++) {
      data[i] = static_cast<char>(i * 31 + size);
    }
    ASSERT_EQ(pwrite(file.get(), data.data(), size, 5), static_cast<ssize_t>(size));
    std::string back(size, '\0');
    ASSERT_EQ(pread(file.get(), back.data(), size, 5), static_cast<ssize_t>(size));
    EXPECT_TRUE(back == data) << size;
  }
}

TEST_P(FrontEndTest, Read_FailsWithTheErrorOfTheFileSystem_AndTheNextOneIsAnswered) {
  const UniqueFd file = Open("f", O_RDWR | O_CREAT);
  ASSERT_EQ(write(file.get(), "abc", 3), 3);
  char back[8] = {};
  ASSERT_EQ(pread(file.get(), back, sizeof(back), 1), 2) << "up to the end";
  EXPECT_EQ(std::string_view(back, 2), "bc");
  EXPECT_EQ(pread(file.get(), back, sizeof(back), 3), 0) << "at the end";
  ASSERT_EQ(fsetxattr(file.get(), fakes::kLoseServerXattr, "", 0, 0), 0);
  for (int i = 0; i < 2; i++) {
    EXPECT_EQ(pread(file.get(), back, sizeof(back), 0), -1);
    EXPECT_EQ(errno, ENOTCONN);
  }
  EXPECT_TRUE(DescribeMount(mount_->root()).ok()) << "the mount itself lives";
}

TEST_P(FrontEndTest, Mmap_SharedIsCoherentWithReadAndWrite) {
  const UniqueFd file = Open("f", O_RDWR | O_CREAT);
  ASSERT_EQ(ftruncate(file.get(), 8192), 0);
  void* memory = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* bytes = static_cast<volatile char*>(memory);
  bytes[100] = 'm';
  char read_back = 0;
  ASSERT_EQ(pread(file.get(), &read_back, 1, 100), 1);
  EXPECT_EQ(read_back, 'm');
  ASSERT_EQ(pwrite(file.get(), "w", 1, 100), 1);
  EXPECT_EQ(bytes[100], 'w');
  munmap(memory, 8192);
}

TEST_P(FrontEndTest, TwoMounts_SeeEachOther) {
  const UniqueFd here = Open("f", O_RDWR | O_CREAT);
  const UniqueFd there(open(mount_->Path("f", 1).c_str(), O_RDWR));
  ASSERT_TRUE(there.valid());
  ASSERT_EQ(pwrite(here.get(), std::string(4096, 'a').data(), 4096, 0), 4096);
  void* memory = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, there.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto* bytes = static_cast<const volatile char*>(memory);
  struct stat st {};
  ASSERT_EQ(fstat(there.get(), &st), 0);  // a mapping ends where the kernel thinks that the file does
  EXPECT_EQ(bytes[7], 'a');
  // The write returns after the other kernel has dropped the mapped page.
  ASSERT_EQ(pwrite(here.get(), "b", 1, 7), 1);
  EXPECT_EQ(bytes[7], 'b');
  munmap(memory, 4096);
  ASSERT_EQ(ftruncate(here.get(), 100), 0);
  ASSERT_EQ(fstat(there.get(), &st), 0);
  EXPECT_EQ(st.st_size, 100);
  ASSERT_EQ(rename(mount_->Path("f").c_str(), mount_->Path("g").c_str()), 0);
  EXPECT_EQ(access(mount_->Path("f", 1).c_str(), F_OK), -1);
  EXPECT_EQ(access(mount_->Path("g", 1).c_str(), F_OK), 0);
}

TEST_P(FrontEndTest, Write_ClearsSetIdBitsOfAUser) {
  for (const char* name : {"written", "truncated", "opened", "chowned", "kept"}) {
    ASSERT_TRUE(Open(name, O_RDWR | O_CREAT).valid());
    ASSERT_EQ(chown(mount_->Path(name).c_str(), 1000, 1000), 0);
    ASSERT_EQ(chmod(mount_->Path(name).c_str(), 06777), 0);
  }
  EXPECT_TRUE(AsUser([&] { return pwrite(Open("written", O_RDWR).get(), "x", 1, 0) == 1; }));
  EXPECT_EQ(ModeOf("written"), 0777U);
  EXPECT_TRUE(AsUser([&] { return truncate(mount_->Path("truncated").c_str(), 9) == 0; }));
  EXPECT_EQ(ModeOf("truncated"), 0777U);
  EXPECT_TRUE(AsUser([&] { return Open("opened", O_RDWR | O_TRUNC).valid(); }));
  EXPECT_EQ(ModeOf("opened"), 0777U);
  ASSERT_EQ(chown(mount_->Path("chowned").c_str(), 7, 7), 0);  // root's, too
  EXPECT_EQ(ModeOf("chowned"), 0777U);
  ASSERT_EQ(pwrite(Open("kept", O_RDWR).get(), "x", 1, 0), 1);  // root keeps them
  EXPECT_EQ(ModeOf("kept"), 06777U);
}

TEST_P(FrontEndTest, Write_SetGidWithoutGroupExecuteStays) {
  ASSERT_TRUE(Open("f", O_RDWR | O_CREAT).valid());
  ASSERT_EQ(chown(mount_->Path("f").c_str(), 1000, 1000), 0);
  ASSERT_EQ(chmod(mount_->Path("f").c_str(), 02666), 0);
  EXPECT_TRUE(AsUser([&] { return pwrite(Open("f", O_RDWR).get(), "x", 1, 0) == 1; }));
  EXPECT_EQ(ModeOf("f"), 02666U);
}

TEST_P(FrontEndTest, Write_SyncsWhenAsked) {
  const UniqueFd file = Open("f", O_RDWR | O_CREAT);
  ASSERT_EQ(pwrite(file.get(), "x", 1, 0), 1);
  EXPECT_EQ(mount_->Metric("syncs_total"), 0U);
  const UniqueFd synchronous = Open("f", O_RDWR | O_DSYNC);
  ASSERT_EQ(pwrite(synchronous.get(), "x", 1, 0), 1);
  EXPECT_EQ(mount_->Metric("syncs_total"), 1U);
  iovec part = {const_cast<char*>("x"), 1};
  ASSERT_EQ(pwritev2(file.get(), &part, 1, 0, RWF_DSYNC), 1);
  EXPECT_EQ(mount_->Metric("syncs_total"), 2U);
}

// How often a change on a mount with these options has waited for the SSD.
TEST_P(FrontEndTest, SynchronousMounts_SyncWhatTheyChange) {
  for (const bool all : {false, true}) {
    const MountedMemory mount(1, std::string("threads=2,fuse=") + GetParam() + (all ? ",sync" : ",dirsync"));
    ASSERT_TRUE(mount.mounted());
    auto expect = [&, before = uint64_t{0}](const char* what, int result, bool is_name) mutable {
      EXPECT_EQ(result, 0) << what;
      const uint64_t now = mount.Metric("syncs_total");
      EXPECT_EQ(now > before, is_name || all) << what << (all ? " with sync" : " with dirsync");
      before = now;
    };
    const auto at = [&](const char* name) { return mount.Path(name); };
    UniqueFd file(open(at("f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    expect("create", file.valid() ? 0 : -1, true);
    expect("mkdir", mkdir(at("d").c_str(), 0755), true);
    expect("mknod", mknod(at("p").c_str(), S_IFIFO | 0644, 0), true);
    expect("symlink", symlink("f", at("l").c_str()), true);
    expect("link", link(at("f").c_str(), at("g").c_str()), true);
    expect("rename", rename(at("g").c_str(), at("h").c_str()), true);
    expect("unlink", unlink(at("h").c_str()), true);
    expect("rmdir", rmdir(at("d").c_str()), true);
    expect("write", pwrite(file.get(), "data", 4, 0) == 4 ? 0 : -1, false);
    expect("ftruncate", ftruncate(file.get(), 2), false);
    expect("chmod", chmod(at("f").c_str(), 0600), false);
    expect("setxattr", setxattr(at("f").c_str(), "user.a", "b", 1, 0), false);
    expect("removexattr", removexattr(at("f").c_str(), "user.a"), false);
    expect("fallocate", posix_fallocate(file.get(), 0, 10), false);
    file = UniqueFd(open(at("f").c_str(), O_RDWR | O_TRUNC | O_CLOEXEC));
    expect("open to truncate", file.valid() ? 0 : -1, false);
  }
}

TEST_P(FrontEndTest, Append_IsAtTheEndWhateverTheKernelThinks) {
  const UniqueFd here = Open("f", O_WRONLY | O_CREAT | O_APPEND);
  const UniqueFd there(open(mount_->Path("f", 1).c_str(), O_WRONLY | O_APPEND));
  for (int i = 0; i < 10; i++) {
    ASSERT_EQ(write(here.get(), "h", 1), 1);
    ASSERT_EQ(write(there.get(), "t", 1), 1);
  }
  char back[32] = {};
  EXPECT_EQ(read(Open("f", O_RDONLY).get(), back, sizeof(back)), 20);
  EXPECT_STREQ(back, "hthththththththththt");
}

TEST_P(FrontEndTest, Directory_ListsEveryNameOnce) {
  ASSERT_EQ(mkdir(mount_->Path("d").c_str(), 0755), 0);
  std::set<std::string> made;
  for (int i = 0; i < 3000; i++) {
    const std::string name = "a-rather-long-name-of-a-file-" + std::to_string(i);
    ASSERT_TRUE(Open("d/" + name, O_WRONLY | O_CREAT).valid());
    made.insert(name);
  }
  std::set<std::string> listed;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(mount_->Path("d").c_str()), &closedir);
  while (const dirent* entry = readdir(directory.get())) {
    EXPECT_TRUE(listed.insert(entry->d_name).second) << entry->d_name;
  }
  made.insert({".", ".."});
  EXPECT_EQ(listed, made);
}

TEST_P(FrontEndTest, Unlink_OpenFileLivesOn) {
  const UniqueFd file = Open("f", O_RDWR | O_CREAT);
  ASSERT_EQ(write(file.get(), "alive", 5), 5);
  ASSERT_EQ(unlink(mount_->Path("f").c_str()), 0);
  char back[5];
  EXPECT_EQ(pread(file.get(), back, 5, 0), 5);
  struct stat st {};
  ASSERT_EQ(fstat(file.get(), &st), 0);
  EXPECT_EQ(st.st_nlink, 0U);
}

TEST_P(FrontEndTest, RemoveDirectory_OpenOneIsEmptyWithoutLinks) {
  for (const size_t remover : {0, 1}) {
    ASSERT_EQ(mkdir(mount_->Path("d").c_str(), 0755), 0);
    std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(mount_->Path("d").c_str()), &closedir);
    ASSERT_EQ(rmdir(mount_->Path("d", remover).c_str()), 0);
    struct stat st {};
    ASSERT_EQ(fstat(dirfd(directory.get()), &st), 0) << errno;
    EXPECT_EQ(st.st_nlink, 0U);
    errno = 0;
    EXPECT_EQ(readdir(directory.get()), nullptr);
    EXPECT_EQ(errno, 0);
    directory.reset();
    EXPECT_TRUE(Eventually([&] { return mount_->Metric("open_files") == 0; }));
  }
}

TEST_P(FrontEndTest, Unlink_OpenSpecialFilesKeepTheirAttributes) {
  for (const size_t remover : {0, 1}) {
    for (const mode_t type : {S_IFIFO, S_IFCHR, S_IFSOCK}) {
      ASSERT_EQ(mknod(mount_->Path("s").c_str(), type | 0640, type == S_IFCHR ? 0x103 : 0), 0);
      UniqueFd file = Open("s", O_PATH);
      EXPECT_EQ(mount_->Metric("open_files"), 1U);
      // Looked up again and again, and listed, it is still one.
      struct stat st {};
      ASSERT_EQ(stat(mount_->Path("s").c_str(), &st), 0);
      std::unique_ptr<DIR, int (*)(DIR*)> root(opendir(mount_->root().c_str()), &closedir);
      while (readdir(root.get()) != nullptr) {
      }
      EXPECT_EQ(mount_->Metric("open_files"), 2U);
      ASSERT_EQ(unlink(mount_->Path("s", remover).c_str()), 0);
      ASSERT_EQ(fstat(file.get(), &st), 0) << errno;
      EXPECT_EQ(st.st_nlink, 0U);
      EXPECT_EQ(st.st_mode, type | 0640);
      file.Reset(-1);
      root.reset();
      EXPECT_EQ(access(mount_->Path("s").c_str(), F_OK), -1);
      EXPECT_TRUE(Eventually([&] { return mount_->Metric("open_files") == 0; })) << "the kernel forgets it";
    }
  }
}

TEST_P(FrontEndTest, Xattr_RefusesWhatWouldNotBeKept) {
  const std::string path = mount_->root();
  EXPECT_EQ(setxattr(path.c_str(), "user.a", "1", 1, XATTR_CREATE), 0);
  EXPECT_EQ(setxattr(path.c_str(), "user.a", "1", 1, XATTR_CREATE), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(setxattr(path.c_str(), "system.posix_acl_access", "1", 1, 0), -1);
  EXPECT_EQ(setxattr(path.c_str(), kDescriptionXattr, "1", 1, 0), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  char names[64];
  EXPECT_EQ(listxattr(path.c_str(), names, sizeof(names)), 7);  // "user.a" alone
}

TEST_P(FrontEndTest, Times_KeepNanosecondsAndTheYears) {
  ASSERT_TRUE(Open("f", O_WRONLY | O_CREAT).valid());
  const timespec times[2] = {{.tv_sec = -86400, .tv_nsec = 1}, {.tv_sec = 4'000'000'000, .tv_nsec = 999'999'999}};
  ASSERT_EQ(utimensat(AT_FDCWD, mount_->Path("f").c_str(), times, 0), 0);
  struct stat st {};
  ASSERT_EQ(stat(mount_->Path("f").c_str(), &st), 0);
  EXPECT_EQ(st.st_atim.tv_sec, -86400);
  EXPECT_EQ(st.st_atim.tv_nsec, 1);
  EXPECT_EQ(st.st_mtim.tv_sec, 4'000'000'000);
  EXPECT_EQ(st.st_mtim.tv_nsec, 999'999'999);
}

TEST_P(FrontEndTest, DescribeMount_TellsWhoAnswers_EvenWithoutServer) {
  ASSERT_EQ(setxattr(mount_->root().c_str(), fakes::kLoseServerXattr, "", 0, 0), 0);
  EXPECT_EQ(access(mount_->Path("f").c_str(), F_OK), -1);
  EXPECT_EQ(errno, ENOTCONN);
  const Result<MountDescription> description = DescribeMount(mount_->root());
  ASSERT_TRUE(description.ok()) << description.status().ToString();
  EXPECT_GT(description->pid, 1);
  EXPECT_EQ(description->address, "memory,of \\ a test");
  EXPECT_GT(description->metrics.at("fuse_requests_total"), 0U);
  EXPECT_EQ(*MountType(mount_->root()), "fuse.termfs");
  EXPECT_EQ(umount2(mount_->root(0).c_str(), 0), 0);
  EXPECT_EQ(umount2(mount_->root(1).c_str(), 0), 0);
  EXPECT_TRUE(mount_->WaitForEnd());
}

TEST_P(FrontEndTest, DescribeMount_RefusesOtherDirectories) {
  EXPECT_EQ(DescribeMount("/tmp").status().code(), EINVAL);
  ASSERT_EQ(mkdir(mount_->Path("d").c_str(), 0755), 0);
  EXPECT_EQ(DescribeMount(mount_->Path("d")).status().code(), EINVAL);
}

TEST_P(FrontEndTest, Unmount_FlushesMappings) {
  UniqueFd file = Open("f", O_RDWR | O_CREAT);
  ASSERT_EQ(ftruncate(file.get(), 4096), 0);
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  static_cast<volatile char*>(memory)[0] = 'm';
  munmap(memory, 4096);
  file.Reset(-1);
  ASSERT_EQ(umount2(mount_->root(0).c_str(), 0), 0);
  char back = 0;
  const UniqueFd other(open(mount_->Path("f", 1).c_str(), O_RDONLY));
  ASSERT_EQ(pread(other.get(), &back, 1, 0), 1);
  EXPECT_EQ(back, 'm');
}

TEST_P(FrontEndTest, Stop_DetachesFromItsUsersAndReleasesTheirFiles) {
  const UniqueFd file = Open("f", O_RDWR | O_CREAT);
  ASSERT_EQ(write(file.get(), "x", 1), 1);
  EXPECT_TRUE(mount_->Stop());
  char back = 0;
  EXPECT_EQ(pread(file.get(), &back, 1, 0), -1);
  EXPECT_TRUE(errno == ENOTCONN || errno == ECONNABORTED) << errno;  // the latter: the kernel is still at it
  EXPECT_EQ(*MountType(mount_->root()), "");
}

// A process whose system call waits for an answer that never comes.
pid_t StartStalled(const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    char value[16];
    _exit(getxattr(path.c_str(), fakes::kStallXattr, value, sizeof(value)) < 0 ? errno : 0);
  }
  return child;
}

bool WaitsInKernel(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/wchan");
  std::string where;
  return std::getline(file, where) && where.find("request_wait_answer") != std::string::npos;
}

// With two threads the third waits in the kernel's queue or in the mount's backlog, and nobody seems to be free to
// receive an interrupt.
TEST_P(FrontEndTest, Interrupt_EndsEveryStalledCall_AndTheMountGoesOn) {
  for (const int signal : {SIGKILL, SIGINT}) {
    std::vector<pid_t> stalled;
    for (int i = 0; i < 5; i++) {
      stalled.push_back(StartStalled(mount_->root()));
      ASSERT_GT(stalled.back(), 0);
    }
    for (const pid_t process : stalled) {
      while (!WaitsInKernel(process)) {
        std::this_thread::yield();
      }
    }
    for (const pid_t process : stalled) {
      ASSERT_EQ(kill(process, signal), 0);
      int status = 0;
      ASSERT_EQ(waitpid(process, &status, 0), process);
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal);
    }
    EXPECT_TRUE(Open("f" + std::to_string(signal), O_RDWR | O_CREAT).valid());
  }
}

TEST_P(FrontEndTest, Interrupt_ByAHandledSignal_LetsTheCallGoOn) {
  struct sigaction action {};
  action.sa_handler = [](int) {};  // without SA_RESTART
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  const pid_t process = StartStalled(mount_->root());
  ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
  ASSERT_GT(process, 0);
  while (!WaitsInKernel(process)) {
    std::this_thread::yield();
  }
  ASSERT_EQ(kill(process, SIGUSR1), 0);
  int status = 0;
  // A call that is wrongly ended is so within two looks of the watch.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(600);
  while (std::chrono::steady_clock::now() < until) {
    ASSERT_EQ(waitpid(process, &status, WNOHANG), 0) << "it ended with " << status;
    std::this_thread::yield();
  }
  ASSERT_EQ(kill(process, SIGTERM), 0);
  ASSERT_EQ(waitpid(process, &status, 0), process);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

TEST_P(FrontEndTest, Stop_WhileEveryThreadIsStalled) {
  std::vector<pid_t> stalled;
  for (int i = 0; i < 3; i++) {
    stalled.push_back(StartStalled(mount_->root()));
    ASSERT_GT(stalled.back(), 0);
  }
  while (!WaitsInKernel(stalled.back())) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(mount_->Stop());
  for (const pid_t process : stalled) {
    int status = 0;
    ASSERT_EQ(waitpid(process, &status, 0), process);
    EXPECT_TRUE(WIFEXITED(status));
    // By whether the kernel ends the request or refuses to take it.
    EXPECT_TRUE(WEXITSTATUS(status) == ENOTCONN || WEXITSTATUS(status) == ECONNABORTED) << WEXITSTATUS(status);
  }
}

TEST(CheckMountPoint, SaysWhatIsWrong) {
  EXPECT_EQ(CheckMountPoint("/nonexistent/at/all").code(), ENOENT);
  EXPECT_EQ(CheckMountPoint("/dev/null").code(), ENOTDIR);
  EXPECT_EQ(CheckMountPoint("/proc").code(), EBUSY);
  EXPECT_EQ(CheckMountPoint("/etc").code(), ENOTEMPTY);
}

}  // namespace
}  // namespace termfs::mount

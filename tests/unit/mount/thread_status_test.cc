// SPDX-License-Identifier: Apache-2.0
#include "mount/thread_status.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "mount/caller_capabilities.h"

namespace termfs::mount {
namespace {

// Of the calling thread, as the kernel says by another way.
bool HasAdministration() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct sets[2] = {};
  EXPECT_EQ(syscall(SYS_capget, &header, sets), 0);
  return (sets[0].effective & (1U << CAP_SYS_ADMIN)) != 0;
}

TEST(ThreadStatus, SetInStatus_LineOfThatName) {
  const std::string text = "Name:\tx\nSigPnd:\t0000000000000100\nSigBlk:\tfffffffffffffeff\nCapEff:\tzzz\n";
  EXPECT_EQ(SetInStatus(text, "\nSigPnd:"), 0x100u);
  EXPECT_EQ(SetInStatus(text, "\nSigBlk:"), ~uint64_t{0x100});
  EXPECT_EQ(SetInStatus(text, "\nCapEff:"), 0u);
  EXPECT_EQ(SetInStatus(text, "\nCapInh:"), 0u);
  EXPECT_EQ(SetInStatus("\nSigPnd:", "\nSigPnd:"), 0u);
}

TEST(ThreadStatus, Read_LiveThreadAndGoneProcess) {
  const auto status = ReadThreadStatus(gettid());
  ASSERT_TRUE(status.ok());
  EXPECT_NE(status->find("\nCapEff:"), std::string::npos);
  const pid_t child = fork();
  if (child == 0) {
    _exit(0);
  }
  ASSERT_GT(child, 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(ReadThreadStatus(child).status().code(), ENOENT);
  EXPECT_FALSE(IsAdministrator(child));
}

TEST(ThreadStatus, IsAdministrator_AsTheThreadIs) {
  EXPECT_EQ(IsAdministrator(gettid()), HasAdministration());
  std::thread([] {  // capabilities are a thread's own
    __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    __user_cap_data_struct none[2] = {};
    ASSERT_EQ(syscall(SYS_capset, &header, none), 0);
    EXPECT_FALSE(IsAdministrator(gettid()));
  })
      .join();
}

}  // namespace
}  // namespace termfs::mount

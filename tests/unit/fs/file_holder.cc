// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/fs/file_holder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "driver/softnic/softnic.h"

namespace termfs::fs {

namespace {

constexpr char kHoldFiles[] = "--hold-files";  // and a volume's directory, and a pipe

pid_t StartHolder(const RealVolume& volume) {
  int ready[2];
  EXPECT_EQ(pipe(ready), 0);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const pid_t child = fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    const std::string fd = std::to_string(ready[1]);
    execl(self.c_str(), self.c_str(), kHoldFiles, volume.directory().c_str(), fd.c_str(), nullptr);
    _exit(127);
  }
  close(ready[1]);
  char byte = 0;
  EXPECT_EQ(read(ready[0], &byte, 1), 1) << "the child is up";
  close(ready[0]);
  return child;
}

}  // namespace

FileHolder::FileHolder(const RealVolume& volume) : child_(StartHolder(volume)) {}

FileHolder::~FileHolder() {
  kill(child_, SIGKILL);
  EXPECT_EQ(waitpid(child_, nullptr, 0), child_);
}

void FileHolder::Strike(int signal) {
  EXPECT_EQ(kill(child_, signal), 0);
  if (signal == SIGSTOP) {  // on a busy machine, a thread of its could answer once more before it stops
    siginfo_t stopped;
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child_), &stopped, WSTOPPED), 0);
  }
}

bool IsFileHolder(int argc, char** argv) { return argc == 4 && std::string_view(argv[1]) == kHoldFiles; }

int HoldFiles(char** argv) {
  const std::string directory = argv[2];
  const int ready = std::stoi(argv[3]);
  auto nic = driver::CreateSoftNic();
  auto fs = client::FileSystem::Connect(*nic.value(), directory, {}, nullptr);
  auto lane = fs.value()->OpenLane();
  const std::string data(size_t{1} << 20, 'x');
  for (const char* name : {"kept", "doomed"}) {
    auto made = (*fs)->Create(*lane.value(), {0, 0}, kRootInode, name, 0644, O_RDWR);
    if (!made.ok() || !(*fs)->Write(**lane, made->second, 0, std::as_bytes(std::span(data)), {}).ok() ||
        !(*fs)->Read(**lane, made->second, 0, 10).ok()) {
      return 1;
    }
  }
  if (write(ready, "r", 1) != 1) {
    return 1;
  }
  while (true) {
    pause();
  }
}

}  // namespace termfs::fs

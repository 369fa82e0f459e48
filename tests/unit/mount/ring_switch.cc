// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/mount/ring_switch.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

namespace termfs::mount {

RingSwitch::RingSwitch() {
  int to_child[2];
  int from_child[2];
  TERMFS_CHECK(pipe2(to_child, O_CLOEXEC) == 0 && pipe2(from_child, O_CLOEXEC) == 0);
  child_ = fork();
  TERMFS_CHECK(child_ >= 0);
  if (child_ == 0) {
    setsid();  // what ends the test's process group leaves it alone
    dup2(to_child[0], STDIN_FILENO);
    dup2(from_child[1], STDOUT_FILENO);
    execl("/bin/bash", "bash", TERMFS_RING_SWITCH, nullptr);
    _exit(127);
  }
  close(to_child[0]);
  close(from_child[1]);
  hold_ = UniqueFd(to_child[1]);
  const UniqueFd answer(from_child[0]);
  for (char c = 0; c != '\n' && read(answer.get(), &c, 1) == 1;) {
    said_ += c;
  }
}

RingSwitch::~RingSwitch() {
  hold_.Reset(-1);
  waitpid(child_, nullptr, 0);
}

}  // namespace termfs::mount

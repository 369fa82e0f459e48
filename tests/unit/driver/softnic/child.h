// SPDX-License-Identifier: Apache-2.0
//
// Child: a process of a test, with a socket to it.
//
// Thread-safety: none. Ownership: ends the process.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <functional>

#include "tests/unit/driver/softnic/connection.h"

namespace termfs::driver {

class Child {
 public:
  // Runs `body` with one end of a socket in a forked process, which never returns from it.
  explicit Child(const std::function<void(int)>& body) {
    int ends[2];
    TERMFS_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    pid_ = fork();
    TERMFS_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      close(ends[0]);
      alarm(280);
      body(ends[1]);
      _exit(0);
    }
    close(ends[1]);
    socket_ = UniqueFd(ends[0]);
  }
  ~Child() { Kill(); }
  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }
  // The exit code once the child has ended by itself.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int socket() const { return socket_.get(); }

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
};

}  // namespace termfs::driver

// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/child.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <csignal>

#include "benchmarks/must.h"

namespace termfs::benchmarks::term {

Child::Child(std::string name, const std::function<void(int socket)>& body) : name_(std::move(name)) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    Die(ErrnoStatus("make a socket pair"));
  }
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) {
    Die(ErrnoStatus("start a process"));
  }
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(1);
    }
    close(ends[0]);
    body(ends[1]);
    std::exit(0);
  }
  close(ends[1]);
  socket_ = UniqueFd(ends[0]);
}

Child::~Child() {
  if (socket_.valid()) {
    shutdown(socket_.get(), SHUT_RDWR);  // closing would not do: children that came later have it, too
    waitpid(pid_, nullptr, 0);
  }
}

void Child::Confine(int cpu) {
  if (cpu < 0) {
    return;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    Die(ErrnoStatus("confine a process to CPU " + std::to_string(cpu)));
  }
}

void Child::Send(int socket, std::span<const std::byte> message) {
  if (send(socket, message.data(), message.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(message.size())) {
    Die(ErrnoStatus("talk to another process of the benchmark"));
  }
}

void Child::Receive(std::span<std::byte> answer) const {
  const ssize_t got = recv(socket_.get(), answer.data(), answer.size(), MSG_WAITALL);
  if (got != static_cast<ssize_t>(answer.size())) {
    Die(got < 0 ? ErrnoStatus(name_) : Status::Error(ECHILD, name_ + " has ended"));
  }
}

}  // namespace termfs::benchmarks::term

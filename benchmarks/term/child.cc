// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/child.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include <array>
#include <csignal>
#include <fstream>

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

double Child::ProcessorSeconds() const {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) {
    Die(Status::Error(ECHILD, name_ + " has ended"));
  }
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Child::Bytes Child::DeviceBytes() const {
  std::ifstream io("/proc/" + std::to_string(pid_) + "/io");
  Bytes bytes;
  int found = 0;
  std::string key;
  for (uint64_t value = 0; io >> key >> value;) {
    if (key == "read_bytes:") {
      bytes.read = value;
      found++;
    } else if (key == "write_bytes:") {
      bytes.written = value;
      found++;
    }
  }
  if (found != 2) {
    Die(Status::Error(ENOTSUP, "this kernel does not tell in /proc/PID/io what a process read and wrote"));
  }
  return bytes;
}

}  // namespace termfs::benchmarks::term

// SPDX-License-Identifier: Apache-2.0
#include "mount/guard_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace termfs::mount {
namespace {

constexpr char kName[] = "termfs-guard";
constexpr int kDeath = SIGUSR1;
constexpr int kSocket = 3;
constexpr int kGuardTurnMs = 3600 * 1000;  // one turn of an endless wait

// What ps shows: the words of the command line, all of which lie one behind the other from the first one on.
void Rename() {
  prctl(PR_SET_NAME, kName, 0, 0, 0);
  char piece[4096];
  size_t size = 0;
  const int file = open("/proc/self/cmdline", O_RDONLY);
  for (ssize_t got = 0; file >= 0 && (got = read(file, piece, sizeof(piece))) > 0;) {
    size += static_cast<size_t>(got);
  }
  close(file);
  std::memset(program_invocation_name, 0, size);
  if (size > 0) {
    std::memcpy(program_invocation_name, kName, std::min(size - 1, sizeof(kName) - 1));
  }
}

// Lets go of all that is the mount's or its caller's, but for the socket.
bool LetGo(int socket) {
  setsid();
  const rlimit no_core{};
  setrlimit(RLIMIT_CORE, &no_core);
  const int kept = fcntl(socket, F_DUPFD, kSocket + 1);
  const int null = open("/dev/null", O_RDWR);
  if (kept < 0 || null < 0 || chdir("/") != 0) {
    return false;
  }
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    dup2(null, fd);
  }
  dup2(kept, kSocket);
  return close_range(kSocket + 1, ~0U, 0) == 0;
}

struct Word {
  bool came = false;
  int file = -1;  // that was handed over; -1: the word is that the mount crashes
};

Word Receive() {
  char byte = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  iovec bytes{.iov_base = &byte, .iov_len = 1};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(kSocket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0) {
    return {};
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  Word word{.came = true, .file = -1};
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&word.file, CMSG_DATA(header), sizeof(word.file));
  }
  return word;
}

// Whether the signal is the kernel's, in the name of the mount that ends.
bool IsDeath(int signals, pid_t mount) {
  signalfd_siginfo info{};
  return read(signals, &info, sizeof(info)) == sizeof(info) && info.ssi_pid == static_cast<uint32_t>(mount);
}

void AwaitDeath(int signals, pid_t mount) {
  int file = -1;
  while (true) {
    pollfd ready[2] = {{.fd = signals, .events = POLLIN, .revents = 0},
                       {.fd = kSocket, .events = POLLIN, .revents = 0}};
    if (poll(ready, 2, kGuardTurnMs) <= 0) {
      continue;
    }
    const Word word = Receive();
    file = word.file >= 0 ? word.file : file;
    const bool crashes = word.came && word.file < 0;
    if (crashes || ((ready[0].revents & POLLIN) != 0 && IsDeath(signals, mount))) {
      if (file >= 0) {
        [[maybe_unused]] const ssize_t written = write(file, "1", 1);
      }
      return;
    }
    if (!word.came && (ready[1].revents & POLLHUP) != 0) {
      return;  // all of the mount has ended
    }
  }
}

}  // namespace

Status HandOver(int socket, int file) {
  char byte = 0;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec bytes{.iov_base = &byte, .iov_len = 1};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1) {
    return ErrnoStatus("hand a file to the mount's guard");
  }
  return Status::Ok();
}

void GuardProcess(int socket, pid_t mount) {
  sigset_t death;
  sigemptyset(&death);
  sigaddset(&death, kDeath);
  const char word = 0;
  // Who dies before that closes the other end of the socket, as nothing is mounted yet.
  if (prctl(PR_SET_PDEATHSIG, kDeath, 0, 0, 0) == 0 && LetGo(socket)) {
    Rename();
    const int signals = signalfd(-1, &death, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals >= 0 && send(kSocket, &word, sizeof(word), MSG_NOSIGNAL) == sizeof(word)) {
      AwaitDeath(signals, mount);
    }
  }
  _exit(0);
}

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// Child: one process of the benchmark, which does as it is told over a socket: a command, an answer. It ends when its
// parent does, in whatever way.
//
// Thread-safety: none. Errors: every function ends the parent with a message when the child has ended or reported one.
#pragma once

#include <sys/types.h>

#include <functional>
#include <span>
#include <string>

#include "base/unique_fd.h"
#include "benchmarks/term/process_usage.h"

namespace termfs::benchmarks::term {

class Child {
 public:
  // Runs `body` in a new process with its end of the socket. REQUIRES: this process has one thread and no RNIC.
  Child(std::string name, const std::function<void(int socket)>& body);
  ~Child();  // ends it and waits
  Child(Child&& other) noexcept = default;
  Child& operator=(Child&&) = delete;

  template <typename Command>
  void Tell(const Command& command) const {
    Send(socket_.get(), std::as_bytes(std::span(&command, 1)));
  }
  template <typename Answer>
  Answer Hear() const {
    Answer answer{};
    Receive(std::as_writable_bytes(std::span(&answer, 1)));
    return answer;
  }

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  double ProcessorSeconds() const { return ProcessorSecondsOf(pid_); }
  DeviceBytes Bytes() const { return DeviceBytesOf(pid_); }

  // For `body`: this process runs on that CPU from now on; -1: where it likes.
  static void Confine(int cpu);
  static void Send(int socket, std::span<const std::byte> message);

 private:
  void Receive(std::span<std::byte> answer) const;

  std::string name_;
  UniqueFd socket_;
  pid_t pid_ = -1;
};

}  // namespace termfs::benchmarks::term

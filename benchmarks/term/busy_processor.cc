// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/term/busy_processor.h"

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>

namespace termfs::benchmarks::term {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPeriod{10};

enum class Order : uint32_t { kBegin, kEnd };

bool IsReadable(int socket) {
  pollfd waiting{.fd = socket, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, 0) != 0;
}

// Until something is to be read.
void Compute(int socket, double share) {
  const auto working = std::chrono::duration_cast<steady_clock::duration>(kPeriod * share);
  for (auto begin = steady_clock::now(); !IsReadable(socket); begin += kPeriod) {
    while (steady_clock::now() < begin + working) {
    }
    std::this_thread::sleep_until(begin + kPeriod);
  }
}

}  // namespace

BusyProcessor::BusyProcessor(int cpu, double share)
    : child_("what keeps the server's CPU busy", [cpu, share](int socket) {
        Child::Confine(cpu);
        Order order{};
        while (recv(socket, &order, sizeof(order), 0) == sizeof(order)) {
          Child::Send(socket, std::as_bytes(std::span(&order, 1)));
          if (order == Order::kBegin) {
            Compute(socket, share);
          }
        }
      }) {}

void BusyProcessor::Begin() const {
  child_.Tell(Order::kBegin);
  child_.Hear<Order>();
}

void BusyProcessor::End() const {
  child_.Tell(Order::kEnd);
  child_.Hear<Order>();
}

}  // namespace termfs::benchmarks::term

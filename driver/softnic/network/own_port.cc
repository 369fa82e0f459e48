// SPDX-License-Identifier: Apache-2.0
#include "driver/softnic/network/own_port.h"

#include <sys/epoll.h>

#include <cerrno>
#include <chrono>

#include "base/check.h"
#include "driver/softnic/network/network.h"

namespace termfs::driver::softnic {

Status OwnPort::Open() {
  epoll_event event{};
  event.data.fd = fd();
  if (epoll_ctl(network_.own_ports(), EPOLL_CTL_ADD, fd(), &event) != 0) {
    return ErrnoStatus("watch a socket");
  }
  return Status::Ok();
}

void OwnPort::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

void OwnPort::Watch(uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd();
  // ENOENT: the port has ended.
  TERMFS_CHECK(epoll_ctl(network_.own_ports(), EPOLL_CTL_MOD, fd(), &event) == 0 || errno == ENOENT);
}

void OwnPort::Poll() {
  TakeBack();
  if (mutex_.TryLock()) {  // else the RNIC thread is at it: what it finds comes through the inlet
    Receive();
    mutex_.Unlock();
  }
}

void OwnPort::OnReadable() {
  {
    MutexLock lock(mutex_);
    Receive();
  }
  if (asleep_.load(std::memory_order_relaxed) && watched_.load(std::memory_order_relaxed)) {
    watched_.store(false, std::memory_order_seq_cst);  // it fell asleep in the moment in which this was taken over
    Watch(0);
  }
}

void OwnPort::TakeBack() {
  used_.store(true, std::memory_order_relaxed);
  if (watched_.load(std::memory_order_relaxed)) [[unlikely]] {
    watched_.store(false, std::memory_order_seq_cst);
    Watch(0);
    network_.KeepTime();
  }
}

void OwnPort::PrepareToSleep() {
  asleep_.store(true, std::memory_order_seq_cst);
  TakeBack();
}

// Its thread may go elsewhere now: then ticks have the RNIC thread watch the port.
void OwnPort::StayAwake() {
  asleep_.store(false, std::memory_order_seq_cst);
  network_.KeepTime();
}

bool OwnPort::OnTick() {
  if (watched_.load(std::memory_order_relaxed) || asleep_.load(std::memory_order_seq_cst)) {
    return false;
  }
  if (!used_.exchange(false, std::memory_order_relaxed)) {
    Watch(EPOLLIN);
    watched_.store(true, std::memory_order_seq_cst);
    return false;
  }
  return true;
}

void OwnPort::Receive() {
  if (!closed_) {
    receiver_->Receive();
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Datagrams.

void UdpReceiver::Collect() {
  port_->Receive(UdpPort::BuffersOfThisThread(), [&](std::span<const std::byte> bytes, const PacketSource& from) {
    const std::optional<roce::Packet> packet = roce::Decode(bytes);
    if (!packet) {
      Count(network_.counters().malformed);
    } else if (packet->queue_pair != connection_->number()) {
      Count(network_.counters().no_connection);
    } else {
      arrived_.push_back({*packet, from});
    }
  });
}

void UdpReceiver::Receive() {
  Collect();
  if (!arrived_.empty()) {
    const auto now = std::chrono::steady_clock::now();
    bool more = connection_->Deliver(arrived_, now);
    while (more) {
      more = connection_->Answer(now);
    }
    arrived_.clear();
    network_.KeepTime();
  }
}

}  // namespace termfs::driver::softnic

// SPDX-License-Identifier: Apache-2.0
//
// OwnPort: a port of one queue pair's own, on which the queue pair's thread receives itself while it waits, so that
// what arrives wakes one thread and not two. When that thread has not come for a tick and does not sleep on the port,
// the RNIC thread watches it; the first Poll takes it back.
//
// Thread-safety: Poll, PrepareToSleep, StayAwake: the queue pair's thread. OnReadable and OnTick: the RNIC thread.
// Ownership:     shared by its queue pair and the network, which outlives it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "driver/softnic/completion_queue.h"
#include "driver/softnic/network/connection.h"
#include "driver/softnic/network/udp_port.h"

namespace termfs::driver::softnic {

class Network;

// What comes in at a port.
class PortReceiver {
 public:
  virtual ~PortReceiver() = default;
  virtual int fd() const = 0;
  // Takes in what is there. One thread at a time.
  virtual void Receive() = 0;
};

// Of the datagrams of one connection.
class UdpReceiver final : public PortReceiver {
 public:
  UdpReceiver(Network& network, std::unique_ptr<UdpPort> port, std::shared_ptr<Connection> connection)
      : network_(network), port_(std::move(port)), connection_(std::move(connection)) {}
  int fd() const override { return port_->fd(); }
  void Receive() override;

 private:
  void Collect();

  Network& network_;
  const std::unique_ptr<UdpPort> port_;
  const std::shared_ptr<Connection> connection_;
  std::vector<Connection::Arrived> arrived_;
};

class OwnPort final : public PolledPort {
 public:
  OwnPort(Network& network, std::shared_ptr<PortReceiver> receiver)
      : network_(network), receiver_(std::move(receiver)) {}

  Status Open();
  // Nothing is received any more.
  void Close() EXCLUDES(mutex_);

  void Poll() override EXCLUDES(mutex_);
  void PrepareToSleep() override;
  void StayAwake() override;
  int fd() const override { return receiver_->fd(); }

  void OnReadable() EXCLUDES(mutex_);
  // Watches the port from here, if that is called for. False: no more ticks are needed.
  bool OnTick();
  bool needs_ticks() const {
    return !watched_.load(std::memory_order_seq_cst) && !asleep_.load(std::memory_order_seq_cst);
  }

 private:
  void TakeBack();
  void Watch(uint32_t events);
  void Receive() REQUIRES(mutex_);

  Network& network_;
  const std::shared_ptr<PortReceiver> receiver_;
  std::atomic<bool> watched_{false};  // by the RNIC thread
  std::atomic<bool> used_{true};      // since the last tick
  std::atomic<bool> asleep_{false};   // its thread, on the port
  Mutex mutex_;                       // who receives
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace termfs::driver::softnic

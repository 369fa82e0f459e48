// SPDX-License-Identifier: Apache-2.0
//
// Network: what the queue pairs of a Nic that leave the host share: of RoCE a port for each local address, and the
// connections by queue pair number; of iWARP the streams (streams.h). It lives on the Nic's RNIC thread, which takes in
// what arrives, answers the peers' READs out of the page table, and runs the timers; so between hosts the server's CPU
// does an RNIC's work.
//
// The timer ticks only while something waits for an answer: who posts into a quiet network starts it.
//
// Thread-safety: any thread.
// Ownership:     shared by the Nic and its queue pairs; owns the ports, which stay open.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "driver/softnic/network/connection.h"
#include "driver/softnic/network/counters.h"
#include "driver/softnic/network/fault_injection.h"
#include "driver/softnic/network/own_port.h"
#include "driver/softnic/network/streams.h"
#include "driver/softnic/network/udp_port.h"
#include "driver/softnic/rnic_thread.h"

namespace termfs::driver::softnic {

class Network {
 public:
  static Result<std::shared_ptr<Network>> Create(const std::shared_ptr<RnicThread>& rnic,
                                                 const std::optional<FaultOptions>& faults, int socket_bytes = 0,
                                                 uint32_t stream_threads = 1);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // The port of a local address, opened when it is first asked for.
  Result<UdpPort*> SharedPort(const Gid& local, uint32_t interface) EXCLUDES(mutex_);
  // One for a single queue pair.
  Result<std::unique_ptr<UdpPort>> OpenPort(const Gid& local, uint32_t interface) EXCLUDES(mutex_);
  // A number for a queue pair, which is hard to guess. EUSERS: too many.
  Result<uint32_t> TakeNumber() EXCLUDES(mutex_);
  // Gives the connection a number.
  Status Add(const std::shared_ptr<Connection>& connection) EXCLUDES(mutex_);
  // And its number is free again.
  void Remove(const WireEnd& end) EXCLUDES(mutex_);
  Streams& streams() { return streams_; }
  // The timer is needed, or may be: before something that has a deadline.
  Status StartTimer() EXCLUDES(mutex_);
  // A port that its queue pair's thread mostly receives on: when that thread does not come for a tick, and does not
  // sleep on it either, it is watched here.
  void Add(const std::shared_ptr<OwnPort>& port) EXCLUDES(mutex_);
  void Remove(const OwnPort& port) EXCLUDES(mutex_);
  int own_ports() const { return own_epoll_.get(); }  // where those are watched
  // After something was posted.
  void KeepTime() {
    if (!ticking_.load(std::memory_order_seq_cst)) [[unlikely]] {
      StartTicking();
    }
  }
  NetworkCounters& counters() { return counters_; }

 private:
  // What arrived for one connection.
  struct Arrivals {
    uint32_t number = 0;
    std::shared_ptr<Connection> connection;
    std::vector<Connection::Arrived> packets;
  };

  Network(const std::shared_ptr<RnicThread>& rnic, int socket_bytes, uint32_t stream_threads)
      : rnic_(rnic),
        streams_(
            rnic, counters_, [this] { KeepTime(); }, socket_bytes, stream_threads) {}
  // With the first port: who stays on one host needs no descriptors for this.
  Status Start() REQUIRES(mutex_);
  void StartTicking();
  std::shared_ptr<Connection> Find(uint32_t number) EXCLUDES(mutex_);

  // On the RNIC thread.
  void OnReadable(UdpPort& port) EXCLUDES(mutex_);
  void OnOwnPortsReadable() EXCLUDES(mutex_);
  void Sort(std::span<const std::byte> bytes, const PacketSource& from);
  void DeliverSorted();
  void AnswerMore();
  void OnTick() EXCLUDES(mutex_);

  const std::shared_ptr<RnicThread> rnic_;
  NetworkCounters counters_;
  Streams streams_;
  std::unique_ptr<FaultInjection> faults_;
  UniqueFd timer_;
  UniqueFd own_epoll_;
  std::atomic<bool> ticking_{false};
  Mutex mutex_;
  std::map<Gid, std::unique_ptr<UdpPort>> ports_ GUARDED_BY(mutex_);
  std::map<int, std::shared_ptr<OwnPort>> own_ports_ GUARDED_BY(mutex_);  // by descriptor
  std::unordered_map<uint32_t, std::shared_ptr<Connection>> connections_ GUARDED_BY(mutex_);
  std::unordered_set<uint32_t> numbers_ GUARDED_BY(mutex_);  // of all queue pairs

  // Of the RNIC thread.
  std::vector<Arrivals> arrivals_;  // the first `arrived_` are in use
  size_t arrived_ = 0;
  std::vector<std::shared_ptr<Connection>> answering_;  // those that have more to answer
  int quiet_ticks_ = 0;
};

}  // namespace termfs::driver::softnic

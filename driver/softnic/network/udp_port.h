// SPDX-License-Identifier: Apache-2.0
//
// UdpPort: the sockets of one local address, and the datagrams that come and go, many at a system call. The invariant
// CRC is added and checked here: what comes out of Receive has the right one.
//
// It covers headers that the kernel writes, so those must be known. IPv6: addresses, ports and length, which an
// ordinary UDP socket tells; runs of datagrams of the same size are cut out of one large one by the kernel, and put
// together again on the way in (segmentation offload, which changes none of that). IPv4: the identification, too; it is
// 0 in datagrams that must not be fragmented and come from a socket that is not connected, one by one. They are taken
// in by a raw socket, with the headers as they came; that needs CAP_NET_RAW.
//
// The port is RoCE's, 4791, or where that is taken on this address another one, which only termfs's own peers are told.
// A port of a queue pair's own is always such. As its peers are known to write IPv4 headers as this side does, it needs
// no raw socket: the headers are what they have to be, or the CRC is wrong.
//
// Thread-safety: Receive on one thread; the rest on any.
// Errors:        what cannot be sent is dropped and counted, as by a network.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "driver/nic.h"
#include "driver/softnic/network/counters.h"
#include "driver/softnic/network/fault_injection.h"
#include "driver/softnic/network/flow.h"

namespace termfs::driver::softnic {

// Where a datagram came from.
struct PacketSource {
  Gid address{};
  uint16_t port = 0;
};

class UdpPort {
 public:
  static constexpr size_t kBatchBytes = 192 << 10;
  static constexpr size_t kBatchPackets = 128;

  // Datagrams to be sent, one behind the other.
  struct Batch {
    std::array<std::byte, kBatchBytes> bytes;
    std::array<std::span<const std::byte>, kBatchPackets> packets;  // in `bytes`
    size_t count = 0;
    // For the system call; here, as stacks may be small.
    struct alignas(cmsghdr) Control : std::array<char, CMSG_SPACE(sizeof(uint16_t))> {};
    std::array<mmsghdr, kBatchPackets> messages;
    std::array<iovec, kBatchPackets> vectors;
    std::array<Control, kBatchPackets> controls;
  };

  enum class Use : uint8_t { kShared, kOwn };
  // EACCES, EPERM: a shared one of IPv4 without CAP_NET_RAW; EADDRNOTAVAIL: not an address of this host. `faults` may
  // be null.
  static Result<std::unique_ptr<UdpPort>> Open(const Gid& local, uint32_t interface, Use use, NetworkCounters& counters,
                                               FaultInjection* faults);

  ~UdpPort();
  UdpPort(const UdpPort&) = delete;
  UdpPort& operator=(const UdpPort&) = delete;

  const Gid& local() const { return local_; }
  uint16_t number() const { return number_; }
  int fd() const { return raw_.valid() ? raw_.get() : sending_.get(); }  // where they come in

  // Takes in what is there, up to a few hundred datagrams, and calls `take` with the packet of each, CRC removed, and
  // where it came from. False: there is no more now.
  using Take = std::function<void(std::span<const std::byte> packet, const PacketSource& from)>;
  struct ReceiveBuffers;
  bool Receive(ReceiveBuffers& buffers, const Take& take);
  // What is received lies there until the next Receive. They are large: one for each thread that receives.
  static ReceiveBuffers& BuffersOfThisThread();

  void Send(const Flow& flow, Batch& batch);

  // Batches are large; they serve again.
  std::unique_ptr<Batch> TakeBatch() EXCLUDES(mutex_);
  void GiveBack(std::unique_ptr<Batch> batch) EXCLUDES(mutex_);

  // The largest datagram, IP header included, that reaches the host without being fragmented, as far as this host
  // knows.
  static Result<uint32_t> PathMtu(const NetworkPath& path);

 private:
  UdpPort(const Gid& local, NetworkCounters& counters, FaultInjection* faults);
  Status OpenIpv4(uint32_t interface, Use use);
  Status OpenIpv6(uint32_t interface, Use use);
  Status Bind(uint32_t interface, Use use);
  void TakeRaw(std::span<const std::byte> datagram, const Take& take);
  void TakeDatagrams(std::span<const std::byte> datagrams, size_t segment, const sockaddr_storage& from,
                     const Take& take);
  // False: the device cannot send runs.
  bool SendMessages(std::span<mmsghdr> messages);
  void SendOneByOne(const Flow& flow, Batch& batch);
  void SendRuns(const Flow& flow, Batch& batch);

  const Gid local_;
  NetworkCounters& counters_;
  FaultInjection* const faults_;
  uint16_t number_ = 0;
  std::atomic<bool> sends_runs_;  // not over IPv4, nor over a device that computes no checksums
  UniqueFd sending_;
  UniqueFd raw_;  // a shared one of IPv4
  Mutex mutex_;
  std::vector<std::unique_ptr<Batch>> free_ GUARDED_BY(mutex_);
};

}  // namespace termfs::driver::softnic

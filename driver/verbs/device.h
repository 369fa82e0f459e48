// SPDX-License-Identifier: Apache-2.0
//
// Device: an RDMA device that is open, and its protection domain, completion channel and so on as objects that end
// themselves.
//
// Thread-safety: any thread.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "driver/nic.h"
#include "driver/roce/endpoint.h"

namespace termfs::driver::verbs {

template <auto End>
struct Ender {
  void operator()(auto* object) const { End(object); }
};
using ContextPtr = std::unique_ptr<ibv_context, Ender<ibv_close_device>>;
using DomainPtr = std::unique_ptr<ibv_pd, Ender<ibv_dealloc_pd>>;
using RegionPtr = std::unique_ptr<ibv_mr, Ender<ibv_dereg_mr>>;
using ChannelPtr = std::unique_ptr<ibv_comp_channel, Ender<ibv_destroy_comp_channel>>;
using QueuePtr = std::unique_ptr<ibv_cq, Ender<ibv_destroy_cq>>;
using PairPtr = std::unique_ptr<ibv_qp, Ender<ibv_destroy_qp>>;

// A port of a device, and which of its addresses is used.
struct PortAddress {
  uint8_t port = 0;
  uint8_t index = 0;  // in the port's table of addresses
  Gid gid{};
  uint16_t lid = 0;  // InfiniBand
  uint32_t mtu = 0;  // payload bytes in a packet
};

class Device {
 public:
  // `wanted`: a name, or an address for RoCE v2.
  static Result<std::shared_ptr<Device>> Open(const std::string& wanted);

  ibv_context* context() const { return context_.get(); }
  std::string name() const { return ibv_get_device_name(context_->device); }
  // READs and atomics that it answers at a time, and that it asks.
  uint32_t max_reads() const { return max_reads_; }
  uint32_t max_asked_reads() const { return max_asked_reads_; }
  // That a completion queue holds.
  uint32_t max_completions() const { return max_completions_; }
  // InfiniBand where no port is on Ethernet.
  roce::LinkLayer link() const { return link_; }
  // From where it reaches the peer of a connection that has `address` here. On Ethernet that is where the device has
  // this address for RoCE v2; on InfiniBand the first port that is up. EADDRNOTAVAIL: nowhere; ENETDOWN: on a port that
  // is down.
  Result<PortAddress> Find(const Gid& address) const;
  // Whether it has any such port that is up. EADDRNOTAVAIL, ENETDOWN.
  Status CheckPorts() const;

 private:
  explicit Device(ContextPtr context) : context_(std::move(context)) {}
  Status Examine();
  Result<std::vector<ibv_gid_entry>> Addresses() const;
  Result<ibv_port_attr> AskPort(uint32_t port) const;
  Result<PortAddress> Use(const ibv_gid_entry& entry) const;

  const ContextPtr context_;
  roce::LinkLayer link_{};
  uint32_t max_reads_ = 0;
  uint32_t max_asked_reads_ = 0;
  uint32_t max_completions_ = 0;
};

}  // namespace termfs::driver::verbs

// SPDX-License-Identifier: Apache-2.0
//
// The software RNIC: driver::Nic in user space, between processes of one host over shared memory, between hosts as
// RoCEv2 over UDP. Needs no device; and no privilege, but CAP_NET_RAW for RoCE over IPv4.
//
// One-sided operations run on the initiator's CPU, on mappings of the peer's memory; which of them a peer can map, and
// whether writable, is the owner's decision and enforced by the kernel. Messages go through rings in shared memory.
// A thread of the Nic, the RNIC thread, hands descriptors to peers and notices their death; no operation on mapped
// memory ever waits for it. Over the network that thread does an RNIC's work for its own side and for its peers.
//
// Set-up passes descriptors: an Endpoint travels over a Unix socket (or stays within the process). Close your copies
// of an Endpoint's descriptors once they are sent: the peer's death is seen only when the last copy is closed. For the
// same reason do not fork without exec while a Nic lives.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "driver/nic.h"

namespace termfs::driver {

struct SoftNicOptions {
  // RNIC threads, over which the streams of iWARP are spread; RoCE and what is of this host have the first.
  uint32_t threads = 1;
  // For tests: "loss=0.01,seed=7" and the like makes a bad network of what is sent (network/fault_injection.h).
  std::string network_faults{};
  // For tests: peers over the network READ the regions of this Nic by validation, as those of a device that knows no
  // page table.
  bool validated_reads = false;
  // For tests: the buffers of iWARP's sockets, in bytes; 0: the kernel's choice.
  int socket_bytes = 0;
};

// EINVAL: the faults make no sense.
Result<std::unique_ptr<Nic>> CreateSoftNic(const SoftNicOptions& options = {});

}  // namespace termfs::driver

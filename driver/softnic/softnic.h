// SPDX-License-Identifier: Apache-2.0
//
// The software RNIC: driver::Nic in user space, between processes of one host over shared memory. Needs no device and
// no privilege.
//
// One-sided operations run on the initiator's CPU, on mappings of the peer's memory; which of them a peer can map, and
// whether writable, is the owner's decision and enforced by the kernel. Messages go through rings in shared memory.
// One thread per Nic, the RNIC thread, hands descriptors to peers and notices their death; no operation on mapped
// memory ever waits for it.
//
// Set-up passes descriptors: an Endpoint travels over a Unix socket (or stays within the process). Close your copies
// of an Endpoint's descriptors once they are sent: the peer's death is seen only when the last copy is closed. For the
// same reason do not fork without exec while a Nic lives.
#pragma once

#include <memory>

#include "base/result.h"
#include "driver/nic.h"

namespace termfs::driver {

Result<std::unique_ptr<Nic>> CreateSoftNic();

}  // namespace termfs::driver

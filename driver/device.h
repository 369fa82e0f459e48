// SPDX-License-Identifier: Apache-2.0
//
// What an RDMA device has beyond the seam of nic.h, for a Nic that pairs it with the software RNIC (driver/paired):
// memory of another RNIC is registered with it, work requests of its queue pairs name memory by that RNIC's local keys,
// and, where the driver has them, TeRM memory regions.
//
// Thread-safety, ownership, errors: as the seam's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/page.h"
#include "base/result.h"
#include "driver/nic.h"

namespace termfs::driver {

// Translates local keys of another RNIC into the device's. Any thread.
class LocalKeyMap {
 public:
  virtual ~LocalKeyMap() = default;
  // Memory that is one to the other RNIC may be several regions to the device: the parts of `local`, in order, with the
  // device's keys. 0: the key is not known, does not cover it, or `parts` are too few.
  virtual size_t Translate(const ScatterGather& local, std::span<ScatterGather> parts) const = 0;
};

// A memory region with a page table in the device's driver: each page is its bytes or the pattern.
//
// Thread-safety: different pages from different threads; for one page the caller serialises.
class DeviceTermRegion {
 public:
  virtual ~DeviceTermRegion() = default;
  virtual RKey rkey() const = 0;
  virtual const Pattern& pattern() const = 0;
  virtual uint64_t pages() const = 0;
  virtual LKey lkey() const = 0;  // of the other mapping, whose pages are always there

  // READs see their bytes from now on, until Hide or until the kernel moves a page. REQUIRES: they have memory; at most
  // 1,024.
  virtual Status Show(PageIndex first, uint32_t count) = 0;
  // READs see the pattern when this returns.
  virtual void Hide(PageIndex page) = 0;
  // Whether READs see the bytes of pages [64 * word, 64 * word + 64), a bit each. What shows may cease to by itself;
  // what does not, does not come to.
  virtual uint64_t ShownOf64(uint64_t word) const = 0;
  // READs, of a page or a part of one, that it answered with the pattern.
  virtual uint64_t magic_reads() const = 0;
};

// Two mappings of the same memory, whole pages. The region follows the page table of `shown`, which nobody writes
// through or locks; `written` is what the process uses.
struct TermMappings {
  std::byte* shown = nullptr;
  std::byte* written = nullptr;
  uint64_t pages = 0;
};

class DeviceDomain : public ProtectionDomain {
 public:
  // As RegisterMemory, of memory that another RNIC has allocated.
  virtual Result<std::unique_ptr<MemoryRegion>> RegisterForeign(std::byte* data, size_t size, Access access) = 0;
  // EOPNOTSUPP: as CheckTermRegions.
  virtual Result<std::unique_ptr<DeviceTermRegion>> RegisterTerm(const TermMappings& mappings) = 0;
};

class RdmaDevice : public Nic {
 public:
  virtual std::string name() const = 0;
  // Of all queue pairs created in the domain. `keys` outlives them.
  virtual Result<std::unique_ptr<DeviceDomain>> CreateDeviceDomain(std::shared_ptr<const LocalKeyMap> keys) = 0;
  // Whether its driver has TeRM memory regions. EOPNOTSUPP: no; the text says why. EPROTO: of another version, which is
  // no reason to go on without.
  virtual Status CheckTermRegions() = 0;
  // Whether peers could reach it at all. ENETDOWN, EADDRNOTAVAIL.
  virtual Status CheckPorts() = 0;
};

}  // namespace termfs::driver

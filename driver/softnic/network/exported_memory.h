// SPDX-License-Identifier: Apache-2.0
//
// ExportedMemory: what a peer over the network may reach: the exports of a protection domain, READ, written and changed
// by the RNIC thread as packets ask for it. Of a region with a page table a READ is what it is on one host
// (page_table.h): the bytes of one version of a page, or the pattern.
//
// Thread-safety: belongs to its connection, under its lock.
#pragma once

#include <array>
#include <memory>

#include "driver/softnic/registry.h"
#include "driver/wire.h"

namespace termfs::driver::softnic {

class ExportedMemory final : public RemoteMemory {
 public:
  // `key_mask`: the peer names a key by its value ^ key_mask.
  ExportedMemory(std::shared_ptr<Registry> registry, uint32_t domain, uint32_t key_mask)
      : registry_(std::move(registry)), domain_(domain), key_mask_(key_mask) {}

  // A region whose absent pages fault (kOdp) is not reached: a packet cannot wait.
  bool Allows(RKey rkey, uint64_t offset, uint64_t length, Access access) override;
  bool Read(RKey rkey, uint64_t offset, std::span<std::byte> to) override;
  bool Write(RKey rkey, uint64_t offset, std::span<const std::byte> from) override;
  bool CompareSwap(RKey rkey, uint64_t offset, uint64_t compare, uint64_t swap, uint64_t* before) override;
  bool FetchAdd(RKey rkey, uint64_t offset, uint64_t add, uint64_t* before) override;
  void Prefetch(RKey rkey, uint64_t offset, uint64_t length) override;

 private:
  struct Known {
    RKey rkey;
    std::shared_ptr<const Export> region;
  };
  // Null: there is none, or not any more.
  const Export* Find(RKey rkey);
  // Null: it allows no such access. Good until the next call: an export that is removed meanwhile stays readable.
  const Export* FindAllowed(RKey rkey, uint64_t offset, uint64_t length, Access access);
  std::byte* Reach(RKey rkey, uint64_t offset, uint64_t length, Access access);
  static bool ReadPage(const Export& region, uint64_t offset, std::span<std::byte> to);

  const std::shared_ptr<Registry> registry_;
  const uint32_t domain_;
  const uint32_t key_mask_;
  std::array<Known, 8> known_{};
};

}  // namespace termfs::driver::softnic

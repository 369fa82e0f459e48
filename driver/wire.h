// SPDX-License-Identifier: Apache-2.0
//
// What a wire protocol in user space (driver/roce, driver/iwarp) needs of the RNIC that runs it: the memory that peers
// may reach, receives that connections share, and a place for completions. The protocols know no sockets, threads or
// clocks.
//
// Thread-safety: one connection calls from one thread at a time; ReceiveSource: any thread.
// Ownership:     all of these outlive the connections that use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "driver/nic.h"

namespace termfs::driver {

// What peers may reach. Called for every packet: it must not block.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  virtual bool Allows(RKey rkey, uint64_t offset, uint64_t length, Access access) = 0;
  // Within one page, all of one version. False: it has become impossible since.
  virtual bool Read(RKey rkey, uint64_t offset, std::span<std::byte> to) = 0;
  virtual bool Write(RKey rkey, uint64_t offset, std::span<const std::byte> from) = 0;
  // The value before; `offset` is a multiple of 8.
  virtual bool CompareSwap(RKey rkey, uint64_t offset, uint64_t compare, uint64_t swap, uint64_t* before) = 0;
  virtual bool FetchAdd(RKey rkey, uint64_t offset, uint64_t add, uint64_t* before) = 0;
  // It will be READ soon.
  virtual void Prefetch(RKey /*rkey*/, uint64_t /*offset*/, uint64_t /*length*/) {}
};

class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  virtual void OnSend(const WorkCompletion& completion) = 0;
  // A send has succeeded that asked for no completion.
  virtual void OnUnsignaledSend() = 0;
  virtual void OnReceive(const WorkCompletion& completion) = 0;
};

// Receives that a connection shares with others.
class ReceiveSource {
 public:
  virtual ~ReceiveSource() = default;
  // One of them, which the connection completes; absent: there is none now. Any thread.
  virtual std::optional<RecvWorkRequest> Take() = 0;
};

}  // namespace termfs::driver

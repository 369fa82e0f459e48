// SPDX-License-Identifier: Apache-2.0
//
// What a command of FUSE over io_uring shares with the kernel beside its payload: of <linux/fuse.h> 7.42, which is
// newer than Debian 12's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mount/fuse_command.h"

namespace termfs::mount {

struct FuseCommand::Header {
  std::byte in_out[128];     // fuse_in_header, then fuse_out_header
  std::byte operation[128];  // the argument struct of the opcode
  struct {
    uint64_t flags;
    uint64_t commit_id;  // names the request in its reply
    uint32_t payload_bytes;
    uint32_t padding;
    uint64_t reserved;
  } entry;
};

}  // namespace termfs::mount

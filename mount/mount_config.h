// SPDX-License-Identifier: Apache-2.0
//
// The options of a mount, as -o and fstab give them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fs/client/file_system.h"
#include "mount/fuse_server.h"

namespace termfs::mount {

struct MountConfig {
  // How absent pages are recognised before a READ. Not said: live on one host, pulled over a network.
  std::optional<tlib::client::BitmapMode> bitmap;
  std::string secret;       // file with the volume's secret, for a server on another host
  std::string rdma;         // the RDMA device to reach it through, by name or address; empty: the software RNIC
  bool plain_data = false;  // tls=off
  std::optional<tlib::client::Wire> rdma_wire;  // what the RNIC speaks over a network; none: what both ends speak best
  // So many misses may wait at once.
  unsigned threads = 16;
  FuseTransport fuse = FuseTransport::kAuto;
  std::chrono::seconds timeout{30};    // of a call to the server
  std::chrono::seconds reconnect{60};  // for so long a lost server is waited for
  bool grants = true;                  // the kernel may cache attributes and entries that the server grants
  bool acl = true;                     // access control lists are enforced, and can be seen and set
  bool read_only = false;
  bool synchronous = false;            // sync: whatever a call has changed is on the SSD when it returns
  bool synchronous_names = false;      // dirsync: names are
  bool access_times = true;            // relatime; else they stay
  bool directory_access_times = true;  // those of directories, too
  bool follow_symlinks = true;         // in paths through the mount
  std::vector<std::string> kernel;     // what the kernel or libfuse understands, in the order given
  std::vector<std::string> given;      // all that had an effect, as text, in the order given
};

enum class UnknownOptions : uint8_t { kRefused, kPassedOver };  // the second: mount -s

// Adds the comma-separated `options` to `config`. EINVAL names an option that has a bad value, or is unknown.
Status ApplyMountOptions(std::string_view options, MountConfig& config,
                         UnknownOptions unknown = UnknownOptions::kRefused);
// An option of `wanted` that differs from the one of `now` and that no remount changes; "": there is none.
std::string NeedsNewMount(const MountConfig& now, const MountConfig& wanted);
// One line per option, for --help.
std::string MountOptionsHelp();

}  // namespace termfs::mount

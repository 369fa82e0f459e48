// SPDX-License-Identifier: Apache-2.0
//
// The subcommands of termfs, each in a file of its own: what they are asked (still as text where a person wrote it) and
// a function that does it and returns the exit code: 0 ok, 1 failed, 2 bad usage.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "fs/client/admin.h"
#include "fs/client/file_system.h"

namespace termfs::mount {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

// What main decides: the concrete objects.
struct Program {
  // `device`: an RDMA device, by name or address; empty: the software RNIC.
  std::function<Result<std::unique_ptr<driver::Nic>>(const std::string& device)> open_nic;
  // A server's: for clients of this host the software RNIC, for those of others the device; empty: that, too.
  std::function<Result<std::unique_ptr<driver::Nic>>(const std::string& device, uint32_t threads)> open_server_nic;
};

struct FormatArguments {
  std::string directory;
  std::string capacity;
  std::string dram_ratio;
  std::string metadata_memory;
  std::string device;
  bool force = false;
};
struct ServeArguments {
  std::string directory;
  std::string dram_ratio;  // empty: as in termfs.toml; so are the others
  std::string kind;
  std::string promoter;
  std::string workers;
  std::string metadata_memory;
  std::string memory_directory;
  std::string listen;
  std::string rdma;
  std::string rdma_wire;
  std::string rnic_threads;
  std::string tls;
  bool foreground = false;
  bool verbose = false;
};
struct MountArguments {
  std::string address;
  std::string mountpoint;
  std::vector<std::string> options;
  std::string secret;  // file, where the address is a host's
  std::string log;     // file for the messages of a mount in the background
  bool foreground = false;
  bool verbose = false;
};
struct UmountArguments {
  std::string mountpoint;
  bool lazily = false;
};
struct StatusArguments {
  std::string address;  // a volume's, or a mount point
  std::string secret;   // file, where the address is a host's; so it is of the next ones
  bool json = false;
};
struct StatsArguments {
  std::string source;  // a volume's address or a mount point
  std::string secret;
  bool json = false;
  std::string interval = "1";  // seconds
  std::string count;           // samples; empty: until interrupted
  bool sessions = false;
};
struct SetArguments {
  std::string address;  // a volume's, or a mount point
  std::string secret;
  std::vector<std::string> settings;  // key=value
};
struct QuotaArguments {
  std::string path;  // in a mount; of a list, a volume's address or a mount point
  std::string secret;
  std::vector<std::string> limits;  // bytes=SIZE, inodes=N
  bool json = false;
};
struct FsckArguments {
  std::string directory;
  bool repair = false;
  bool json = false;
};

int RunFormat(const FormatArguments& arguments);
int RunServe(const Program& program, const ServeArguments& arguments);
int RunMount(const Program& program, const MountArguments& arguments);
int RunUmount(const UmountArguments& arguments);
int RunStatus(const StatusArguments& arguments);
int RunStats(const StatsArguments& arguments);
int RunSet(const SetArguments& arguments);
int RunQuotaSet(const QuotaArguments& arguments);
int RunQuotaGet(const QuotaArguments& arguments);
int RunQuotaList(const QuotaArguments& arguments);
int RunFsck(const FsckArguments& arguments);

// Parses the command line and runs what it says.
int RunCommandLine(const Program& program, int argc, char** argv);
// The same for mount.termfs, called by mount(8): ADDR MNT [-sfnv] [-N NAMESPACE] [-t TYPE] [-o OPTIONS]. Exit codes are
// mount(8)'s: 0 ok, 1 bad usage, 32 failed.
int RunMountHelper(const Program& program, int argc, char** argv);

// Print the error, and return the exit code for it. `command`: the subcommand whose --help says more.
int Failed(const Status& status);
int BadUsage(const std::string& command, const Status& status);
// Prints `text` to standard output; the exit code says whether it got there.
int Print(const std::string& text);

// A volume's size, within what there is. EINVAL.
Result<uint64_t> ParseCapacity(const std::string& text);
// The metadata store's memory, within what is allowed. EINVAL.
Result<uint64_t> ParseMetadataMemory(const std::string& text);
// The absolute path of a volume's directory. EUCLEAN for a directory that is none.
Result<std::string> VolumePath(const std::string& address);
// Where a volume is served: at a host, with the volume's `secret`, a file; or in the volume's directory, as by
// VolumePath. EINVAL: not an address, or without a secret.
Result<fs::client::ServerAddress> VolumeAddress(const std::string& address, const std::string& secret);
// The same, also of the volume that is mounted on `place`.
Result<fs::client::ServerAddress> ServedAddress(const std::string& place, const std::string& secret);
// Of a file that need not exist, in a directory that does.
Result<std::string> AbsolutePath(const std::string& path);

}  // namespace termfs::mount

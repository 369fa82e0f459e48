// SPDX-License-Identifier: Apache-2.0
//
// The program termfs, which is the helper of mount(8), too, when it is called by the name of one. Here, and nowhere
// else, it is decided which RNIC there is. For tests, TERMFS_NETWORK_FAULTS makes a bad network of what it sends
// (driver/softnic/softnic.h), and TERMFS_VALIDATED_READS has a server's clients on other hosts READ as if its RNIC knew
// no page table.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "driver/paired/paired.h"
#include "driver/softnic/softnic.h"
#include "driver/verbs/verbs.h"
#include "mount/command.h"
#include "mount/daemon.h"
#include "mount/hidden_words.h"

namespace {

using NicResult = termfs::Result<std::unique_ptr<termfs::driver::Nic>>;

NicResult OpenPairedNic(const std::string& name) {
  ASSIGN_OR_RETURN(auto device, termfs::driver::OpenRdmaDevice(name));
  ASSIGN_OR_RETURN(auto local, termfs::driver::CreateSoftNic());
  return termfs::driver::CreatePairedNic(std::move(local), std::move(device));
}

// The workers, and on small machines the mounts, want processors, too.
uint32_t ThreadsByProcessors() { return std::clamp(std::thread::hardware_concurrency() / 2, 1U, 4U); }

}  // namespace

int main(int argc, char** shown_argv) {
  termfs::mount::HiddenWords words(argc, shown_argv);
  char** const argv = words.argv();
  termfs::mount::OpenStandardDescriptors();
  const char* const faults = std::getenv("TERMFS_NETWORK_FAULTS");
  const termfs::driver::SoftNicOptions soft{.network_faults = faults != nullptr ? faults : "",
                                            .validated_reads = std::getenv("TERMFS_VALIDATED_READS") != nullptr};
  const termfs::mount::Program program{
      .open_nic =
          [soft](const std::string& device) {
            return device.empty() ? termfs::driver::CreateSoftNic(soft) : termfs::driver::CreateVerbsNic(device);
          },
      .open_server_nic =
          [soft](const std::string& device, uint32_t threads) {
            termfs::driver::SoftNicOptions options = soft;
            options.threads = threads != 0 ? threads : ThreadsByProcessors();
            return device.empty() ? termfs::driver::CreateSoftNic(options) : OpenPairedNic(device);
          }};
  const char* slash = argc > 0 ? std::strrchr(argv[0], '/') : nullptr;
  const char* name = slash != nullptr ? slash + 1 : argc > 0 ? argv[0] : "termfs";
  if (std::strcmp(name, "mount.termfs") == 0 || std::strcmp(name, "mount.fuse.termfs") == 0) {
    return termfs::mount::RunMountHelper(program, argc, argv);
  }
  return termfs::mount::RunCommandLine(program, argc, argv);
}

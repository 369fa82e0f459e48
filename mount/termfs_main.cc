// SPDX-License-Identifier: Apache-2.0
//
// The program termfs, which is mount.termfs, too, when it is called by that name. Here, and nowhere else, it is decided
// which RNIC there is.
#include <cstring>

#include "driver/softnic/softnic.h"
#include "mount/command.h"

int main(int argc, char** argv) {
  const termfs::mount::Program program{.open_nic = [] { return termfs::driver::CreateSoftNic(); }};
  const char* slash = argc > 0 ? std::strrchr(argv[0], '/') : nullptr;
  const char* name = slash != nullptr ? slash + 1 : argc > 0 ? argv[0] : "termfs";
  if (std::strcmp(name, "mount.termfs") == 0) {
    return termfs::mount::RunMountHelper(program, argc, argv);
  }
  return termfs::mount::RunCommandLine(program, argc, argv);
}

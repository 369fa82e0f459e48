// SPDX-License-Identifier: Apache-2.0
//
// What the thread that made a FUSE request may do, beyond what the user says that the request comes with.
//
// Thread-safety: any thread.
#pragma once

#include <sys/types.h>

namespace termfs::mount {

// Whether it has CAP_SYS_ADMIN in effect, in this process's user namespace: a root of another one has it there only.
// False also when nothing can be known of the thread.
bool IsAdministrator(pid_t thread);

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// What a service of termfs needs of the system before it starts, and how it ends when that runs out.
//
// Thread-safety: called by a main thread, before others start.
#pragma once

namespace termfs::mount {

// As many open files as the system allows this process: each queue pair needs some.
void RaiseFileLimit();

// The standard library knows no other way to say that there is no memory or no thread than to throw, which nobody here
// catches but StartThread. From now on such an end is a message, in the log and on standard error, and exit code 1.
void EndCleanlyWithoutResources();

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// What a signal is about to do to a thread that waits in a system call. The kernel interrupts a FUSE request for every
// signal; but a program that handles a signal does not expect calls on files to fail with EINTR (on a local disk they
// never do), so only one that ends the program may end its call. (A wait for a lock is the exception: it is interrupted
// on a local disk, too.)
//
// Thread-safety: any thread.
#pragma once

#include <sys/types.h>

#include <string_view>

namespace termfs::mount {

// `status`: what /proc/TID/status says. True: a signal is pending that will end the process.
bool EndingByStatus(std::string_view status);

// The same of a thread, by its id. Who waits in a system call is there until that has returned; one that is gone has
// submitted an asynchronous read or write, and left it to others of its process.
bool IsEnding(pid_t thread);

// The same; true also when there is no such thread. Of one that a signal came for while it waited, as the kernel says.
bool MayBeEnding(pid_t thread);

// A signal is pending that interrupts a wait that any signal may interrupt, for a lock. Of a process with several
// threads only those count that are sent to this one: another may take the others.
bool InterruptedByStatus(std::string_view status);
bool IsInterrupted(pid_t thread);

}  // namespace termfs::mount

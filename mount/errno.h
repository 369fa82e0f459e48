// SPDX-License-Identifier: Apache-2.0
//
// The only place that turns a Status into an answer for the kernel.
#pragma once

#include <fuse_lowlevel.h>

#include "base/result.h"

namespace termfs::mount {

// The errno that an application sees for `status`; 0 when it is ok.
int ToErrno(const Status& status);
// The same, and a failure that is not the application's doing goes to the log.
int LoggedErrno(const Status& status);
// Answers the request with the status: its error, or "done" when it is ok. The request is gone afterwards.
void Reply(fuse_req_t request, const Status& status);

}  // namespace termfs::mount

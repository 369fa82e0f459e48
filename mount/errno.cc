// SPDX-License-Identifier: Apache-2.0
#include "mount/errno.h"

#include "base/log.h"

namespace termfs::mount {
namespace {

constexpr int kLastErrno = 511;  // larger ones are the kernel's own, like ERESTARTSYS

}  // namespace

int ToErrno(const Status& status) {
  const int code = status.code();
  switch (code) {
    case ENOSYS:  // would make the kernel never ask again
      return EOPNOTSUPP;
    case EAGAIN:  // would make a program wait for a readiness that files do not signal
    case EPROTO:
    case EBADMSG:
    case ECANCELED:
      return EIO;
    case EPIPE:  // means something else to a writer
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ESHUTDOWN:
      return ENOTCONN;
    default:
      return code > kLastErrno ? EIO : code;
  }
}

int LoggedErrno(const Status& status) {
  const int code = ToErrno(status);
  if (code == EIO || code == ENOTCONN || code == ETIMEDOUT) {
    LOG_DEBUG("a request failed: {}", status.ToDebugString());
  }
  return code;
}

void Reply(fuse_req_t request, const Status& status) { fuse_reply_err(request, LoggedErrno(status)); }

}  // namespace termfs::mount

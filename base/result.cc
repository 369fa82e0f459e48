// SPDX-License-Identifier: Apache-2.0
#include "base/result.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace termfs {

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

Status Status::Error(int code, std::string why, SourceLocation where) {
  TERMFS_CHECK(code > 0);
  Status status;
  status.rep_ = std::make_unique<Rep>(Rep{.code = code, .what = std::move(why), .where = where});
  return status;
}

Status Status::Errno(int code, std::string what, SourceLocation where) {
  Status status = Error(code, std::move(what), where);
  status.rep_->says_why = false;
  return status;
}

std::string Status::ToString() const {
  if (ok()) {
    return "ok";
  }
  const std::string& what = rep_->what;
  const std::string reason = ": " + std::generic_category().message(rep_->code);
  const size_t advice = what.rfind("; ");
  const size_t detail = what.rfind(": ");
  const bool advises = advice != std::string::npos && (detail == std::string::npos || detail < advice);
  // As what another error is the reason of.
  const bool said = what.ends_with(reason) || what.ends_with(reason + ")");
  return rep_->says_why || advises || said ? what : what + reason;
}

std::string Status::ToDebugString() const {
  if (ok()) {
    return "ok";
  }
  return ToString() + " (" + std::string(rep_->where.file) + ":" + std::to_string(rep_->where.line) + ")";
}

Status Status::WithContext(std::string_view context) && {
  if (!ok()) {
    rep_->what = std::string(context) + ": " + rep_->what;
  }
  return std::move(*this);
}

Status ErrnoStatus(std::string what, SourceLocation where) {
  return Status::Errno(errno != 0 ? errno : EIO, std::move(what), where);
}

}  // namespace termfs

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

Status Status::Error(int code, std::string what, SourceLocation where) {
  TERMFS_CHECK(code > 0);
  Status status;
  status.rep_ = std::make_unique<Rep>(Rep{code, std::move(what), where});
  return status;
}

std::string Status::ToString() const {
  if (ok()) {
    return "ok";
  }
  const std::string reason = ": " + std::generic_category().message(rep_->code);
  // As what another error is the reason of.
  const bool said = rep_->what.ends_with(reason) || rep_->what.ends_with(reason + ")");
  return said ? rep_->what : rep_->what + reason;
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
  return Status::Error(errno != 0 ? errno : EIO, std::move(what), where);
}

}  // namespace termfs

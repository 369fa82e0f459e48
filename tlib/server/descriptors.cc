// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace termfs::tlib::server {
namespace {

uint64_t Limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : UINT64_MAX;
}

std::string Short() {
  return "the server is short of file descriptors, of which it may have " + std::to_string(Limit()) +
         " (ulimit -n, LimitNOFILE)";
}

}  // namespace

Status CheckDescriptors(uint32_t wanted) {
  const UniqueFd lowest(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const uint64_t limit = Limit();
  if (lowest.valid() && static_cast<uint64_t>(lowest.get()) + wanted <= limit) {
    return Status::Ok();
  }
  return lowest.valid() || errno == EMFILE ? Status::Error(EMFILE, Short())
                                           : NameDescriptors(ErrnoStatus("open /dev/null"));
}

Status NameDescriptors(Status status) {
  if (status.code() == EMFILE) {
    return std::move(status).WithContext(Short());
  }
  if (status.code() == ENFILE) {
    return std::move(status).WithContext("the server's machine is short of file descriptors (fs.file-max)");
  }
  return status;
}

}  // namespace termfs::tlib::server

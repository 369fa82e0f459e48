// SPDX-License-Identifier: Apache-2.0
//
// OpenService: a region without a file system above it. Whoever connects may write to it.
//
// Thread-safety: any thread. Errors: ENOSYS to every request of a service.
#pragma once

#include <vector>

#include "base/result.h"
#include "tlib/server/server.h"

namespace termfs::benchmarks::term {

class OpenService final : public tlib::server::Service {
 public:
  Result<std::vector<std::byte>> Handle(tlib::server::Call&) override { return Status::Error(ENOSYS, "none"); }
  Result<std::vector<std::byte>> HandleAdmin(uint16_t, std::span<const std::byte>) override {
    return Status::Error(ENOSYS, "none");
  }
  Status SessionOpened(const tlib::server::SessionInfo&) override { return Status::Ok(); }
  void SessionClosed(tlib::server::SessionId, const tlib::server::SessionEnd&) override {}
  bool AllowsRawWrites() const override { return true; }
};

}  // namespace termfs::benchmarks::term

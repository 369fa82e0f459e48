// SPDX-License-Identifier: Apache-2.0
//
// RingSwitch: FUSE over io_uring is on in the kernel as long as one lives, and as it was before afterwards, however the
// process ends (tools/ring_switch.sh). Thread-safety: none.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace termfs::mount {

class RingSwitch {
 public:
  RingSwitch();
  ~RingSwitch();
  RingSwitch(const RingSwitch&) = delete;
  RingSwitch& operator=(const RingSwitch&) = delete;

  bool on() const { return said_ == "on\n"; }
  const std::string& said() const { return said_; }  // why not, when it is not

 private:
  int child_ = -1;
  UniqueFd hold_;
  std::string said_;
};

}  // namespace termfs::mount

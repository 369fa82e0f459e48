// SPDX-License-Identifier: Apache-2.0
//
// SegmentSize: how large a client's TCP segments may be on the way to its server. Some paths lose large packets and
// report nothing (an MTU black hole): connections come about and pings are answered, but nothing large arrives. So each
// new session first sends a segment of full size both ways. Where that is lost and a small one arrives, segments stay
// small for kKeep; the first connection after that is of full size again.
//
//   full --full segment lost--> trying --small one answered--> small --kKeep is over--> full
//                                 |                              |
//                                 +--small one lost, too: full <-+   the path is down, or the server does not answer
//
// Thread-safety: none; a client's sessions are connected one after the other.
#pragma once

#include <chrono>
#include <cstdint>

namespace termfs::tlib::client {

class SegmentSize {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr uint32_t kSmall = 1220;  // bytes: IPv6's least MTU, 1280, less the headers of IPv6 and TCP
  static constexpr std::chrono::minutes kKeep{10};
  // For the answer: TCP has sent the segment five times by then.
  static constexpr std::chrono::seconds kPatience{3};

  enum class Next : uint8_t {
    kGoOn,          // with this connection
    kGoOnSmall,     // the same, and segments are small from now on
    kConnectAgain,  // with limit()
    kFail,          // larger segments are lost no more than others
  };

  // For a connection that is made now; 0: the kernel's choice.
  uint32_t limit(TimePoint now) const { return trying_ || now < small_until_ ? kSmall : 0; }

  // Whether a segment as large as `limit` allows was answered, on a connection made with that limit.
  Next Probed(uint32_t limit, bool answered, TimePoint now) {
    const bool tried = trying_;
    trying_ = limit == 0 && !answered;
    if (limit == 0) {
      return answered ? Next::kGoOn : Next::kConnectAgain;
    }
    if (!answered) {
      small_until_ = {};
      return Next::kFail;
    }
    if (!tried) {
      return Next::kGoOn;
    }
    small_until_ = now + kKeep;
    return Next::kGoOnSmall;
  }

  // The connection that was to be tried did not come about.
  void Failed() { trying_ = false; }

 private:
  bool trying_ = false;
  TimePoint small_until_{};
};

}  // namespace termfs::tlib::client

// SPDX-License-Identifier: Apache-2.0
//
// Pages asked for and sent in bare datagrams, as long as RoCE's and put together as far as the kernel does: what no
// transport over UDP with RoCE's packets can pass. Nobody numbers them, checks them, repeats them, or puts them where
// they belong. A TCP connection beside them tells the ports, and the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "base/unique_fd.h"
#include "tlib/rpc/tcp_socket.h"

namespace termfs::benchmarks {

// Until the peer of `socket` hangs up. Requests are offsets of pages from `frames`.
void ServeDatagrams(std::byte* frames, int socket);

class Datagrams {
 public:
  explicit Datagrams(const tlib::HostPort& place);
  // Bytes received.
  uint64_t Run(double seconds);

 private:
  void Ask(size_t count);

  UniqueFd socket_;
  UniqueFd datagrams_;
  UniqueFd epoll_;
  std::vector<char> buffer_;
  Random random_{1};
};

}  // namespace termfs::benchmarks

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/random.h"
#include "fs/client/volume_client.h"
#include "tlib/client/segment_size.h"

namespace termfs::fs::client {

Result<std::unique_ptr<FileSystem>> FileSystem::Connect(driver::Nic& nic, const ServerAddress& address,
                                                        const MountOptions& options, KernelCache* cache) {
  tlib::client::SessionOptions session = options.session;
  session.hello_timeout = std::min(session.hello_timeout, session.call_timeout);
  if (session.reconnect.count() > 0) {
    RETURN_IF_ERROR(SecureRandom(&session.client, sizeof(session.client)));
  }
  session.segment_size = std::make_shared<tlib::client::SegmentSize>();
  const auto connect = [&nic, address, session, first = true](tlib::client::CallbackHandler* handler) mutable {
    auto connected = tlib::client::Session::Connect(nic, address, session, handler);
    if (std::exchange(first, false)) {
      // Later a server that does not answer is asked again; nobody waits long for the end of an attempt.
      constexpr std::chrono::milliseconds kAttempt{3000};
      session.hello_timeout = std::min(session.hello_timeout, kAttempt);
    }
    return connected;
  };
  return VolumeClient::Create(connect, options, cache);
}

}  // namespace termfs::fs::client

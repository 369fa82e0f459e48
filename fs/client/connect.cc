// SPDX-License-Identifier: Apache-2.0
#include "fs/client/volume_client.h"

namespace termfs::fs::client {

Result<std::unique_ptr<FileSystem>> FileSystem::Connect(driver::Nic& nic, const std::string& address,
                                                        const MountOptions& options, KernelCache* cache) {
  return VolumeClient::Create(
      [&](tlib::client::CallbackHandler* handler) {
        return tlib::client::Session::Connect(nic, address, options.session, handler);
      },
      options, cache);
}

}  // namespace termfs::fs::client

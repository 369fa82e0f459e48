// SPDX-License-Identifier: Apache-2.0
//
// TestVolume on the real thing: a volume in a temporary directory, RocksDB, the software RNIC. Server and clients share
// the test's process.
#pragma once

#include "driver/nic.h"
#include "fs/server/volume.h"
#include "tests/unit/fs/test_volume.h"

namespace termfs::fs {

class RealVolume final : public TestVolume {
 public:
  RealVolume(uint64_t capacity_bytes, double dram_ratio);
  ~RealVolume() override;
  std::unique_ptr<client::FileSystem> Connect(client::KernelCache* cache = nullptr) override;
  void Restart() override;
  std::vector<std::string> Check() override;

  void Start();
  void Stop();
  const std::string& directory() const { return directory_; }
  std::string Text(const std::string& name) const;  // of a file in it

 private:
  std::string directory_;
  std::string memory_;  // on a tmpfs
  std::unique_ptr<driver::Nic> nic_;
  std::unique_ptr<server::VolumeServer> server_;
};

}  // namespace termfs::fs

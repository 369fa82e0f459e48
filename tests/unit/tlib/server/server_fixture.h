// SPDX-License-Identifier: Apache-2.0
//
// A served region of 1024 pages, half of which have frames.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/tlib/volume_fixture.h"

namespace termfs::tlib {

class ServerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(volume_.Format().ok());
    const Status started = volume_.Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  void TearDown() override { volume_.service().withheld = false; }
  static std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
    Random random(seed);
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    return bytes;
  }
  TestVolume volume_{{.pages = 1024, .dram_ratio = 0.5}};
};

}  // namespace termfs::tlib

// SPDX-License-Identifier: Apache-2.0
//
// The tests of files that hold over any TestVolume; a test program instantiates them with its maker.
#pragma once

#include "tests/unit/fs/test_volume.h"

namespace termfs::fs {

class Files : public testing::TestWithParam<VolumeMaker> {
 protected:
  std::unique_ptr<TestVolume> Make(uint64_t capacity_bytes = uint64_t{32} << 20) { return GetParam()(capacity_bytes); }
};

class FilesModel : public Files {};

}  // namespace termfs::fs

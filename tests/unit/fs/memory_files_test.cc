// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/fs/file_cases.h"

namespace termfs::fs {
INSTANTIATE_TEST_SUITE_P(Memory, Files, testing::Values(&MakeMemoryVolume));
INSTANTIATE_TEST_SUITE_P(Memory, FilesModel, testing::Values(&MakeMemoryVolume));
}  // namespace termfs::fs

// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/fs/file_cases.h"

namespace termfs::fs {
INSTANTIATE_TEST_SUITE_P(Real, Files, testing::Values(&MakeRealVolume));
INSTANTIATE_TEST_SUITE_P(Real, FilesModel, testing::Values(&MakeRealVolume));
}  // namespace termfs::fs

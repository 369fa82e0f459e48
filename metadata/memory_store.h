// SPDX-License-Identifier: Apache-2.0
//
// A KeyValueStore in memory, for tests and tools. Optimistic: nobody waits, conflicts show at Commit. It checks the
// namespace under an engine of the other kind than RocksDB.
#pragma once

#include <memory>

#include "metadata/key_value_store.h"

namespace termfs::metadata {

std::unique_ptr<KeyValueStore> NewMemoryStore();

}  // namespace termfs::metadata

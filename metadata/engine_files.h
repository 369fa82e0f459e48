// SPDX-License-Identifier: Apache-2.0
//
// EngineFiles: the files of RocksDB, with two things added. Failed accesses are logged, with file, offset and error.
// And a write that finds the disk full goes through with blocks of the reserve, so that the engine never sees a full
// disk while there are some: it does not survive one at each place. Compactions get none: they can wait, and need much.
//
// Thread-safety: as rocksdb::FileSystem. Ownership: room and reserve are borrowed.
#pragma once

#include <rocksdb/env.h>

#include <memory>

#include "metadata/disk_reserve.h"
#include "metadata/disk_room.h"

namespace termfs::metadata {

// An Env on the files of `base`, for one store. All outlive it.
std::unique_ptr<rocksdb::Env> MakeEngineEnv(rocksdb::Env& base, DiskReserve& reserve, const DiskRoom& room);

}  // namespace termfs::metadata

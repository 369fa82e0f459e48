// SPDX-License-Identifier: Apache-2.0
//
// What RocksDB reports by itself: errors of its background work, which go to termfs's log, and what it logs in its own
// files, which stops while the disk is short of room.
//
// Thread-safety: any thread.
#pragma once

#include <rocksdb/env.h>
#include <rocksdb/listener.h>

#include <memory>

#include "metadata/disk_room.h"

namespace termfs::metadata {

std::shared_ptr<rocksdb::EventListener> MakeEngineEvents();
// Passes lines on to `log` while there is room. Null: nowhere. `room` is borrowed.
std::shared_ptr<rocksdb::Logger> MakeEngineLog(std::shared_ptr<rocksdb::Logger> log, const DiskRoom& room);

}  // namespace termfs::metadata

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
#include <string>

#include "metadata/disk_room.h"

namespace termfs::metadata {

std::shared_ptr<rocksdb::EventListener> MakeEngineEvents();
// Into the file `path`, at most 4 MiB and as much in PATH.old, while there is room. `room` is borrowed.
std::shared_ptr<rocksdb::Logger> MakeEngineLog(const std::string& path, const DiskRoom& room);

}  // namespace termfs::metadata

// SPDX-License-Identifier: Apache-2.0
//
// The files of RocksDB's tables, which can be read without waiting for a disk: what the kernel has in its page cache is
// read, and everything else is refused. See "What is in memory needs no thread".
//
// Thread-safety: the file system from any thread; a WithoutWaiting counts for the thread that made it.
#pragma once

#include <rocksdb/env.h>

#include <memory>
#include <utility>

namespace termfs::metadata {

// While there is one, this thread's reads of tables fail with Busy where they would have to wait.
class WithoutWaiting {
 public:
  explicit WithoutWaiting(bool without) : before_(std::exchange(active_, without)) {}
  ~WithoutWaiting() { active_ = before_; }
  WithoutWaiting(const WithoutWaiting&) = delete;
  WithoutWaiting& operator=(const WithoutWaiting&) = delete;

  static bool active() { return active_; }

 private:
  static thread_local bool active_;
  const bool before_;
};

// RocksDB's default environment over such files: of the process; and on top of `below`.
rocksdb::Env* EnvOfTables();
std::unique_ptr<rocksdb::Env> MakeEnvOfTables(const std::shared_ptr<rocksdb::FileSystem>& below);

}  // namespace termfs::metadata

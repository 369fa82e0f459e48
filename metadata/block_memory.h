// SPDX-License-Identifier: Apache-2.0
//
// Memory of the blocks in the engine's cache. They come and go by the million, on many threads, in sizes that differ a
// little: of the C library's allocator that takes twice as much as there is in them. Here a block gets its place in a
// chunk of 1 MiB with others of its size, rounded up; a chunk of which none is left goes back,
// unless it is the last one with room for that size.
//
// Thread-safety: any thread. Errors: std::bad_alloc, as operator new; RocksDB throws it on.
#pragma once

#include <rocksdb/memory_allocator.h>

#include <array>
#include <cstddef>

#include "base/mutex.h"

namespace termfs::metadata {

class BlockMemory final : public rocksdb::MemoryAllocator {
 public:
  BlockMemory() = default;
  // REQUIRES: nothing is allocated.
  ~BlockMemory() override;

  const char* Name() const override { return "termfs.BlockMemory"; }
  void* Allocate(size_t size) override;
  void Deallocate(void* place) override;
  size_t UsableSize(void* place, size_t allocated) const override;
  size_t chunk_bytes() const;  // taken from the system, larger ones aside

 private:
  struct Chunk;
  struct Size {  // all chunks with places of one size
    mutable Mutex mutex;
    Chunk* with_room GUARDED_BY(mutex) = nullptr;
    size_t chunks GUARDED_BY(mutex) = 0;
  };
  static constexpr size_t kStep = 256;
  static constexpr size_t kSizes = 64;  // up to 16 KiB; larger ones are rare, and each is a chunk of its own

  static Chunk* ChunkOf(void* place);
  static Chunk* NewChunk(size_t place_bytes, size_t chunk_bytes);
  static void EndChunk(Chunk* chunk);
  static void Link(Size& size, Chunk* chunk) REQUIRES(size.mutex);
  static void Unlink(Size& size, Chunk* chunk) REQUIRES(size.mutex);

  std::array<Size, kSizes> sizes_;
};

}  // namespace termfs::metadata

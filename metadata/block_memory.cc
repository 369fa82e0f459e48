// SPDX-License-Identifier: Apache-2.0
#include "metadata/block_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace termfs::metadata {

namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;  // and where chunks begin: a place tells its chunk
constexpr size_t kHead = 64;

// From the system and back, past the C library's arenas, in which a large piece keeps its place.
char* Map(size_t bytes) {
  const size_t mapped = bytes + kChunkBytes;  // so that a chunk's beginning lies in it
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  char* const first = static_cast<char*>(memory);
  const size_t before = -reinterpret_cast<uintptr_t>(first) & (kChunkBytes - 1);
  if (before != 0) {
    munmap(first, before);
  }
  munmap(first + before + bytes, kChunkBytes - before);
  return first + before;
}

}  // namespace

struct BlockMemory::Chunk {
  size_t place_bytes;
  size_t mapped_bytes;
  size_t used = 0;
  size_t never_used = kHead;  // behind it no place was ever given out
  void* freed = nullptr;      // each says which is the next
  Chunk* before = nullptr;    // among those with room
  Chunk* after = nullptr;

  bool has_room() const { return freed != nullptr || never_used + place_bytes <= kChunkBytes; }
  char* at(size_t offset) { return reinterpret_cast<char*>(this) + offset; }
};

BlockMemory::Chunk* BlockMemory::ChunkOf(void* place) {
  const size_t offset = reinterpret_cast<uintptr_t>(place) & (kChunkBytes - 1);
  return reinterpret_cast<Chunk*>(static_cast<char*>(place) - offset);
}

BlockMemory::Chunk* BlockMemory::NewChunk(size_t place_bytes, size_t chunk_bytes) {
  static_assert(sizeof(Chunk) <= kHead);
  return new (Map(chunk_bytes)) Chunk{.place_bytes = place_bytes, .mapped_bytes = chunk_bytes};
}

void BlockMemory::EndChunk(Chunk* chunk) { munmap(chunk, chunk->mapped_bytes); }

void BlockMemory::Link(Size& size, Chunk* chunk) {
  chunk->before = nullptr;
  chunk->after = size.with_room;
  if (chunk->after != nullptr) {
    chunk->after->before = chunk;
  }
  size.with_room = chunk;
}

void BlockMemory::Unlink(Size& size, Chunk* chunk) {
  (chunk->before != nullptr ? chunk->before->after : size.with_room) = chunk->after;
  if (chunk->after != nullptr) {
    chunk->after->before = chunk->before;
  }
}

BlockMemory::~BlockMemory() {
  for (Size& size : sizes_) {
    MutexLock lock(size.mutex);
    while (size.with_room != nullptr) {
      Chunk* const chunk = size.with_room;
      Unlink(size, chunk);
      EndChunk(chunk);
    }
  }
}

void* BlockMemory::Allocate(size_t bytes) {
  const size_t index = bytes == 0 ? 0 : (bytes - 1) / kStep;
  if (index >= kSizes) {
    const size_t whole = (kHead + bytes + kChunkBytes - 1) / kChunkBytes * kChunkBytes;
    return NewChunk(bytes, whole)->at(kHead);
  }
  Size& size = sizes_[index];
  MutexLock lock(size.mutex);
  if (size.with_room == nullptr) {
    Link(size, NewChunk((index + 1) * kStep, kChunkBytes));
    ++size.chunks;
  }
  Chunk* const chunk = size.with_room;
  void* place = chunk->freed;
  if (place != nullptr) {
    chunk->freed = *static_cast<void**>(place);
  } else {
    place = chunk->at(chunk->never_used);
    chunk->never_used += chunk->place_bytes;
  }
  ++chunk->used;
  if (!chunk->has_room()) {
    Unlink(size, chunk);
  }
  return place;
}

void BlockMemory::Deallocate(void* place) {
  if (place == nullptr) {
    return;
  }
  Chunk* const chunk = ChunkOf(place);
  const size_t index = (chunk->place_bytes - 1) / kStep;
  if (index >= kSizes) {
    EndChunk(chunk);
    return;
  }
  Size& size = sizes_[index];
  MutexLock lock(size.mutex);
  if (!chunk->has_room()) {
    Link(size, chunk);
  }
  *static_cast<void**>(place) = chunk->freed;
  chunk->freed = place;
  const bool others = size.with_room != chunk || chunk->after != nullptr;
  if (--chunk->used == 0 && others) {  // the last one stays: the next block would have it made again
    Unlink(size, chunk);
    --size.chunks;
    EndChunk(chunk);
  }
}

size_t BlockMemory::UsableSize(void* place, size_t allocated) const {
  const size_t bytes = ChunkOf(place)->place_bytes;
  return bytes < allocated ? allocated : bytes;
}

size_t BlockMemory::chunk_bytes() const {
  size_t chunks = 0;
  for (const Size& size : sizes_) {
    MutexLock lock(size.mutex);
    chunks += size.chunks;
  }
  return chunks * kChunkBytes;
}

}  // namespace termfs::metadata

// SPDX-License-Identifier: Apache-2.0
//
// Contents of files that tell where they belong: each eight bytes, which file and which offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace termfs::benchmarks {

constexpr size_t kKnownWord = sizeof(uint64_t);

// `offset`: a multiple of kKnownWord.
inline uint64_t KnownWord(uint64_t file, uint64_t offset) { return (file << 40 | offset) * 0x9e3779b97f4a7c15ULL; }

// What belongs at `offset` of file `file`. REQUIRES: both are whole words.
inline void FillKnown(uint64_t file, uint64_t offset, std::span<std::byte> to) {
  for (size_t i = 0; i < to.size(); i += kKnownWord) {
    const uint64_t word = KnownWord(file, offset + i);
    std::memcpy(to.data() + i, &word, kKnownWord);
  }
}

}  // namespace termfs::benchmarks

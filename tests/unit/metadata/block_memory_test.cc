// SPDX-License-Identifier: Apache-2.0
#include "metadata/block_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/random.h"

namespace termfs::metadata {
namespace {

struct Block {
  void* place;
  size_t bytes;
  char fill;
};

Block Make(BlockMemory& memory, Random& random) {
  // Most are about a page; some are larger than any place.
  const size_t bytes = random.Below(20) == 0 ? random.Below(3 << 20) : 3500 + random.Below(1000);
  const Block block{memory.Allocate(bytes), bytes, static_cast<char>(random())};
  EXPECT_GE(memory.UsableSize(block.place, bytes), bytes);
  std::memset(block.place, block.fill, bytes);
  return block;
}

void End(BlockMemory& memory, const Block& block) {
  const auto* const bytes = static_cast<const char*>(block.place);
  for (size_t i = 0; i < block.bytes; i += 97) {
    ASSERT_EQ(bytes[i], block.fill);
  }
  memory.Deallocate(block.place);
}

TEST(BlockMemory, NoTwoBlocksShareAPlace) {
  BlockMemory memory;
  std::vector<std::jthread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&memory, seed] {
      Random random(seed);
      std::vector<Block> blocks;
      for (int i = 0; i < 5000; ++i) {
        if (blocks.size() > 100) {
          std::swap(blocks[random.Below(blocks.size())], blocks.back());
          End(memory, blocks.back());
          blocks.pop_back();
        }
        blocks.push_back(Make(memory, random));
      }
      for (const Block& block : blocks) {
        End(memory, block);
      }
    });
  }
  threads.clear();
  EXPECT_LE(memory.chunk_bytes(), 20u << 20);  // one for each size
}

// However long blocks of a size take one another's places.
TEST(BlockMemory, TakesLittleMoreThanIsInIt) {
  BlockMemory memory;
  Random random(1);
  std::vector<void*> places;
  constexpr size_t kBlocks = 5000;
  constexpr size_t kBytes = 4000;
  for (int i = 0; i < 200'000; ++i) {
    if (places.size() == kBlocks) {
      std::swap(places[random.Below(kBlocks)], places.back());
      memory.Deallocate(places.back());
      places.pop_back();
    }
    places.push_back(memory.Allocate(kBytes + random.Below(200)));
  }
  EXPECT_LE(memory.chunk_bytes(), kBlocks * kBytes * 5 / 4);
  for (void* const place : places) {
    memory.Deallocate(place);
  }
  EXPECT_LE(memory.chunk_bytes(), 2u << 20);
}

}  // namespace
}  // namespace termfs::metadata

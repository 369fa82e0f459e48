// SPDX-License-Identifier: Apache-2.0
#include "mount/fuse_command.h"

#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <sys/mman.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "driver/softnic/softnic.h"
#include "driver/verbs/memory.h"

namespace termfs::mount {
namespace {

constexpr size_t kBytes = 64 << 10;

// A buffer of shared memory at `place`, where there is none; anywhere if that is null.
std::span<std::byte> MakeBuffer(void* place) {
  void* const memory = mmap(place, kBytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | (place != nullptr ? MAP_FIXED_NOREPLACE : 0), -1, 0);
  return memory == MAP_FAILED ? std::span<std::byte>() : std::span(static_cast<std::byte*>(memory), kBytes);
}

void PutReply(FuseCommand& command, std::string text) {
  fuse_out_header header{.len = static_cast<uint32_t>(sizeof(header) + text.size()), .error = 0, .unique = 1};
  const iovec parts[] = {{&header, sizeof(header)}, {text.data(), text.size()}};
  EXPECT_TRUE(command.Put(parts));
}

std::string_view Text(std::span<const std::byte> buffer, size_t size) {
  return {reinterpret_cast<const char*>(buffer.data()), size};
}

TEST(FuseCommand, UseBuffer_AnotherOneWhereTheFormerWas) {
  const auto command = FuseCommand::Create(0, kBytes);
  ASSERT_TRUE(command.ok());
  const std::span<std::byte> first = MakeBuffer(nullptr);
  ASSERT_FALSE(first.empty());
  ASSERT_TRUE((*command)->UseBuffer(first, 1).ok());
  PutReply(**command, "before");
  EXPECT_EQ(Text(first, 6), "before");
  munmap(first.data(), kBytes);
  const std::span<std::byte> second = MakeBuffer(first.data());
  ASSERT_EQ(second.data(), first.data());
  ASSERT_TRUE((*command)->UseBuffer(second, 2).ok());
  EXPECT_EQ(Text(second, 6), "before") << "a reply that is there moves along";
  PutReply(**command, "after!");
  EXPECT_EQ(Text(second, 6), "after!");
  munmap(second.data(), kBytes);
}

// What a lane's buffer can be.
TEST(FuseCommand, UseBuffer_OfEveryNic) {
  const auto nic = driver::CreateSoftNic();
  ASSERT_TRUE(nic.ok());
  const auto allocations = std::make_shared<driver::verbs::Allocations>();
  std::pair<const char*, Result<std::unique_ptr<driver::Memory>>> memories[] = {
      {"softnic", (*nic)->AllocateMemory({.bytes = kBytes})},
      {"verbs", allocations->Allocate(allocations, {.bytes = kBytes})}};
  for (auto& [name, memory] : memories) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(memory.ok()) << memory.status().ToString();
    const std::span<std::byte> buffer((*memory)->data(), (*memory)->size());
    const auto command = FuseCommand::Create(0, kBytes);
    ASSERT_TRUE(command.ok());
    const Status used = (*command)->UseBuffer(buffer, 1);
    ASSERT_TRUE(used.ok()) << used.ToString();
    PutReply(**command, "stored");
    EXPECT_EQ(Text(buffer, 6), "stored");
  }
}

}  // namespace
}  // namespace termfs::mount

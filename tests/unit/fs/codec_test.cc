// SPDX-License-Identifier: Apache-2.0
#include "fs/proto/codec.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "fs/proto/data.h"

namespace termfs::fs {

namespace {

Map SampleMap() {
  return {.version = 9, .base = 4, .size = 10 * kPageSize + 5, .segments = {{0, 3, 70}, {3, 2, kHole}, {6, 5, 90}}};
}

std::vector<std::byte> Encoded(const Map& map) {
  std::vector<std::byte> bytes;
  EncodeMap(map, bytes);
  return bytes;
}

}  // namespace

TEST(Codec, Tables_RoundTrip) {
  wire::MakeT make;
  make.parent = 5;
  make.name = "name";
  make.mode = 0644;
  make.flags = -1;
  const auto decoded = Decode<wire::Make>(Encode<wire::Make>(make));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->parent, make.parent);
  EXPECT_EQ(decoded->name, make.name);
  EXPECT_EQ(decoded->mode, make.mode);
  EXPECT_EQ(decoded->flags, make.flags);
  EXPECT_EQ(decoded->uid, 0u);
}

TEST(Codec, Attributes_RoundTrip) {
  const Attributes a{1, 2, 3, 4, 5, 6, 7, 8, 9, -10, -11, -12, 13};
  const Attributes b = FromWire(ToWire(a));
  EXPECT_EQ(b.ino, 1u);
  EXPECT_EQ(b.generation, 2u);
  EXPECT_EQ(b.mode, 3u);
  EXPECT_EQ(b.nlink, 4u);
  EXPECT_EQ(b.uid, 5u);
  EXPECT_EQ(b.gid, 6u);
  EXPECT_EQ(b.rdev, 7u);
  EXPECT_EQ(b.size, 8u);
  EXPECT_EQ(b.blocks, 9u);
  EXPECT_EQ(b.atime, -10);
  EXPECT_EQ(b.mtime, -11);
  EXPECT_EQ(b.ctime, -12);
  EXPECT_EQ(b.btime, 13);
}

TEST(Codec, Decode_RefusesTruncated) {
  wire::RenameT rename;
  rename.name = "old";
  rename.new_name = "a longer new name";
  const auto bytes = Encode<wire::Rename>(rename);
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto decoded = Decode<wire::Rename>(std::span(bytes).first(size));
    if (decoded.ok()) {  // cut within the padding at most
      EXPECT_EQ(decoded->new_name, rename.new_name);
    } else {
      EXPECT_EQ(decoded.status().code(), EBADMSG);
    }
  }
  EXPECT_FALSE(Decode<wire::Rename>(std::span(bytes).first(bytes.size() / 2)).ok());
}

// Of words of four bytes, so that those of eight lie right in one of two messages only.
TEST(Codec, Decode_WordsThatAreNotAligned_AreRefused) {
  size_t taken = 0;
  for (const bool shifted : {false, true}) {
    flatbuffers::FlatBufferBuilder builder;
    builder.CreateVector(std::vector<uint32_t>(4));
    const auto changed = builder.CreateVector(std::vector<uint32_t>(2));
    const auto table = builder.StartTable();
    builder.AddOffset(wire::AttributesReply::VT_CHANGED, changed);
    if (shifted) {
      builder.AddElement<uint32_t>(wire::AttributesReply::VT_ENTRY_MS, 1, 0);
    }
    builder.Finish(flatbuffers::Offset<wire::AttributesReply>(builder.EndTable(table)));
    const std::span<const uint8_t> bytes(builder.GetBufferPointer(), builder.GetSize());
    taken += Decode<wire::AttributesReply>(std::as_bytes(bytes)).ok() ? 1 : 0;
  }
  EXPECT_EQ(taken, 1u);
}

TEST(Codec, Decode_SurvivesRandomAndFlippedBytes) {
  Random random(11);
  wire::DirectoryT directory;
  for (int i = 0; i < 5; ++i) {
    directory.entries.push_back(std::make_unique<wire::EntryT>());
    directory.entries.back()->name = "entry" + std::to_string(i);
  }
  const auto good = Encode<wire::Directory>(directory);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = good;
    if (round % 2 == 0) {
      bytes.resize(random.Below(200));
      for (std::byte& b : bytes) {
        b = static_cast<std::byte>(random());
      }
    } else {
      bytes[random.Below(bytes.size())] ^= static_cast<std::byte>(1 + random.Below(255));
    }
    const auto decoded = Decode<wire::Directory>(bytes);
    if (decoded.ok()) {
      for (const auto& entry : decoded->entries) {
        ASSERT_NE(entry, nullptr);
      }
    }
  }
}

TEST(Codec, Decode_UnalignedBytes) {
  wire::NameT name;
  name.parent = 77;
  name.name = "n";
  const auto bytes = Encode<wire::Name>(name);
  std::vector<std::byte> shifted(bytes.size() + 1);
  std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
  const auto decoded = Decode<wire::Name>(std::span(shifted).subspan(1));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->parent, 77u);
}

TEST(Map, RoundTrips) {
  const auto decoded = DecodeMap(Encoded(SampleMap()), 95);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->version, 9u);
  EXPECT_EQ(decoded->base, 4u);
  EXPECT_EQ(decoded->size, 10 * kPageSize + 5);
  EXPECT_EQ(decoded->segments, SampleMap().segments);
  EXPECT_EQ(DecodeMap({}, 1)->version, 0u);
  const auto none = DecodeMap(Encoded({.version = 0, .base = 7, .size = 0, .segments = {}}), 1);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->base, 7u);
}

TEST(Map, Decode_RefusesWhatCannotBe) {
  const auto refused = [](auto change, uint64_t region_pages = 95) {
    Map map = SampleMap();
    change(map);
    return !DecodeMap(Encoded(map), region_pages).ok();
  };
  EXPECT_TRUE(refused([](Map&) {}, 94)) << "beyond the region";
  EXPECT_TRUE(refused([](Map& m) { m.size = UINT64_MAX; }));
  EXPECT_TRUE(refused([](Map& m) { m.base = 10; }));
  EXPECT_TRUE(refused([](Map& m) { m.segments[1].file_page = 2; })) << "overlap";
  EXPECT_TRUE(refused([](Map& m) { m.segments[1].pages = 0; }));
  EXPECT_TRUE(refused([](Map& m) { m.segments[2].pages = UINT64_MAX; }));
  EXPECT_TRUE(refused([](Map& m) { m.segments[2].region_page = kHole - 1; }));
  EXPECT_TRUE(refused([](Map& m) { m.size = 5; })) << "pages beyond the size";
  const auto bytes = Encoded(SampleMap());
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeMap(std::span(bytes).first(size), 95).ok());
  }
}

TEST(Fixed, Decode_RefusesWrongLength) {
  const WriteBody body{.ino = 3};
  EXPECT_EQ(DecodeFixed<WriteBody>(AsBytes(body))->ino, 3u);
  EXPECT_FALSE(DecodeFixed<WriteBody>(AsBytes(body).first(sizeof(body) - 1)).ok());
  EXPECT_FALSE(DecodeFixed<ReadBody>(AsBytes(body)).ok());
}

}  // namespace termfs::fs

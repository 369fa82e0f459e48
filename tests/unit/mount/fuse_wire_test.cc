// SPDX-License-Identifier: Apache-2.0
#include "mount/fuse_wire.h"

#include <gtest/gtest.h>
#include <linux/fuse.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/page.h"

namespace termfs::mount {
namespace {

constexpr uint64_t kUnique = 42;
constexpr uint64_t kDirectIoAllowMmap = uint64_t{1} << 36;
constexpr uint64_t kOverIoUring = uint64_t{1} << 41;

template <typename T>
std::vector<std::byte> RequestOf(uint32_t opcode, const T& argument) {
  fuse_in_header header{};
  header.len = sizeof(header) + sizeof(argument);
  header.opcode = opcode;
  header.unique = kUnique;
  std::vector<std::byte> bytes(header.len);
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), &argument, sizeof(argument));
  return bytes;
}

template <typename T>
void Amend(const RequestFacts& request, int32_t error, T& body) {
  fuse_out_header header{.len = sizeof(header) + sizeof(T), .error = error, .unique = kUnique};
  std::array<iovec, 2> parts = {{{&header, sizeof(header)}, {&body, sizeof(body)}}};
  AmendReply(request, parts);
}

TEST(ReadReplyTest, SaysWhatWasRead) {
  const std::array<std::byte, 3> bytes{};
  ReadReply reply(kUnique, std::span<const std::byte>(bytes));
  ASSERT_EQ(reply.parts().size(), 2u);
  fuse_out_header header{};
  std::memcpy(&header, reply.parts()[0].iov_base, sizeof(header));
  EXPECT_EQ(header.len, sizeof(header) + 3);
  EXPECT_EQ(header.error, 0);
  EXPECT_EQ(header.unique, kUnique);
  EXPECT_EQ(reply.parts()[1].iov_base, bytes.data());
  EXPECT_EQ(reply.parts()[1].iov_len, 3u);
}

TEST(ReadReplyTest, AnErrorAndNoBytesAreAHeader) {
  ReadReply failed(kUnique, Status::Error(EIO, "why"));
  ASSERT_EQ(failed.parts().size(), 1u);
  fuse_out_header header{};
  std::memcpy(&header, failed.parts()[0].iov_base, sizeof(header));
  EXPECT_EQ(header.len, sizeof(header));
  EXPECT_EQ(header.error, -EIO);
  ReadReply at_end(kUnique, std::span<const std::byte>{});
  EXPECT_EQ(at_end.parts().size(), 1u);
}

TEST(Examine, FindsWhereSetIdBitsMustGo) {
  fuse_write_in write{};
  EXPECT_FALSE(Examine(RequestOf(FUSE_WRITE, write)).clears_privileges);
  write.write_flags = FUSE_WRITE_KILL_SUIDGID;
  EXPECT_TRUE(Examine(RequestOf(FUSE_WRITE, write)).clears_privileges);
  fuse_setattr_in set{};
  set.valid = FATTR_SIZE;
  EXPECT_FALSE(Examine(RequestOf(FUSE_SETATTR, set)).clears_privileges);
  set.valid |= FATTR_KILL_SUIDGID;
  EXPECT_TRUE(Examine(RequestOf(FUSE_SETATTR, set)).clears_privileges);
  fuse_open_in open{};
  open.open_flags = FUSE_OPEN_KILL_SUIDGID;
  EXPECT_TRUE(Examine(RequestOf(FUSE_OPEN, open)).clears_privileges);
  EXPECT_FALSE(Examine(RequestOf(FUSE_OPENDIR, open)).clears_privileges);
}

TEST(MostToCopy, IsWhatTheReplyCanSay) {
  constexpr uint32_t kCopyFileRange64 = 53;
  constexpr size_t kBlock = size_t{1} << 32;
  const RequestFacts older = Examine(RequestOf(FUSE_COPY_FILE_RANGE, fuse_copy_file_range_in{}));
  const RequestFacts newer = Examine(RequestOf(kCopyFileRange64, fuse_copy_file_range_in{}));
  for (const size_t length : {size_t{0}, size_t{4096}, kBlock - kPageSize}) {
    EXPECT_EQ(MostToCopy(older, length), length);
    EXPECT_EQ(MostToCopy(newer, length), length);
  }
  for (const size_t length : {kBlock - 1, kBlock, 3 * kBlock, SIZE_MAX}) {
    EXPECT_EQ(MostToCopy(older, length), kBlock - kPageSize);
    EXPECT_EQ(MostToCopy(newer, length), length);
  }
}

// Releasing what the kernel has forgotten may take the memory away that the request was received into.
TEST(IsHousekeeping, WhatReleasesFilesIsNot) {
  EXPECT_FALSE(IsHousekeeping({.opcode = FUSE_FORGET}));
  EXPECT_FALSE(IsHousekeeping({.opcode = FUSE_BATCH_FORGET}));
  EXPECT_TRUE(IsHousekeeping({.opcode = FUSE_INIT}));
}

TEST(Examine, FindsWhatTheKernelCaches) {
  fuse_read_in read{};
  EXPECT_TRUE(Examine(RequestOf(FUSE_READ, read)).caches);
  read.read_flags = FUSE_READ_LOCKOWNER;
  EXPECT_FALSE(Examine(RequestOf(FUSE_READ, read)).caches);
  EXPECT_FALSE(Examine(RequestOf(FUSE_READDIR, fuse_read_in{})).caches);
  fuse_write_in write{};
  EXPECT_TRUE(Examine(RequestOf(FUSE_WRITE, write)).caches);
  write.write_flags = FUSE_WRITE_CACHE;
  EXPECT_TRUE(Examine(RequestOf(FUSE_WRITE, write)).caches);
  write.write_flags = FUSE_WRITE_LOCKOWNER;
  EXPECT_FALSE(Examine(RequestOf(FUSE_WRITE, write)).caches);
}

TEST(Examine, TakesNothingFromShortRequests) {
  fuse_write_in write{};
  write.write_flags = FUSE_WRITE_KILL_SUIDGID;
  const std::vector<std::byte> whole = RequestOf(FUSE_WRITE, write);
  for (size_t length = 0; length < whole.size(); length++) {
    EXPECT_FALSE(Examine(std::span(whole).first(length)).clears_privileges) << length;
  }
}

TEST(ReadOf, FindsWhatIsAskedFor_OnlyInWholeReads) {
  fuse_read_in read{};
  read.fh = 7;
  read.offset = uint64_t{5} << 40;
  read.size = 4096;
  const std::vector<std::byte> whole = RequestOf(FUSE_READ, read);
  const std::optional<ReadArguments> found = ReadOf(whole);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->handle, read.fh);
  EXPECT_EQ(found->offset, read.offset);
  EXPECT_EQ(found->size, read.size);
  for (size_t length = 0; length < whole.size(); length++) {
    EXPECT_FALSE(ReadOf(std::span(whole).first(length)).has_value()) << length;
  }
  EXPECT_FALSE(ReadOf(RequestOf(FUSE_READDIR, read)).has_value());
}

TEST(AmendReply, InitTakesOnlyWhatIsOffered) {
  fuse_init_in in{};
  in.flags = FUSE_INIT_EXT | FUSE_HANDLE_KILLPRIV_V2;
  in.flags2 = static_cast<uint32_t>(kDirectIoAllowMmap >> 32);
  const RequestFacts modern = Examine(RequestOf(FUSE_INIT, in));
  EXPECT_TRUE(OffersDirectMmap(modern.offered));
  fuse_init_out out{};
  out.flags = FUSE_ASYNC_READ;
  Amend(modern, 0, out);
  EXPECT_EQ(out.flags, FUSE_ASYNC_READ | FUSE_INIT_EXT | FUSE_HANDLE_KILLPRIV_V2);
  EXPECT_EQ(out.flags2, in.flags2);

  in.flags = 0;  // without INIT_EXT the second word means nothing
  const RequestFacts old = Examine(RequestOf(FUSE_INIT, in));
  EXPECT_FALSE(OffersDirectMmap(old.offered));
  out = {};
  Amend(old, 0, out);
  EXPECT_EQ(out.flags, 0U);
  EXPECT_EQ(out.flags2, 0U);
}

TEST(AmendReply, InitTakesRingsWhereBothSidesWant) {
  fuse_init_in in{};
  in.flags = FUSE_INIT_EXT;
  in.flags2 = static_cast<uint32_t>(kOverIoUring >> 32);
  RequestFacts init = Examine(RequestOf(FUSE_INIT, in));
  EXPECT_TRUE(OffersRing(init.offered));
  fuse_init_out out{};
  Amend(init, 0, out);
  EXPECT_EQ(out.flags2, 0U);
  init.takes_ring = true;
  Amend(init, 0, out);
  EXPECT_EQ(out.flags, uint32_t{FUSE_INIT_EXT});
  EXPECT_EQ(out.flags2, in.flags2);

  in.flags2 = 0;
  init = Examine(RequestOf(FUSE_INIT, in));
  init.takes_ring = true;
  out = {};
  Amend(init, 0, out);
  EXPECT_EQ(out.flags2, 0U);
}

TEST(OperationBytes, KnowsWhatIsAnsweredHere) {
  EXPECT_EQ(OperationBytes(FUSE_LOOKUP), 0U);
  EXPECT_EQ(OperationBytes(FUSE_WRITE), sizeof(fuse_write_in));
  EXPECT_EQ(OperationBytes(FUSE_SETXATTR), 8U);
  EXPECT_EQ(OperationBytes(52), 24U);  // FUSE_STATX, newer than the header
  EXPECT_EQ(OperationBytes(FUSE_IOCTL), std::nullopt);
  EXPECT_EQ(OperationBytes(999), std::nullopt);
}

TEST(WriteBytes, AreThoseThatTheWriteAnnounces) {
  fuse_write_in write{};
  write.size = 4711;
  EXPECT_EQ(WriteBytes(RequestOf(FUSE_WRITE, write)), 4711U);
  EXPECT_EQ(WriteBytes(RequestOf(FUSE_READ, write)), 0U);
}

TEST(AmendReply, OpenAllowsParallelDirectWrites) {
  const RequestFacts open = Examine(RequestOf(FUSE_OPEN, fuse_open_in{}));
  fuse_open_out out{};
  out.open_flags = FOPEN_DIRECT_IO;
  Amend(open, 0, out);
  EXPECT_EQ(out.open_flags, uint32_t{FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES});
  out.open_flags = 0;  // through the page cache
  Amend(open, 0, out);
  EXPECT_EQ(out.open_flags, 0U);

  struct {
    fuse_entry_out entry;
    fuse_open_out open;
  } created{};
  created.open.open_flags = FOPEN_DIRECT_IO;
  Amend(Examine(RequestOf(FUSE_CREATE, fuse_create_in{})), 0, created);
  EXPECT_EQ(created.open.open_flags, uint32_t{FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES});
  EXPECT_EQ(OperationBytes(FUSE_TMPFILE), sizeof(fuse_create_in));
  created.open.open_flags = FOPEN_DIRECT_IO;
  Amend(Examine(RequestOf(FUSE_TMPFILE, fuse_create_in{})), 0, created);
  EXPECT_EQ(created.open.open_flags, uint32_t{FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES});
}

TEST(OperationBytes, OfCopies) {
  constexpr uint32_t kCopyFileRange64 = 53;
  EXPECT_EQ(OperationBytes(FUSE_COPY_FILE_RANGE), sizeof(fuse_copy_file_range_in));
  EXPECT_EQ(OperationBytes(kCopyFileRange64), sizeof(fuse_copy_file_range_in));
}

TEST(AmendReply, LeavesErrorsAndOthersAlone) {
  const RequestFacts open = Examine(RequestOf(FUSE_OPEN, fuse_open_in{}));
  fuse_open_out out{};
  out.open_flags = FOPEN_DIRECT_IO;
  Amend(open, -ENOENT, out);
  EXPECT_EQ(out.open_flags, uint32_t{FOPEN_DIRECT_IO});
  RequestFacts other = open;
  other.unique = kUnique + 1;  // a notification in between
  Amend(other, 0, out);
  EXPECT_EQ(out.open_flags, uint32_t{FOPEN_DIRECT_IO});
}

}  // namespace
}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// Encode and Decode for the tables of fs.fbs. Decode verifies before it looks: what is truncated, misplaced or too
// deep is EBADMSG. A table that was left out reads as its defaults, so what a field may hold is for the reader to
// check.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "fs/proto/fs_generated.h"
#include "fs/types.h"

namespace termfs::fs {

template <typename Table>
std::vector<std::byte> Encode(const typename Table::NativeTableType& message) {
  flatbuffers::FlatBufferBuilder builder(256);
  builder.Finish(Table::Pack(builder, &message));
  const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {data, data + builder.GetSize()};
}

template <typename Table>
Result<typename Table::NativeTableType> Decode(std::span<const std::byte> body) {
  // Fields are read in place, so the bytes must lie as the builder aligned them.
  std::vector<std::byte> aligned;
  if (reinterpret_cast<uintptr_t>(body.data()) % alignof(uint64_t) != 0) {
    aligned.assign(body.begin(), body.end());
    body = aligned;
  }
  const auto* data = reinterpret_cast<const uint8_t*>(body.data());
  flatbuffers::Verifier verifier(data, body.size());
  if (body.size() < sizeof(flatbuffers::uoffset_t) || !verifier.VerifyBuffer<Table>(nullptr)) {
    return Status::Error(EBADMSG, "malformed message");
  }
  typename Table::NativeTableType message;
  flatbuffers::GetRoot<Table>(data)->UnPackTo(&message);
  return message;
}

inline wire::Attributes ToWire(const Attributes& a) {
  return {a.ino,   a.generation, a.size,  a.blocks, a.atime, a.mtime, a.ctime,
          a.btime, a.mode,       a.nlink, a.uid,    a.gid,   a.rdev,  a.no_xattrs ? uint32_t(wire::Fact::NoXattrs) : 0};
}

inline Attributes FromWire(const wire::Attributes& w) {
  return {.ino = w.ino(),
          .generation = w.generation(),
          .mode = w.mode(),
          .nlink = w.nlink(),
          .uid = w.uid(),
          .gid = w.gid(),
          .rdev = w.rdev(),
          .size = w.size(),
          .blocks = w.blocks(),
          .atime = w.atime(),
          .mtime = w.mtime(),
          .ctime = w.ctime(),
          .btime = w.btime(),
          .no_xattrs = (w.facts() & uint32_t(wire::Fact::NoXattrs)) != 0};
}

}  // namespace termfs::fs

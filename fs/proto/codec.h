// SPDX-License-Identifier: Apache-2.0
//
// Encode and Decode for the tables of fs.fbs. Decode verifies before it looks: what is truncated, misplaced or too
// deep is EBADMSG. A table that was left out reads as its defaults, so what a field may hold is for the reader to
// check.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "fs/proto/fs_generated.h"
#include "fs/types.h"

namespace termfs::fs {

// The verifier sees that the length of a vector is aligned, not its elements behind it. One for each table with words
// of eight bytes in a vector.
inline bool WordsAreAligned(const flatbuffers::Vector<uint64_t>* words) {
  return words == nullptr || reinterpret_cast<uintptr_t>(words->Data()) % alignof(uint64_t) == 0;
}
inline bool WordsAreAligned(const wire::AttributesReply& reply) { return WordsAreAligned(reply.changed()); }
inline bool WordsAreAligned(const wire::Release& release) {
  return WordsAreAligned(release.record_owners()) && WordsAreAligned(release.flock_owners());
}
inline bool WordsAreAligned(const wire::Reclaimed& reclaimed) { return WordsAreAligned(reclaimed.lost()); }
inline bool WordsAreAligned(const wire::Recall& recall) { return WordsAreAligned(recall.inodes()); }
inline bool WordsAreAligned(const wire::Metrics& metrics) {
  return metrics.metrics() == nullptr ||
         std::all_of(metrics.metrics()->begin(), metrics.metrics()->end(),
                     [](const wire::Metric* metric) { return WordsAreAligned(metric->buckets()); });
}
template <typename Table>
bool WordsAreAligned(const Table&) {
  return true;
}

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
  const auto* const table = flatbuffers::GetRoot<Table>(data);
  if (!WordsAreAligned(*table)) {
    return Status::Error(EBADMSG, "malformed message");
  }
  typename Table::NativeTableType message;
  table->UnPackTo(&message);
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

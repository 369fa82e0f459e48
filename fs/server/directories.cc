// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "fs/proto/codec.h"
#include "fs/server/service.h"

namespace termfs::fs::server {

namespace {

constexpr uint64_t kDotCursor = 1;  // after "."; the namespace never gives out 1 and 2
constexpr uint64_t kDotDotCursor = 2;
constexpr size_t kMaxEntries = 4096;  // in one batch

// Fills a reply up to what the client asked for and what its buffer holds.
class Batch {
 public:
  Batch(size_t max_bytes, size_t buffer_bytes, bool plus)
      : max_bytes_(max_bytes), buffer_bytes_(buffer_bytes), plus_(plus) {}

  // `known`: more than the number and the type of it.
  bool Add(std::string_view name, uint64_t cursor, const Attributes& attributes, bool known = true) {
    const size_t kernel = (24 + name.size() + 7) / 8 * 8 + (plus_ ? 128 : 0);
    const size_t wire = 72 + name.size() + (plus_ ? sizeof(wire::Attributes) + 8 : 0);  // upper bound of a table
    if (kernel_ + kernel > max_bytes_ || wire_ + wire > buffer_bytes_) {
      return false;
    }
    kernel_ += kernel;
    wire_ += wire;
    auto entry = std::make_unique<wire::EntryT>();
    entry->name = name;
    entry->ino = attributes.ino;
    entry->type = attributes.mode & S_IFMT;
    entry->cursor = cursor;
    if (plus_) {
      entry->attributes = std::make_unique<wire::Attributes>(ToWire(known ? attributes : Attributes{}));
    }
    directory_.entries.push_back(std::move(entry));
    return true;
  }
  size_t Limit() const {
    const size_t smallest = plus_ ? 160 : 32;
    return std::clamp<size_t>((max_bytes_ - kernel_) / smallest + 1, 1, kMaxEntries);
  }
  void Grant(uint32_t milliseconds) { directory_.entry_ms = directory_.attributes_ms = milliseconds; }
  bool empty() const { return directory_.entries.empty(); }
  const wire::DirectoryT& directory() const { return directory_; }

 private:
  const size_t max_bytes_;
  const size_t buffer_bytes_;
  const bool plus_;
  size_t kernel_ = 0;
  size_t wire_ = 64;
  wire::DirectoryT directory_;
};

}  // namespace

Result<Bytes> FileService::ReadDirectory(const Request& request) {
  ASSIGN_OR_RETURN(const auto body, Decode<wire::ReadDirectory>(request.call.body()));
  if (body.cursor > uint64_t{INT64_MAX}) {
    return Status::Error(EINVAL, "bad directory cursor");
  }
  Granting granting(coherence_.grants(), request.session);
  Batch batch(body.max_bytes, request.call.out().length, body.plus);
  bool room = true;
  std::optional<metadata::Attributes> listed;  // the directory, where this is its first part
  if (body.cursor < kDotDotCursor) {
    ASSIGN_OR_RETURN(const auto self, request.Blocking([&] { return names_.GetAttr(body.ino); }));
    if (self.is_directory() && self.nlink == 0) {  // removed while it is open: not even "." is left
      RETURN_IF_ERROR(request.call.PushBulk(Encode<wire::Directory>(batch.directory())));
      return Bytes{};
    }
    listed = self;
    ASSIGN_OR_RETURN(const auto parent, request.Blocking([&]() -> Result<metadata::Attributes> {
      ASSIGN_OR_RETURN(const auto ino, names_.Parent(body.ino));
      return names_.GetAttr(ino);
    }));
    room = (body.cursor == kDotCursor || batch.Add(".", kDotCursor, Report(self))) &&
           batch.Add("..", kDotDotCursor, Report(parent));
  }
  bool any = false;
  const bool contended = coherence_.IsContended(body.ino, request.session.id);
  if (room && body.plus && !contended) {
    const bool first_may_come = FirstMayCome();
    ASSIGN_OR_RETURN(auto entries,
                     request.Blocking([&] { return names_.ReadDirPlus(body.ino, body.cursor, batch.Limit()); }));
    any = !entries.empty();
    for (auto& entry : entries) {
      ASSIGN_OR_RETURN(const bool waited, AwaitFirst(request, first_may_come, entry.attributes));
      if (waited) {
        const auto again = request.Blocking([&] { return names_.GetAttr(entry.attributes.ino); });
        entry.attributes = again.ok() ? *again : entry.attributes;  // else it has just been removed
      }
    }
    // All or nothing: nobody knows which of them changed while they were read.
    bool granted = granting.caches() && !granting.Changed();
    for (size_t i = 0; granted && i < entries.size(); ++i) {
      granted = granting.Entry(body.ino, entries[i].entry.name) && !IsChanging(entries[i].attributes.ino) &&
                granting.Attributes(entries[i].attributes.ino);
    }
    for (size_t i = 0; room && i < entries.size(); ++i) {
      room = batch.Add(entries[i].entry.name, entries[i].entry.cursor, Report(entries[i].attributes));
    }
    granted = granted && std::none_of(entries.begin(), entries.end(), [&](const auto& entry) {
                return IsChanging(entry.attributes.ino);  // asked after the grant
              });
    if (granted && !granting.Changed()) {
      batch.Grant(Milliseconds(true));
    }
  } else if (room) {
    ASSIGN_OR_RETURN(const auto entries,
                     request.Blocking([&] { return names_.ReadDir(body.ino, body.cursor, batch.Limit()); }));
    any = !entries.empty();
    for (size_t i = 0; room && i < entries.size(); ++i) {
      const Attributes brief{.ino = entries[i].ino, .mode = static_cast<uint32_t>(entries[i].type) << 12};
      room = batch.Add(entries[i].name, entries[i].cursor, brief, /*known=*/false);
    }
  }
  if (batch.empty() && (any || !room)) {
    return Status::Error(EINVAL, "the buffer is too small for one directory entry");
  }
  if (listed.has_value() && !body.keeps_atime) {
    NoteAccess(request, *listed);
  }
  RETURN_IF_ERROR(request.call.PushBulk(Encode<wire::Directory>(batch.directory())));
  return Bytes{};
}

}  // namespace termfs::fs::server

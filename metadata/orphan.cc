// SPDX-License-Identifier: Apache-2.0
//
// Inodes without a name: made by DropLink and CreateUnnamed, emptied in steps and removed by ReleaseOrphan.
#include "metadata/content.h"
#include "metadata/keys.h"
#include "metadata/namespace.h"

namespace termfs::metadata {

namespace {

Result<bool> FreeXattrs(Operation& op, InodeRecord& inode) {
  if (inode.xattr_bytes == 0) {
    return true;
  }
  const InodeNumber ino = inode.attributes.ino;
  // Values may be big: fewer per step.
  constexpr size_t kStep = kFreeStep / 8;
  ASSIGN_OR_RETURN(const auto pairs, op.transaction().Scan(XattrKey(ino, ""), XattrKey(ino + 1, ""), kStep));
  for (const KeyValue& pair : pairs) {
    RETURN_IF_ERROR(op.transaction().Delete(pair.key));
    inode.xattr_bytes -= static_cast<uint32_t>(pair.key.size() - XattrKey(ino, "").size() + 1);
  }
  return pairs.size() < kStep;
}

Result<std::vector<InodeNumber>> ListKeys(Reader& reader, char type, InodeNumber after, size_t limit) {
  const std::string begin = Encoder(static_cast<uint8_t>(type)).U64(after).Bytes(std::string_view("\0", 1)).Take();
  ASSIGN_OR_RETURN(const auto pairs, reader.Scan(begin, EndOfType(type), limit));
  std::vector<InodeNumber> result;
  for (const KeyValue& pair : pairs) {
    Decoder decoder(pair.key);
    decoder.U8();
    result.push_back(decoder.U64());
    if (!decoder.Finished()) {
      return Status::Error(EIO, "damaged key of an inode list: run termfs fsck");
    }
  }
  return result;
}

}  // namespace

Result<bool> FreeContent(Operation& op, InodeRecord& inode, bool from_start) {
  if (inode.attributes.blocks != 0) {
    if (from_start) {
      inode.trim_page = 0;
    }
    ASSIGN_OR_RETURN(const bool trimmed, Trim(op, inode));
    if (!trimmed) {
      return false;
    }
  }
  return FreeXattrs(op, inode);
}

Status DeleteInode(Operation& op, const InodeRecord& inode) {
  const InodeNumber ino = inode.attributes.ino;
  if (op.WasCut(ino)) {
    RETURN_IF_ERROR(op.transaction().Delete(CutKey(ino)));
  }
  if (op.HadSpace(ino)) {
    // Mostly neither is there, and to see that costs less than to delete it.
    for (const std::string& key : {TruncationKey(ino), AheadKey(ino)}) {
      ASSIGN_OR_RETURN(const auto there, op.transaction().Get(key));
      if (there) {
        RETURN_IF_ERROR(op.transaction().Delete(key));
      }
    }
  }
  return op.Remove(ino);
}

Result<Removed> DropLink(Operation& op, InodeRecord& inode, const MayBeOpen& open, Nanoseconds now) {
  Attributes& a = inode.attributes;
  a.Changed(now);
  a.nlink = a.is_directory() ? 0 : a.nlink - 1;
  Removed removed{.ino = a.ino, .type = a.type(), .last_link = a.nlink == 0};
  if (a.nlink != 0) {
    return removed;
  }
  if (!open(a.ino)) {
    removed.freed_pages = a.blocks != 0;
    ASSIGN_OR_RETURN(const bool empty, FreeContent(op, inode, true));
    if (empty) {
      RETURN_IF_ERROR(DeleteInode(op, inode));
      return removed;
    }
  }
  removed.orphaned = true;
  removed.pages = a.blocks;
  removed.project = inode.project;
  RETURN_IF_ERROR(op.transaction().Put(OrphanKey(a.ino), EncodeBytes("")));
  return removed;
}

Status Namespace::ReleaseOrphan(InodeNumber ino) {
  bool done = false;
  for (bool first = true; !done; first = false) {
    const Status status = Run([&](Operation& op) -> Status {
      op.transaction().Frees();
      ASSIGN_OR_RETURN(InodeRecord* const inode, op.Claim(ino));
      if (inode->attributes.nlink != 0) {
        return Status::Error(EINVAL, "not an orphan");
      }
      ASSIGN_OR_RETURN(done, FreeContent(op, *inode, first));
      if (!done) {  // what has lost a part gets no name
        return first ? op.transaction().Put(OrphanKey(ino), EncodeBytes("")) : Status::Ok();
      }
      RETURN_IF_ERROR(op.transaction().Delete(OrphanKey(ino)));
      return DeleteInode(op, *inode);
    });
    RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

Result<std::vector<InodeNumber>> Namespace::ListOrphans(InodeNumber after, size_t limit) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  return ListKeys(*reader, 'O', after, limit);
}

Result<std::vector<InodeNumber>> Namespace::ListAhead(InodeNumber after, size_t limit) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  return ListKeys(*reader, 'A', after, limit);
}

Result<std::vector<InodeNumber>> Namespace::ListCuts(InodeNumber after, size_t limit) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  return ListKeys(*reader, 'Z', after, limit);
}

Result<std::vector<InodeNumber>> Namespace::ListTruncations(InodeNumber after, size_t limit) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  return ListKeys(*reader, 'T', after, limit);
}

}  // namespace termfs::metadata

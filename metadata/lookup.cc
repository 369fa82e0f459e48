// SPDX-License-Identifier: Apache-2.0
#include "metadata/namespace.h"
#include "metadata/operation.h"
#include "metadata/records.h"

namespace termfs::metadata {

namespace {

Result<InodeNumber> ParentOf(Reader& reader, InodeNumber ino) {
  ASSIGN_OR_RETURN(const InodeRecord dir, ReadInode(reader, ino));
  if (!dir.attributes.is_directory()) {
    return Status::Error(ENOTDIR, "not a directory");
  }
  if (dir.attributes.nlink == 0) {
    return Status::Error(ESTALE, "the directory was removed");
  }
  return dir.parent;
}

}  // namespace

Result<Attributes> Namespace::Lookup(InodeNumber parent, std::string_view name) {
  return LookupBy(*store_.Snapshot(), parent, name);
}

Result<Attributes> Namespace::LookupInMemory(InodeNumber parent, std::string_view name) {
  return LookupBy(*store_.MemorySnapshot(), parent, name);
}

Result<Attributes> Namespace::LookupBy(Reader& reader, InodeNumber parent, std::string_view name) const {
  if (name == ".") {
    ASSIGN_OR_RETURN(const InodeRecord inode, ReadInode(reader, parent));
    return inode.attributes.nlink == 0 ? Status::Error(ESTALE, "it has been removed")
                                       : Result<Attributes>(inode.attributes);
  }
  if (name == "..") {
    ASSIGN_OR_RETURN(const InodeNumber up, ParentOf(reader, parent));
    ASSIGN_OR_RETURN(const InodeRecord dir, ReadInode(reader, up));
    return dir.attributes;
  }
  RETURN_IF_ERROR(CheckName(name));
  ASSIGN_OR_RETURN(const auto dentry, ReadDentry(reader, parent, hash_(name), name));
  if (!dentry) {
    ASSIGN_OR_RETURN(const InodeRecord dir, ReadInode(reader, parent));
    const bool directory = dir.attributes.is_directory();
    return directory ? Status::Error(ENOENT, "no such name") : Status::Error(ENOTDIR, "not a directory");
  }
  Result<InodeRecord> inode = ReadInode(reader, dentry->ino);
  if (inode.status().code() == ESTALE) {
    return Status::Error(EIO, "a directory entry names no inode: run termfs fsck");
  }
  RETURN_IF_ERROR(inode.status());
  return inode->attributes;
}

Result<InodeNumber> Namespace::Parent(InodeNumber dir) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  return ParentOf(*reader, dir);
}

Result<Attributes> Namespace::GetAttr(InodeNumber ino) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  ASSIGN_OR_RETURN(const InodeRecord inode, ReadInode(*reader, ino));
  return inode.attributes;
}

Result<Attributes> Namespace::GetAttrInMemory(InodeNumber ino) {
  const std::unique_ptr<Reader> reader = store_.MemorySnapshot();
  ASSIGN_OR_RETURN(const InodeRecord inode, ReadInode(*reader, ino));
  return inode.attributes;
}

Result<std::string> Namespace::Readlink(InodeNumber ino) {
  const std::unique_ptr<Reader> reader = store_.Snapshot();
  ASSIGN_OR_RETURN(InodeRecord inode, ReadInode(*reader, ino));
  if (inode.attributes.type() != FileType::kSymlink) {
    return Status::Error(EINVAL, "not a symbolic link");
  }
  return std::move(inode.symlink_target);
}

}  // namespace termfs::metadata

// SPDX-License-Identifier: Apache-2.0
#include "tlib/server/tier_owner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tlib/server/small_file.h"

namespace termfs::tlib::server {
namespace {

constexpr std::string_view kFolder = "folder ";
constexpr std::string_view kRecord = "\nrecord ";
constexpr size_t kMost = 8192;

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string FileIn(const std::string& directory) { return directory + "/owner"; }

// The birth tells a folder from an older one of the same number; 0 where the file system does not know it.
Result<std::string> IdentityOf(const std::string& folder) {
  struct statx found {};
  if (statx(AT_FDCWD, folder.c_str(), 0, STATX_INO | STATX_BTIME, &found) != 0) {
    return ErrnoStatus("examine " + folder);
  }
  const bool born = (found.stx_mask & STATX_BTIME) != 0;
  return fmt::format("{}:{} {} {}.{}", found.stx_dev_major, found.stx_dev_minor, found.stx_ino,
                     born ? found.stx_btime.tv_sec : 0, born ? found.stx_btime.tv_nsec : 0);
}

}  // namespace

Result<TierOwner> TierOwner::Of(const std::string& record) {
  ASSIGN_OR_RETURN(std::string identity, IdentityOf(FolderOf(record)));
  std::error_code error;
  const std::string folder = std::filesystem::canonical(FolderOf(record), error);
  return TierOwner{.folder = std::move(identity), .record = error ? record : folder + "/" + NameOf(record)};
}

Result<std::optional<TierOwner>> TierOwner::Read(const std::string& directory) {
  const Result<std::string> text = ReadSmall(FileIn(directory), kMost);
  if (text.status().code() == ENOENT) {
    return std::optional<TierOwner>();
  }
  RETURN_IF_ERROR(text.status());
  const size_t record = text->find(kRecord);
  if (!text->starts_with(kFolder) || record == std::string::npos || text->back() != '\n') {
    return Status::Error(EUCLEAN, FileIn(directory) + " is damaged; remove it if the memory there is of this volume");
  }
  const size_t path = record + kRecord.size();
  return std::optional(TierOwner{.folder = text->substr(kFolder.size(), record - kFolder.size()),
                                 .record = text->substr(path, text->size() - path - 1)});
}

Status TierOwner::Write(const std::string& directory) const {
  return ReplaceSmall(FileIn(directory), fmt::format("{}{}{}{}\n", kFolder, folder, kRecord, record));
}

bool TierOwner::operator==(const TierOwner& other) const {
  return folder == other.folder && NameOf(record) == NameOf(other.record);
}

bool TierOwner::MayNeedIt() const {
  const Result<std::string> there = IdentityOf(FolderOf(record));
  return !there.ok() || *there != folder || access(record.c_str(), F_OK) == 0 || errno != ENOENT;
}

Result<std::optional<TierOwner>> OtherOwner(const std::string& directory, const std::string& record) {
  ASSIGN_OR_RETURN(const TierOwner own, TierOwner::Of(record));
  ASSIGN_OR_RETURN(std::optional<TierOwner> owner, TierOwner::Read(directory));
  if (owner.has_value() && (*owner == own || !owner->MayNeedIt())) {
    owner.reset();
  }
  return owner;
}

}  // namespace termfs::tlib::server

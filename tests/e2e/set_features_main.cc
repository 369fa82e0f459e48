// SPDX-License-Identifier: Apache-2.0
//
// set_features DIR compat|ro-compat|incompat MASK: what a later termfs could have written into the superblock of a
// volume that is not served.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "metadata/keys.h"
#include "metadata/records.h"
#include "metadata/rocksdb_store.h"

namespace termfs::metadata {
namespace {

Status SetFeatures(const std::string& directory, std::string_view kind, uint64_t mask) {
  ASSIGN_OR_RETURN(const auto store, OpenRocksDb(directory + "/meta"));
  const Status set = Retry(*store, [&](Transaction& transaction) -> Status {
    ASSIGN_OR_RETURN(const auto value, transaction.GetForUpdate(SuperblockKey()));
    if (!value) {
      return Status::Error(ENOENT, "no superblock");
    }
    ASSIGN_OR_RETURN(Superblock superblock, DecodeSuperblock(*value));
    (kind == "compat"      ? superblock.compatible
     : kind == "ro-compat" ? superblock.read_only_compatible
                           : superblock.incompatible) = mask;
    return transaction.Put(SuperblockKey(), EncodeSuperblock(superblock));
  });
  RETURN_IF_ERROR(set);
  return store->SyncWal();
}

}  // namespace
}  // namespace termfs::metadata

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: set_features DIR compat|ro-compat|incompat MASK\n");
    return 2;
  }
  const termfs::Status set = termfs::metadata::SetFeatures(argv[1], argv[2], std::strtoull(argv[3], nullptr, 0));
  if (!set.ok()) {
    std::fprintf(stderr, "set_features: %s\n", set.ToString().c_str());
    return 1;
  }
  return 0;
}

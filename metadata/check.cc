// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "metadata/check_state.h"
#include "metadata/keys.h"

namespace termfs::metadata {

namespace {

Status CheckKeyTypes(CheckState& state) {
  static constexpr std::string_view kTypes = "SNCRIDEXOTAZGPLQU";
  for (int byte = 0; byte < 255; ++byte) {
    const char type = static_cast<char>(byte);
    if (kTypes.find(type) == kTypes.npos) {
      ASSIGN_OR_RETURN(const auto pairs, state.reader.Scan(std::string(1, type), EndOfType(type), 1));
      if (!pairs.empty()) {
        state.Problem("keys of unknown type {:#04x}", byte);
      }
    }
  }
  return Status::Ok();
}

Status CheckClients(CheckState& state) {
  RETURN_IF_ERROR(ForEachOfType(state.reader, 'L', [&](const KeyValue& pair) {
    if (pair.key.size() != ClientKey(0).size() || !DecodeClient(0, pair.value).ok()) {
      state.Problem("clients: damaged record");
    }
  }));
  return ForEachOfType(state.reader, 'Q', [&](const KeyValue& pair) {
    const Result<Receipt> receipt = DecodeReceipt(pair.value);
    if (pair.key.size() != ReceiptKey(0, 0).size() || !receipt.ok()) {
      state.Problem("receipts: damaged record");
      return;
    }
    state.inodes_in_receipts += static_cast<uint64_t>(receipt->inodes);
  });
}

Status CheckQuotas(CheckState& state) {
  std::map<ProjectNumber, Quota> found;
  for (const auto& [ino, inode] : state.inodes) {
    if (inode.project != 0) {
      Quota& quota = found[inode.project];
      quota.pages += inode.blocks;
      ++quota.inodes;
    }
  }
  if (!found.empty() && (state.superblock.incompatible & kQuotas) == 0) {
    state.Problem("quotas: there are some, but the superblock does not say so");
  }
  RETURN_IF_ERROR(ForEachOfType(state.reader, 'U', [&](const KeyValue& pair) {
    std::string_view number = std::string_view(pair.key).substr(1);
    const ProjectNumber project = Decoder(number).U64();
    const Result<Quota> quota = DecodeQuota(project, pair.value);
    if (pair.key.size() != QuotaKey(0).size() || !quota.ok()) {
      state.Problem("quota of directory {}: damaged record", project);
      return;
    }
    const Quota& sums = found[project];
    if (quota->pages != sums.pages || quota->inodes != sums.inodes) {
      state.Problem("quota of directory {}: {} pages and {} inodes are counted, but there are {} and {}", project,
                    quota->pages, quota->inodes, sums.pages, sums.inodes);
    }
    if (sums.inodes == 0) {
      state.Problem("quota of directory {}: nothing is left of the tree", project);
    }
    found.erase(project);
  }));
  for (const auto& [project, sums] : found) {
    state.Problem("quota of directory {}: {} inodes count to it, but it is missing", project, sums.inodes);
  }
  return Status::Ok();
}

Status CheckCounters(CheckState& state) {
  uint64_t sum = state.inodes_in_receipts;
  RETURN_IF_ERROR(ForEachOfType(state.reader, 'C', [&](const KeyValue& pair) {
    const Result<uint64_t> count = DecodeNumber(pair.value);
    if (!count.ok()) {
      state.Problem("inode count: damaged record");
    }
    sum += count.ok() ? *count : 0;
  }));
  if (sum != state.inodes.size()) {
    state.Problem("inode count is {}, but there are {} inodes", sum, state.inodes.size());
  }
  ASSIGN_OR_RETURN(const auto next, state.reader.Get(NextInodeKey()));
  const Result<uint64_t> number = DecodeNumber(next.value_or(""));
  if (!number.ok()) {
    state.Problem("next inode number: missing or damaged record");
    return Status::Ok();
  }
  for (const auto& [ino, inode] : state.inodes) {
    if (ino >= *number) {
      state.Problem("inode {}: its number was never given out (next is {})", ino, *number);
    }
  }
  return Status::Ok();
}

}  // namespace

Status ForEachOfType(Reader& reader, char type, const std::function<void(const KeyValue&)>& visit) {
  return ForEach(reader, std::string(1, type), EndOfType(type), [&](const KeyValue& pair) {
    visit(pair);
    return Status::Ok();
  });
}

Result<CheckReport> Check(KeyValueStore& store, const CheckOptions& options) {
  const std::unique_ptr<Reader> reader = store.Snapshot();
  ASSIGN_OR_RETURN(const auto value, reader->Get(SuperblockKey()));
  if (!value) {
    return Status::Error(ENOENT, "the metadata store holds no volume");
  }
  ASSIGN_OR_RETURN(const Superblock superblock, DecodeSuperblock(*value));
  CheckState state{
      *reader, superblock, NameHash(superblock.uuid, superblock.name_hash_bits), options.max_problems, {}, {}, {}, 0};
  RETURN_IF_ERROR(CheckKeyTypes(state));
  RETURN_IF_ERROR(CheckInodes(state));
  RETURN_IF_ERROR(CheckDentries(state));
  RETURN_IF_ERROR(CheckXattrs(state));
  RETURN_IF_ERROR(CheckOrphansAndTruncations(state));
  RETURN_IF_ERROR(CheckExtents(state));
  CompareTree(state);
  RETURN_IF_ERROR(CheckAhead(state));
  RETURN_IF_ERROR(CheckCuts(state));
  RETURN_IF_ERROR(CheckPendingFree(state));
  RETURN_IF_ERROR(CompareSpace(state));
  RETURN_IF_ERROR(CheckClients(state));
  RETURN_IF_ERROR(CheckCounters(state));
  RETURN_IF_ERROR(CheckQuotas(state));
  return std::move(state.report);
}

}  // namespace termfs::metadata

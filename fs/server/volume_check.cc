// SPDX-License-Identifier: Apache-2.0
#include "fs/server/volume_directory.h"
#include "metadata/namespace.h"
#include "metadata/torn_logs.h"
#include "tlib/server/tier_store.h"

namespace termfs::fs::server {

namespace {

// What is around the namespace. No more than one problem is told of each part.
void CheckAround(const VolumePaths& paths, const VolumeSettings& settings, const metadata::Superblock& superblock,
                 std::vector<std::string>& problems) {
  if (const Status capacity = CheckCapacity(paths, settings, superblock); !capacity.ok()) {
    problems.push_back(capacity.ToString());
  }
  if (const auto epoch = LastEpoch(paths); !epoch.ok()) {
    problems.push_back(epoch.status().ToString());
  }
  auto region = RegionOptionsOf(paths, settings, ToString(superblock.uuid));
  Status status = region.status();
  if (region.ok()) {
    region->pages = superblock.capacity_pages;
    status = tlib::server::Server::CheckRegion(*region);
  }
  if (!status.ok()) {
    problems.push_back(status.ToString());
  }
}

// What was written and is not on the SSD is no problem while the memory is there that has it.
void LookAtMemory(const VolumePaths& paths, const VolumeSettings& settings, const metadata::Superblock& superblock,
                  CheckReport& report) {
  const auto kept = tlib::server::TierStore::LookAtKept(TierOptionsOf(paths, settings, ToString(superblock.uuid)),
                                                        superblock.capacity_pages);
  if (!kept.ok()) {
    report.problems.push_back(kept.status().ToString());
  } else if (kept->has_value()) {
    report.kept_memory = (*kept)->directory;
    report.kept_pages = (*kept)->dirty_pages;
  }
}

// Only on what the check finds sound: on the rest it could do harm.
Result<uint64_t> Repair(metadata::Namespace& names) {
  ASSIGN_OR_RETURN(const metadata::Namespace::Recovered done, names.Recover(/*orphans=*/true));
  RETURN_IF_ERROR(names.Sync());
  return done.orphans + done.truncations + done.trimmed;
}

}  // namespace

Result<CheckReport> CheckVolume(const std::string& directory, bool repair) {
  const VolumePaths paths(directory);
  ASSIGN_OR_RETURN(const VolumeLock lock, VolumeLock::Take(paths, repair ? LockUse::kRepair : LockUse::kCheck));
  ASSIGN_OR_RETURN(const VolumeSettings settings, LoadSettings(directory));
  ASSIGN_OR_RETURN(const auto damaged, metadata::FindDamagedLogs(paths.meta));
  ASSIGN_OR_RETURN(const auto store, OpenStore(paths, {.read_only = !repair, .cut_damaged_logs = repair}));
  ASSIGN_OR_RETURN(const auto names, OpenNamespace(*store, directory));
  ASSIGN_OR_RETURN(auto checked, metadata::Check(*store));
  uint64_t repaired = 0;
  if (repair && checked.problems.empty()) {
    ASSIGN_OR_RETURN(repaired, Repair(*names));
    ASSIGN_OR_RETURN(checked, metadata::Check(*store));
  }
  CheckReport report{.inodes = checked.inodes,
                     .directories = checked.directories,
                     .extents = checked.extents,
                     .pages_used = checked.used_pages,
                     .repaired = repaired,
                     .kept_memory = {},
                     .kept_pages = {},
                     .problems = std::move(checked.problems),
                     .problem_count = 0};
  const uint64_t untold = checked.problem_count - report.problems.size();
  for (const metadata::DamagedLog& log : damaged) {
    if (!repair) {
      report.problems.push_back(Describe(log));
    }
  }
  CheckAround(paths, settings, names->superblock(), report.problems);
  LookAtMemory(paths, settings, names->superblock(), report);
  report.problem_count = untold + report.problems.size();
  return report;
}

}  // namespace termfs::fs::server

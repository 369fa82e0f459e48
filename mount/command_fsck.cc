// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iterator>

#include "base/page.h"
#include "fs/server/volume.h"
#include "mount/command.h"
#include "mount/json.h"
#include "mount/size.h"

namespace termfs::mount {
namespace {

std::string ForPeople(const std::string& directory, const fs::server::CheckReport& report) {
  std::string text;
  auto out = std::back_inserter(text);
  for (const std::string& problem : report.problems) {
    fmt::format_to(out, "problem: {}\n", problem);
  }
  fmt::format_to(out, "{}: {}, {}, {}, {} in use: ", directory, FormatCount(report.inodes, "inode", "inodes"),
                 FormatCount(report.directories, "directory", "directories"),
                 FormatCount(report.extents, "extent", "extents"), FormatSize(report.pages_used * kPageSize));
  if (report.repaired > 0) {
    fmt::format_to(out, "{} repaired, ", FormatCount(report.repaired, "file", "files"));
  }
  if (report.problems.empty()) {
    text += "sound\n";
  } else {
    text += FormatCount(report.problem_count, "problem", "problems");
    if (report.problems.size() < report.problem_count) {
      fmt::format_to(out, ", the first {} shown", report.problems.size());
    }
    text += '\n';
  }
  if (!report.kept_memory.empty() && !report.kept_pages.has_value()) {
    fmt::format_to(out, "memory of a killed server is in {}: what it wrote last may be there only\n",
                   report.kept_memory);
  } else if (report.kept_pages.value_or(0) > 0) {
    fmt::format_to(out,
                   "pages that are only in memory of this host: {} ({}), in {}; the next termfs serve keeps them\n",
                   *report.kept_pages, FormatSize(*report.kept_pages * kPageSize), report.kept_memory);
  }
  return text;
}

std::string ForPrograms(const fs::server::CheckReport& report) {
  JsonWriter json;
  json.BeginObject()
      .Member("inodes", report.inodes)
      .Member("directories", report.directories)
      .Member("extents", report.extents)
      .Member("used_bytes", report.pages_used * kPageSize)
      .Member("repaired", report.repaired)
      .Member("kept_memory", report.kept_memory)
      .Member("kept_bytes", report.kept_pages.value_or(0) * kPageSize)
      .Member("problem_count", report.problem_count)
      .Key("problems")
      .BeginArray();
  for (const std::string& problem : report.problems) {
    json.String(problem);
  }
  json.EndArray().EndObject();
  return json.text() + "\n";
}

}  // namespace

int RunFsck(const FsckArguments& arguments) {
  const Result<std::string> directory = VolumePath(arguments.directory);
  if (!directory.ok()) {
    return Failed(directory.status());
  }
  const Result<fs::server::CheckReport> report = fs::server::CheckVolume(*directory, arguments.repair);
  if (!report.ok()) {
    return Failed(report.status());
  }
  const int printed = Print(arguments.json ? ForPrograms(*report) : ForPeople(*directory, *report));
  return report->problems.empty() ? printed : kExitFailed;
}

}  // namespace termfs::mount

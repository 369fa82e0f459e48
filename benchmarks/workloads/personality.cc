// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/workloads/personality.h"

#include <toml++/toml.h>

#include <algorithm>

#include "benchmarks/personalities_text.h"

namespace termfs::benchmarks {
namespace {

Status Wrong(const toml::node& node, const std::string& what) {
  return Status::Error(EINVAL, "personalities.toml, line " + std::to_string(node.source().begin.line) + ": " + what);
}

template <typename T>
Result<T> Needed(const toml::table& table, std::string_view key) {
  const auto value = table[key].value<T>();
  if (!value) {
    return Wrong(table, std::string(key) + " is missing");
  }
  return *value;
}

Result<std::vector<const toml::table*>> TablesOf(const toml::table& table, std::string_view key) {
  const toml::array* array = table[key].as_array();
  if (array == nullptr) {
    return Wrong(table, std::string(key) + " is missing");
  }
  std::vector<const toml::table*> tables;
  for (const toml::node& node : *array) {
    if (!node.is_table()) {
      return Wrong(node, "a table is expected");
    }
    tables.push_back(node.as_table());
  }
  return tables;
}

Result<FileSetSpec> ReadFileSet(const toml::table& table) {
  FileSetSpec spec;
  ASSIGN_OR_RETURN(spec.name, Needed<std::string>(table, "name"));
  ASSIGN_OR_RETURN(spec.width, Needed<uint64_t>(table, "width"));
  ASSIGN_OR_RETURN(spec.mean, Needed<double>(table, "mean"));
  ASSIGN_OR_RETURN(spec.present, Needed<unsigned>(table, "present"));
  spec.entries = table["entries"].value_or(uint64_t{0});
  spec.gamma = table["gamma"].value_or(0.0);
  if (spec.width < 2 || spec.present > 100) {
    return Wrong(table, "width is 2 at least, present 100 at most");
  }
  return spec;
}

Result<int> FileSetOf(const toml::table& table, const Personality& personality) {
  ASSIGN_OR_RETURN(const auto wanted, Needed<std::string>(table, "files"));
  const auto& sets = personality.file_sets;
  const auto found = std::find_if(sets.begin(), sets.end(), [&](const auto& set) { return set.name == wanted; });
  if (found == sets.end()) {
    return Wrong(table, "no file set is called " + wanted);
  }
  return static_cast<int>(found - sets.begin());
}

bool NeedsFiles(Action action) {
  return action == Action::kCreate || action == Action::kOpen || action == Action::kDelete || action == Action::kStat;
}

bool NeedsBytes(Action action) {
  return action == Action::kReadWhole || action == Action::kWriteWhole || action == Action::kAppendRandom;
}

Result<Operation> ReadOperation(const toml::table& table, const Personality& personality) {
  ASSIGN_OR_RETURN(const auto name, Needed<std::string>(table, "do"));
  const auto known = std::find(kActionNames.begin(), kActionNames.end(), name);
  if (known == kActionNames.end()) {
    return Wrong(table, "nothing is called " + name);
  }
  Operation operation;
  operation.action = static_cast<Action>(known - kActionNames.begin());
  if (NeedsFiles(operation.action) || table.contains("files")) {
    ASSIGN_OR_RETURN(operation.files, FileSetOf(table, personality));
  }
  if (operation.action != Action::kDelete && operation.action != Action::kStat) {
    ASSIGN_OR_RETURN(operation.fd, Needed<int>(table, "fd"));
  }
  if (operation.action == Action::kWriteWhole) {
    ASSIGN_OR_RETURN(operation.source, Needed<int>(table, "source"));
  }
  if (NeedsBytes(operation.action)) {
    ASSIGN_OR_RETURN(operation.bytes, Needed<uint64_t>(table, "bytes"));
  }
  if (operation.fd >= kDescriptors || operation.source >= kDescriptors ||
      (NeedsBytes(operation.action) && operation.bytes == 0)) {
    return Wrong(table, "fd and source are below 8, bytes are not 0");
  }
  return operation;
}

Status ReadStep(const toml::table& table, Personality& personality) {
  ASSIGN_OR_RETURN(const auto operations, TablesOf(table, "operations"));
  const int times = table["times"].value_or(1);
  for (int i = 0; i < times; i++) {
    for (const toml::table* operation : operations) {
      ASSIGN_OR_RETURN(auto read, ReadOperation(*operation, personality));
      personality.operations.push_back(read);
    }
  }
  return Status::Ok();
}

Result<Personality> ReadPersonality(const toml::table& table, std::string_view name) {
  Personality personality;
  personality.name = name;
  ASSIGN_OR_RETURN(personality.threads, Needed<uint64_t>(table, "threads"));
  ASSIGN_OR_RETURN(personality.files, Needed<uint64_t>(table, "files"));
  ASSIGN_OR_RETURN(const auto ends, Needed<std::string>(table, "ends"));
  personality.ends_with_files = ends == "files";
  ASSIGN_OR_RETURN(const auto sets, TablesOf(table, "file_sets"));
  for (const toml::table* set : sets) {
    ASSIGN_OR_RETURN(auto spec, ReadFileSet(*set));
    personality.file_sets.push_back(std::move(spec));
  }
  ASSIGN_OR_RETURN(const auto steps, TablesOf(table, "steps"));
  for (const toml::table* step : steps) {
    RETURN_IF_ERROR(ReadStep(*step, personality));
  }
  return personality;
}

// The text is a part of the program, so it is right, or the program is wrong; toml++ ends it then.
toml::table All() { return toml::parse(std::string_view(kPersonalitiesText), std::string_view("personalities.toml")); }

}  // namespace

std::vector<std::string> PersonalityNames() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : All()) {
    names.emplace_back(name.str());
  }
  return names;
}

Result<Personality> FindPersonality(std::string_view name) {
  const toml::table all = All();
  const toml::table* const found = all[name].as_table();
  if (found == nullptr) {
    return Status::Error(EINVAL, "there is no personality " + std::string(name));
  }
  return ReadPersonality(*found, name);
}

}  // namespace termfs::benchmarks

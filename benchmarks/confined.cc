// SPDX-License-Identifier: Apache-2.0
//
// confined: a command in a control group of its own, with so much memory, its share of the kernel's page cache
// included. The group stays; --sweep removes it when the command has ended.
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "benchmarks/must.h"
#include "benchmarks/term/control_group.h"

int main(int argc, char** argv) {
  using termfs::benchmarks::Must;
  using termfs::benchmarks::term::ControlGroup;
  std::string name;
  uint64_t memory = 0;
  bool sweep = false;
  std::vector<std::string> command;
  CLI::App app("Runs a command in a control group of its own, which limits its memory");
  app.add_option("NAME", name, "of the group")->required();
  app.add_option("--memory", memory, "bytes that it may hold")->transform(CLI::AsSizeValue(false));
  app.add_flag("--sweep", sweep, "remove groups whose names begin with NAME, run nothing");
  app.add_option("COMMAND", command, "what to run, after --");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (sweep) {
    ControlGroup::Sweep(name);
    return 0;
  }
  if (command.empty()) {
    std::fprintf(stderr, "confined: what is to be run? see --help\n");
    return 2;
  }
  ControlGroup group(name);
  if (memory > 0) {
    Must(group.LimitMemory(memory));
  }
  Must(group.Enter());
  std::vector<char*> words;
  for (std::string& word : command) {
    words.push_back(word.data());
  }
  words.push_back(nullptr);
  execvp(words[0], words.data());
  termfs::benchmarks::Die(termfs::ErrnoStatus("run " + command.front()));
}

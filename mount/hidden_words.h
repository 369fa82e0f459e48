// SPDX-License-Identifier: Apache-2.0
//
// HiddenWords: the words of the command line, of which ps and /proc/PID/cmdline show where a secret is no more.
//
// Thread-safety: none; made by a main() before it starts a thread. Ownership: owns copies of the words. Errors: none.
#pragma once

#include <string>
#include <vector>

namespace termfs::mount {

class HiddenWords {
 public:
  // Overwrites in `argv` itself, with asterisks, what follows "--secret", "--secret=", and "secret=" in mount options.
  HiddenWords(int argc, char** argv);
  HiddenWords(const HiddenWords&) = delete;
  HiddenWords& operator=(const HiddenWords&) = delete;

  // As the words were; valid as long as this object.
  char** argv() { return argv_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> argv_;  // to words_, and null behind the last
};

}  // namespace termfs::mount

// SPDX-License-Identifier: Apache-2.0
//
// Readers: client processes that read and write pieces of files of several volumes, a volume and a way at a time: by
// system calls on its mount, past the kernel's page cache, or by the client library, which each process has connected
// itself. Every piece that is read is checked: its first and last eight bytes are those that belong there.
//
// Thread-safety: none. Errors: end the benchmark; so do wrong bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/term/access_pattern.h"
#include "benchmarks/term/child.h"
#include "benchmarks/term/latencies.h"

namespace termfs::benchmarks::files {

constexpr uint64_t kFileBytes = uint64_t{16} << 20;

struct Place {
  std::string name;    // the kind of its region, as termfs serve has it
  std::string volume;  // the served volume's directory
  std::string mount;   // where it is mounted; empty: nowhere
  pid_t server = 0;
  pid_t daemon = 0;  // of the mount
};

enum class Way : uint8_t { kMount, kLibrary };

struct Turn {
  size_t place = 0;
  Way way = Way::kLibrary;
  uint32_t bytes = 4096;  // of a piece
  bool writes = false;
  double theta = 0.99;  // of Zipf, over all pieces of all files
  uint64_t seed = 1;    // another one draws other pieces of the same popularity
  double seconds = 1;
};

// Of one process, in its last turn.
struct Tally {
  uint64_t accesses = 0;
  double rate = 0;               // accesses per second
  double processor_seconds = 0;  // without drawing what is accessed
  uint64_t read_pages = 0;       // as the library counts; nothing of mounts
  uint64_t hit_pages = 0;        // of them, those that were read one-sidedly
  term::Latencies latencies;
};

class Readers {
 public:
  // Writes `files` files into each volume, and starts so many processes. Those of a former run are written over.
  Readers(const std::vector<Place>& places, uint64_t files, uint32_t processes);

  void Run(const Turn& turn);
  // Everything written to that place is on its SSD.
  void Sync(size_t place);
  const Tally& tally(size_t process) const { return tallies_[process]; }
  size_t processes() const { return processes_.size(); }

 private:
  Tally* tallies_ = nullptr;  // memory that the processes share
  std::vector<std::unique_ptr<term::Child>> processes_;
};

}  // namespace termfs::benchmarks::files

// SPDX-License-Identifier: Apache-2.0
//
// BusyProcessor: a process that computes on one CPU for a share of the time, in periods of ten milliseconds.
//
// Errors: end the benchmark.
#pragma once

#include "benchmarks/term/child.h"

namespace termfs::benchmarks::term {

class BusyProcessor {
 public:
  // REQUIRES: as Child. Does nothing until Begin.
  BusyProcessor(int cpu, double share);
  void Begin() const;
  void End() const;

 private:
  Child child_;
};

}  // namespace termfs::benchmarks::term

// SPDX-License-Identifier: Apache-2.0
//
// Report: what an experiment found, as a table for people or as JSON.
#pragma once

#include <vector>

#include "benchmarks/term/experiment.h"
#include "benchmarks/term/settings.h"

namespace termfs::benchmarks::term {

void PrintTable(const Settings& settings, const Results& results);
// A list: one object for each point.
void PrintJson(const std::vector<Settings>& points, const std::vector<Results>& results);

}  // namespace termfs::benchmarks::term

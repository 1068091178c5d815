// How many cores this process may use.
#pragma once

#include <string>

namespace pyvt::cpu {

// The least of the affinity mask and the quota of each control group from the process's own up to
// the root, version 1 or 2; at least 1. A quota of part of a core counts as a whole one. Reads
// files below `root`, that of the file system but in tests.
int num_usable_cores(const std::string& root = "");

}  // namespace pyvt::cpu

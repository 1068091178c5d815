#include "cpu/usable_cores.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace pyvt::cpu {
namespace {

constexpr int kUnlimited = std::numeric_limits<int>::max();

int affinity_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

int cores_of(int64_t quota_us, int64_t period_us) {
  if (quota_us <= 0 || period_us <= 0) return kUnlimited;
  return static_cast<int>(std::min<int64_t>(kUnlimited, (quota_us + period_us - 1) / period_us));
}

// Of one group; "max", "-1" and a missing file are no limit.
int cores_of_group(const std::string& folder) {
  int64_t quota = 0, period = 0;
  if (std::ifstream(folder + "/cpu.max") >> quota >> period) return cores_of(quota, period);
  if (std::ifstream(folder + "/cpu.cfs_quota_us") >> quota &&
      std::ifstream(folder + "/cpu.cfs_period_us") >> period) {
    return cores_of(quota, period);
  }
  return kUnlimited;
}

// Of a group and those above it; a container may not see its own path, but sees its root.
int cores_of_groups(const std::string& mount, std::string path) {
  int least = cores_of_group(mount);
  while (path.size() > 1) {
    least = std::min(least, cores_of_group(mount + path));
    path.resize(path.rfind('/'));
  }
  return least;
}

bool has_name(const std::string& list, const std::string& name) {
  std::istringstream names(list);
  for (std::string each; std::getline(names, each, ',');) {
    if (each == name) return true;
  }
  return false;
}

// A line is number:controllers:path, without controllers in version 2.
int quota_cores(const std::string& root) {
  const std::string groups = root + "/sys/fs/cgroup";
  int least = cores_of_group(groups);
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line[second + 1] != '/') continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, cores_of_groups(groups, path));
      least = std::min(least, cores_of_groups(groups + "/unified", path));
    } else if (has_name(controllers, "cpu")) {
      least = std::min(least, cores_of_groups(groups + "/cpu", path));
      least = std::min(least, cores_of_groups(groups + "/cpu,cpuacct", path));
    }
  }
  return least;
}

}  // namespace

int num_usable_cores(const std::string& root) {
  return std::max(1, std::min(affinity_cores(), quota_cores(root)));
}

}  // namespace pyvt::cpu

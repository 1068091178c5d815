// Picks the kernel table once: the best level that the CPU has, or the one that PYVT_CPU_ISA names.
#include <cstdlib>
#include <cstring>

#include "cpu/kernel_table.h"

namespace pyvt::cpu {

const KernelTable& scalar_table();
#if defined(PYVT_HAVE_AVX2)
const KernelTable& avx2_table();
#endif

namespace {

struct Level {
  const char* name;
  bool (*is_supported)();
  const KernelTable& (*table)();
};

bool always() { return true; }

#if defined(PYVT_HAVE_AVX2)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
#endif

// Best first.
const Level kLevels[] = {
#if defined(PYVT_HAVE_AVX2)
    {"avx2", has_avx2, avx2_table},
#endif
    {"scalar", always, scalar_table},
};

const KernelTable& choose() {
  const char* asked = std::getenv("PYVT_CPU_ISA");
  const bool is_auto = asked == nullptr || *asked == '\0' || std::strcmp(asked, "auto") == 0;
  for (const Level& level : kLevels) {
    if ((is_auto || std::strcmp(asked, level.name) == 0) && level.is_supported()) {
      return level.table();
    }
  }
  detail::fail("cpu", "PYVT_CPU_ISA: expected a level that this CPU has and this build holds, got ",
               asked);
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& table = choose();
  return table;
}

}  // namespace pyvt::cpu

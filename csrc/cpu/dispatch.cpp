// Picks the kernel table: the best level that the CPU has, or the one that PYVT_CPU_ISA names.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cpu/kernel_table.h"

namespace pyvt::cpu {

namespace scalar {
const KernelTable& table();
}
#if defined(PYVT_HAVE_AVX2)
namespace avx2 {
const KernelTable& table();
}
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
    {"avx2", has_avx2, avx2::table},
#endif
    {"scalar", always, scalar::table},
};

const KernelTable* find(const char* name) {
  const bool is_auto = name == nullptr || *name == '\0' || std::strcmp(name, "auto") == 0;
  for (const Level& level : kLevels) {
    if ((is_auto || std::strcmp(name, level.name) == 0) && level.is_supported()) {
      return &level.table();
    }
  }
  detail::fail("cpu", "isa: expected one of ", isa_names(), ", got ", name);
}

std::atomic<const KernelTable*> chosen{nullptr};

}  // namespace

std::string isa_names() {
  std::string names;
  for (const Level& level : kLevels) {
    if (!level.is_supported()) continue;
    if (!names.empty()) names += ' ';
    names += level.name;
  }
  return names;
}

void use_isa(const char* name) { chosen.store(find(name)); }

const KernelTable& kernels() {
  const KernelTable* table = chosen.load(std::memory_order_acquire);
  if (table == nullptr) {
    table = find(std::getenv("PYVT_CPU_ISA"));
    chosen.store(table, std::memory_order_release);
  }
  return *table;
}

}  // namespace pyvt::cpu

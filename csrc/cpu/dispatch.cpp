// Picks the kernel table: the best level that the CPU has, or the one that PYVT_CPU_ISA names.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cpu/kernel_table.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace pyvt::cpu {

#define PYVT_DECLARE_LEVEL(name) \
  namespace name {               \
  const KernelTable& table();    \
  }
PYVT_DECLARE_LEVEL(scalar)
PYVT_DECLARE_LEVEL(avx2)
PYVT_DECLARE_LEVEL(avx512)
PYVT_DECLARE_LEVEL(neon)
PYVT_DECLARE_LEVEL(i8mm)
#undef PYVT_DECLARE_LEVEL

namespace {

struct Level {
  const char* name;
  bool (*is_supported)();
  const KernelTable& (*table)();
};

bool always() { return true; }

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

#if defined(PYVT_HAVE_AVX512) && !defined(PYVT_SIMDE)
// Every CPU with VNNI has the rest but for a few of the first years, which stay at AVX2.
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}
#endif
#endif

#if defined(PYVT_HAVE_NEON) && !defined(PYVT_SIMDE)
bool has_neon_dot() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // every Apple CPU of this architecture
#endif
}
#endif

#if defined(PYVT_HAVE_I8MM) && !defined(PYVT_SIMDE)
bool has_i8mm() {
#if defined(__linux__)
  return has_neon_dot() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#else
  return false;  // not asked for elsewhere
#endif
}
#endif

// Best first; what SIMDe plays is last, so that it has to be asked for.
const Level kLevels[] = {
#if defined(PYVT_SIMDE)
    {"scalar", always, scalar::table},
    {"avx512", has_avx2, avx512::table},
    {"neon", has_avx2, neon::table},
    {"i8mm", has_avx2, i8mm::table},
#else
#if defined(PYVT_HAVE_AVX512)
    {"avx512", has_avx512, avx512::table},
#endif
#if defined(PYVT_HAVE_AVX2)
    {"avx2", has_avx2, avx2::table},
#endif
#if defined(PYVT_HAVE_I8MM)
    {"i8mm", has_i8mm, i8mm::table},
#endif
#if defined(PYVT_HAVE_NEON)
    {"neon", has_neon_dot, neon::table},
#endif
    {"scalar", always, scalar::table},
#endif
};

const KernelTable* find(const char* setting, const char* name) {
  const bool is_auto = name == nullptr || *name == '\0' || std::strcmp(name, "auto") == 0;
  for (const Level& level : kLevels) {
    if ((is_auto || std::strcmp(name, level.name) == 0) && level.is_supported()) {
      return &level.table();
    }
  }
  detail::fail("cpu", setting, ": expected one of ", isa_names(), ", got ", name);
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

void use_isa(const char* name) { chosen.store(find("isa", name)); }

const KernelTable& kernels() {
  const KernelTable* table = chosen.load(std::memory_order_acquire);
  if (table == nullptr) {
    table = find("PYVT_CPU_ISA", std::getenv("PYVT_CPU_ISA"));
    chosen.store(table, std::memory_order_release);
  }
  return *table;
}

}  // namespace pyvt::cpu

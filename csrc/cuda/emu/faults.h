// Kernels that are wrong on purpose: what the emulator must find.
#pragma once

#include <string>
#include <vector>

#include "cuda/emu/runtime.h"

namespace pyvt::emu {

// Runs one of them over 64 threads and returns what each wrote. Throws Error.
std::vector<float> run_fault(const std::string& name);

}  // namespace pyvt::emu

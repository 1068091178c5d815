// MachineLimits: what this machine can do at best, for shares in benchmarks; no kernel reads it.
#pragma once

#include <cstdint>

namespace pyvt::cpu {

// Rates of all threads of the pool together, each the best of several short runs: GB/s of a plain
// read, and thousands of millions of operations a second, a multiply and an add being two. Loops
// are those of the level in use, AVX-512 or else AVX2. A rate that has no loop on this processor is
// 0.
struct MachineLimits {
  double read;         // a plain read of memory that no cache holds
  double fma_f32;      // vfmadd231ps
  double bf16;         // the same; vdpbf16ps where products of bf16 take pairs
  double int8_signed;  // i8 · i8: vpsignb, vpmaddubsw, vpmaddwd, vpaddd; vpxord, vpdpbusd
  double int8;         // u8 · i8: vpmaddubsw, vpmaddwd, vpaddd; vpdpbusd
  double int16;        // vpmaddwd, vpaddd; vpdpwssd
  double int4;         // codes of up to 5 bits: vpmaddubsw, vpaddw; vpdpbusd
};

// Takes about 15 ms a rate and repetition, and 256 MiB of memory for the time of the call.
MachineLimits machine_limits(int repetitions);

}  // namespace pyvt::cpu

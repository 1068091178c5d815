#!/usr/bin/env bash
# What a machine with a card is asked to do, once and in under six minutes: build for its
# architecture, hold every op, tiny models and graphs to the reference, look for memory faults, then
# measure. Prints one table under the card's name; nothing is fetched.
#
#   benchmarks/gpu_check.sh [PYTHON]     needs nvcc 13, a driver, numpy, pybind11, pytest
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
export PYVT_TEST_DEVICE=cuda OPENBLAS_NUM_THREADS=1
card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
failed=0

step() {
  local name=$1 limit=$2
  shift 2
  local start=$SECONDS
  if timeout "$limit" "$@" >"build/gpu/$name.log" 2>&1; then
    echo "$name: PASS in $((SECONDS - start)) s"
  else
    echo "$name: FAIL ($?) in $((SECONDS - start)) s; the end of build/gpu/$name.log:"
    tail -20 "build/gpu/$name.log"
    failed=1
  fi
}

mkdir -p build/gpu
echo "card: $card, sm_$arch"
step configure 60 cmake -S . -B build/gpu -DPYVT_CUDA=on "-DPYVT_CUDA_ARCHS=$arch-real" \
  "-DPython_EXECUTABLE=$(command -v "$python")" \
  "-Dpybind11_DIR=$("$python" -m pybind11 --cmakedir)"
step build 150 cmake --build build/gpu --target pyvt_cuda_native -j "$(nproc)"
export PYVT_TEST_CUDA=$PWD/build/gpu/csrc/cuda
step ops 90 "$python" -m pytest -q tests/backends/cuda/test_device_ops.py
step models 60 "$python" -m pytest -q tests/backends/cuda/test_device_models.py
step graphs 30 "$python" -m pytest -q tests/backends/cuda/test_device_graphs.py
if command -v compute-sanitizer >/dev/null; then
  step sanitizer 60 compute-sanitizer --error-exitcode 9 "$python" -m pytest -q \
    tests/backends/cuda/test_device_ops.py -k "odd and f32"
else
  echo "sanitizer: skipped, compute-sanitizer is not here"
fi
step speed 90 "$python" -m benchmarks.bench_device --backend cuda
cat build/gpu/speed.log
exit $failed

#!/usr/bin/env bash
# What a machine with a card is asked to do, once and in under six minutes: build for its
# architecture, hold every op, tiny models and graphs to the reference, look for memory faults, then
# measure. Prints one table under the card's name; nothing is fetched.
#
#   benchmarks/gpu_check.sh [PYTHON]     needs nvcc 13, a driver, ninja or make, and the packages
#                                        of pyproject.toml with pytest and pybind11 in PYTHON
#   benchmarks/gpu_check.sh --dry [PYTHON]   the same steps on the emulator with tiny sizes, to see
#                                            that each works; its figures say nothing
set -euo pipefail
cd "$(dirname "$0")/.."
dry=""
if [ "${1:-}" = --dry ]; then
  dry=yes
  shift
fi
python=${1:-python3}
export OPENBLAS_NUM_THREADS=1 PYVT_HOME=${PYVT_HOME:-$PWD/build/gpu/home}
limit_all=345
failed=0

# step NAME LIMIT COMMAND...: runs it within its limit and what is left of all time.
step() {
  local name=$1 limit=$2 start=$SECONDS left=$((limit_all - SECONDS))
  shift 2
  if [ -n "$dry" ]; then
    limit=$((limit * 8)) # an emulator on a busy machine
  elif [ "$left" -lt "$limit" ]; then
    limit=$left
  fi
  if [ "$limit" -lt 1 ]; then
    echo "$name: NOT RUN, the time is over"
    failed=1
  elif timeout "$limit" "$@" >"$logs/$name.log" 2>&1; then
    echo "$name: PASS in $((SECONDS - start)) s; $(tail -1 "$logs/$name.log")"
  else
    echo "$name: FAIL ($?) in $((SECONDS - start)) s; the end of $logs/$name.log:"
    tail -20 "$logs/$name.log"
    failed=1
  fi
}

packages() {
  "$python" - <<'END'
import importlib.util
import sys

names = "numpy ml_dtypes tokenizers safetensors gguf jinja2 click rich llguidance blake3 pytest pybind11"
missing = [name for name in names.split() if importlib.util.find_spec(name) is None]
print("missing packages:", *missing) if missing else print("Python", sys.version.split()[0])
sys.exit(bool(missing))
END
}

if [ -n "$dry" ]; then
  logs=build/gpu_dry
  folder=build/emu
  export PYVT_TEST_DEVICE=cuda-emu PYVT_TEST_EMULATED=$PWD/$folder/csrc/cuda
  marker=emulated
  options=(-DPYVT_CUDA_EMU=ON -DPYVT_CUDA=off)
  target=pyvt_cuda_emu
  bench=(--backend cuda-emu --tiny)
  few=(-k "odd and f32")
  few_models=(-k "(llama or qwen3_5) and (f32 or f16) and not (tied or biases or yarn or layer or moe)")
  few_graphs=(-k "capture or copy_a_launch_and_a_wait or waits_for_nothing")
  few_others=(-k "split_keys-bf16 or long_requests_alone or of_rows or launches or tensor or numpy")
  echo "card: none, SIMULATED"
else
  logs=build/gpu
  folder=build/gpu
  export PYVT_TEST_DEVICE=cuda PYVT_TEST_CUDA=$PWD/$folder/csrc/cuda
  card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
  marker=cuda
  options=(-DPYVT_CUDA=on "-DPYVT_CUDA_ARCHS=$arch-real")
  target=pyvt_cuda_native
  bench=(--backend cuda)
  few=()
  few_models=()
  few_graphs=()
  few_others=()
  echo "card: $card, sm_$arch"
fi
mkdir -p "$logs"
if command -v ninja >/dev/null; then options+=(-G Ninja); fi
tests=tests/backends/cuda
# Libraries of other releases than those that are pinned may warn.
pytest=("$python" -m pytest -q -p no:cacheprovider -W default::DeprecationWarning)

packages >"$logs/packages.log" || { cat "$logs/packages.log"; exit 2; }
step configure 60 cmake -S . -B "$folder" "${options[@]}" \
  "-DPython_EXECUTABLE=$(command -v "$python")" \
  "-Dpybind11_DIR=$("$python" -m pybind11 --cmakedir)"
step build 150 cmake --build "$folder" --target "$target" -j "$(nproc)"
# Where the package has its module, for the measurements; taken away again.
for module in "$PWD/$folder"/csrc/cuda/_native*.so; do
  place=pyvt/backends/cuda/$(basename "$module")
  if [ -e "$module" ] && [ ! -e "$place" ]; then
    ln -s "$module" "$place"
    trap 'rm -f "$place"' EXIT
  fi
done
# What tells most comes first; the last of them runs whatever the folder has besides, so that a new
# file cannot be forgotten.
ops=($tests/test_device_ops.py)
models=($tests/test_device_models.py $tests/test_device_experts.py $tests/test_device_halves.py)
graphs=($tests/test_device_graphs.py $tests/test_device_steps.py)
listed=("${ops[@]}" "${models[@]}" "${graphs[@]}")
others=($tests -m "$marker" "${listed[@]/#/--ignore=}")
if [ -n "$dry" ]; then
  echo "others: $("${pytest[@]}" --collect-only "${others[@]}" | grep -o 'test_device[a-z_]*' | sort -u | xargs)"
fi
step ops 90 "${pytest[@]}" "${ops[@]}" "${few[@]}"
step models 60 "${pytest[@]}" "${models[@]}" "${few_models[@]}"
step graphs 45 "${pytest[@]}" "${graphs[@]}" "${few_graphs[@]}"
step others 60 "${pytest[@]}" "${others[@]}" "${few_others[@]}"
if [ -z "$dry" ] && command -v compute-sanitizer >/dev/null; then
  step sanitizer 60 compute-sanitizer --error-exitcode 9 "${pytest[@]}" \
    $tests/test_device_ops.py -k "odd and f32 and not linear and not experts"
else
  reason="compute-sanitizer is not here"
  if [ -n "$dry" ]; then reason="the emulator has checks of its own"; fi
  echo "sanitizer: skipped, $reason"
fi
step kernels 60 "$python" -m benchmarks.bench_device "${bench[@]}"
step whole-models 120 "$python" -m benchmarks.bench_device_models "${bench[@]}"
echo
cat "$logs/kernels.log" "$logs/whole-models.log"
echo "all: $SECONDS s"
exit $failed

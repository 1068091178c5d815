# make demo: answer a prompt with a real model. make test: what CI runs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/CMakeLists.txt)

.PHONY: demo test test-all clients fixtures lint fmt docs native simde emu emu-all cuda asan tsan cross parity bench clean

demo: $(VENV)/.core
	$(BIN)/pyvt pull smollm2-135m
	$(BIN)/pyvt generate --chat --act none --max-tokens 48 "What is the capital of France?"

test: $(VENV)/.dev
	$(BIN)/python -m tests.fixtures
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile --max-worker-restart=0

test-all: $(VENV)/.dev
	$(BIN)/python -m tests.fixtures --all
	$(BIN)/python -m tests.clients.install
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q
	for build in simde emu cuda asan tsan cross; do $(BIN)/python -m tests.native_builds $$build --all || exit 1; done

# Clients of the server: all that are common, a fuzzer and a browser, in an environment of their own.
clients: $(VENV)/.dev
	$(BIN)/python -m tests.fixtures --all
	$(BIN)/python -m tests.clients.install
	$(BIN)/python -m pytest -q tests/clients

fixtures: $(VENV)/.core
	$(BIN)/python -m tests.fixtures

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.dev
	$(BIN)/python -m pyvt.testing.docs

# After a change below csrc/.
native: $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt -e .

# Other builds of the native code, tested: levels over SIMDe, the CUDA backend on its emulator and
# by nvcc, sanitizers, AArch64.
simde emu asan tsan cross: $(VENV)/.dev
	$(BIN)/python -m tests.native_builds $@

# All tests of the device and whole engines on the emulator, as in make test-all.
emu-all: $(VENV)/.dev
	$(BIN)/python -m tests.native_builds emu --all

# For sm_90; make cuda ARCHS=all for sm_80 and sm_120 too.
cuda: $(VENV)/.dev
	$(BIN)/python -m tests.native_builds cuda $(if $(filter all,$(ARCHS)),--all)

# The native backend takes long: all its calls are repeated by the reference.
parity: $(VENV)/.core
	$(BIN)/pyvt parity run --backend numpy --record parity/measured/numpy.json
	$(BIN)/pyvt parity run --backend cpu --record parity/measured/cpu.json

# On a quiet machine; about half an hour. LLAMA_PYTHON and HF_PYTHON name Pythons that have
# llama-cpp-python, and torch and transformers; without them pyvt is measured alone.
bench: $(VENV)/.core
	$(BIN)/pyvt bench ops --out benchmarks/results
	$(BIN)/pyvt bench offline smollm2-135m shape:qwen3-0.6b:q8_0 shape:qwen3-0.6b:q4_k_m \
	  --out benchmarks/results
	$(BIN)/pyvt bench peers $(if $(LLAMA_PYTHON),--llama-python $(LLAMA_PYTHON)) \
	  $(if $(HF_PYTHON),--hf-python $(HF_PYTHON)) --out benchmarks/results
	$(BIN)/python -m benchmarks.bench_load smollm2-135m shape:qwen3-0.6b:q8_0 \
	  shape:qwen3-0.6b:q4_k_m --out benchmarks/results
	$(BIN)/python -m benchmarks.bench_step smollm2-135m --out benchmarks/results
	$(PIP) install -q -c constraints.txt -e '.[plot]'
	$(BIN)/python -m benchmarks.bench_structured --out benchmarks/results
	$(BIN)/python -m benchmarks.bench_engine
	$(BIN)/python -m benchmarks.bench_scheduler
	$(BIN)/python -m benchmarks.bench_concurrency $(if $(LLAMA_PYTHON),--llama-python $(LLAMA_PYTHON))
	$(BIN)/python -m benchmarks.bench_server --model smollm2-135m
	$(BIN)/python -m benchmarks.plot
	$(BIN)/python -m pyvt.testing.docs

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("pyvt needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(SOURCES) | $(VENV)/bin/python
	@echo 'installing pyvt; where there is a C++ compiler its kernels are built, some minutes at first'
	$(PIP) install -q -c constraints.txt -e .
	@touch $@

# One build for both: what tests need holds what the demo needs.
$(VENV)/.dev: $(SOURCES) | $(VENV)/bin/python
	@echo 'installing pyvt; where there is a C++ compiler its kernels are built, some minutes at first'
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.core $@

"""Build the compiled CPU module another way and test it: ``python -m tests.native_builds NAME``.

1. ``simde``: the AVX-512, NEON and i8mm kernels over SIMDe, which plays their instructions on
   AVX2: the numbers of these levels are simulated, on whatever CPU this runs.
2. ``asan``: with the address and undefined-behaviour sanitizers, which end the run at a find.
3. ``tsan``: a program that drives the thread pool, with the thread sanitizer.
4. ``emu``: the CUDA kernels for an emulator on the CPU, with one op case after the other, and
   whole engines on it.
5. ``cuda``: the CUDA kernels by nvcc, compiled and linked for sm_90, with ``--all`` for sm_80,
   sm_90 and sm_120, and cuBLASLt installed, whose header the declarations are held to; on a
   machine without a device nothing of it runs but its import.
6. ``cross``: the C library for AArch64, compiled; its kernels are compared with scalar where an
   emulator is there.

With ``--all``, as in ``make test-all``, all tests of backends run, else a
selection. What a build
needs and this machine lacks is installed by apt, where this process may; else it is skipped, and
the reason is told.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.ptxas_report import report

REPO = Path(__file__).resolve().parent.parent
ARM_COMPILER = "aarch64-linux-gnu-g++"
ARM_EMULATOR = "qemu-aarch64-static"
WITHOUT_PYTHON = "-DPYVT_PYTHON=OFF"
TESTS = "tests/backends"
EMULATED_TESTS = "tests/backends/cuda"
# Tests of engines that any backend must pass, and those of them that tell most in a minute.
ENGINE_TESTS = tuple(
    f"tests/engine/test_{name}.py"
    for name in (
        "draft_head",
        "hybrid_chat",
        "hybrid_states",
        "request_logprobs",
        "same_tokens",
        "speculative",
        "structured_outputs",
    )
)
ENGINE_SELECTION = (
    "every_way_of_serving and emu-plain",  # batches, chunks, preemption, prefix cache off
    "prefix_cache_cold_and_warm and emu-hybrid and not experts",
    "head_that_is_right and 2-4",  # drafts of the model's own head
    "answers_are_those_without_speculation and plain-greedy",
    "structured_answers and plain-0 and regex",
    "states_travel and in-the-step",  # a KV connector
    "several_answers_from or abort_frees_the_state",
    "answer_is_valid and schema0-1.0",
)
# Wrong arguments under a sanitizer, which takes ten times as long. Without --all every op and every
# argument of it meet one in six of the changes in tests/backends/test_bad_arguments_native.py,
# other ones from op to op and argument to argument, and the random search has as many examples as
# in make test; with --all all changes and five times the examples.
BAD_CALLS = {
    False: {"PYVT_TEST_SPREAD": "6", "PYVT_TEST_EXAMPLES": "200"},
    True: {"PYVT_TEST_EXAMPLES": "1000"},
}
# As in make test: an emulator is one thread, and its tests are long.
TWO_PROCESSES = ("-n", "2", "--dist", "loadfile", "--max-worker-restart=0")
SELECTION = ("tests/backends/test_op_cases.py", "tests/backends/test_int8_kernels.py")


@dataclass(frozen=True, slots=True)
class NativeBuild:
    """One way to build: what must be there, what apt installs, options and targets of CMake."""

    needs: Callable[[], bool]
    packages: tuple[str, ...]
    options: tuple[str, ...]
    targets: tuple[str, ...]
    test: Callable[[Path, bool], Sequence[str]]
    preload: tuple[str, ...] = ()
    variable: str = "PYVT_TEST_NATIVE"  # tells the tests where the module is
    more: tuple[str, ...] = ()  # options that replace earlier ones with --all
    wheels: tuple[str, ...] = ()  # installed with --all
    environment: Mapping[str, str] = field(default_factory=dict)  # of the tests


def _has_simde() -> bool:
    return Path("/usr/include/simde/x86/avx512.h").exists()


def _has_compiler() -> bool:
    return shutil.which("c++") is not None


def _has_arm_compiler() -> bool:
    return shutil.which(ARM_COMPILER) is not None


def _pytest(is_all: bool, *more: str) -> tuple[str, ...]:
    files = (TESTS,) if is_all else SELECTION
    return (sys.executable, "-m", "pytest", "-q", *files, *more)


def _all_backend_tests(folder: Path, is_all: bool) -> Sequence[str]:
    return _pytest(True)


def _selection(folder: Path, is_all: bool) -> Sequence[str]:
    return _pytest(is_all)


def _has_boost() -> bool:
    return Path("/usr/include/boost/context/fiber.hpp").exists()


def _has_nvcc() -> bool:
    return shutil.which("nvcc") is not None


def _emulated_tests(folder: Path, is_all: bool) -> Sequence[str]:
    pytest = (sys.executable, "-m", "pytest", "-q", EMULATED_TESTS, *ENGINE_TESTS)
    if is_all:
        return (*pytest, "-m", "not native", *TWO_PROCESSES)
    engines = " or ".join(f"({names})" for names in ENGINE_SELECTION)
    return (
        *pytest,
        "-m",
        "not native and not slow",
        "-k",
        f"test_device or test_emul or test_real or {engines}",
    )


def _import_test(folder: Path, is_all: bool) -> Sequence[str]:
    files = (f"{EMULATED_TESTS}/test_real_module.py", f"{EMULATED_TESTS}/test_cublas_header.py")
    return (sys.executable, "-m", "pytest", "-q", *files)


def _pool_test(folder: Path, is_all: bool) -> Sequence[str]:
    return (str(folder / "pool_test"),)


def _levels_test(folder: Path, is_all: bool) -> Sequence[str]:
    if shutil.which(ARM_EMULATOR) is None:
        return ("echo", "cross: compiled, not run: no emulator is here")
    return (ARM_EMULATOR, "-L", "/usr/aarch64-linux-gnu", str(folder / "levels_test"))


BUILDS = {
    "simde": NativeBuild(
        _has_simde,
        ("libsimde-dev",),
        ("-DPYVT_SIMDE_LEVELS=ON",),
        ("pyvt_cpu_native", "pyvt_ops"),
        _selection,
    ),
    "asan": NativeBuild(
        _has_compiler,
        ("g++",),
        ("-DPYVT_SANITIZE=address,undefined",),
        ("pyvt_cpu_native", "pyvt_ops"),
        _all_backend_tests,
        preload=("libasan.so", "libubsan.so"),
    ),
    "tsan": NativeBuild(
        _has_compiler,
        ("g++",),
        ("-DPYVT_SANITIZE=thread", WITHOUT_PYTHON),
        ("pool_test",),
        _pool_test,
    ),
    "emu": NativeBuild(
        _has_boost,
        ("libboost-context-dev",),
        ("-DPYVT_CUDA_EMU=ON", "-DPYVT_CUDA=off"),
        ("pyvt_cuda_emu",),
        _emulated_tests,
        variable="PYVT_TEST_EMULATED",
        environment={"PYVT_TEST_ENGINE": "cuda-emu", "PYVT_EMU_MEMORY_MIB": "1024"},
    ),
    "cuda": NativeBuild(
        _has_nvcc,
        ("nvidia-cuda-toolkit of CUDA 13",),
        ("-DPYVT_CUDA=on", "-DPYVT_CUDA_ARCHS=90-real"),
        ("pyvt_cuda_native",),
        _import_test,
        variable="PYVT_TEST_CUDA",
        more=("-DPYVT_CUDA_ARCHS=80-real;90-real;120",),
        wheels=("nvidia-cublas>=13.0,<14",),
    ),
    "cross": NativeBuild(
        _has_arm_compiler,
        ("g++-aarch64-linux-gnu", "qemu-user-static"),
        (
            WITHOUT_PYTHON,
            "-DCMAKE_SYSTEM_NAME=Linux",
            "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
            f"-DCMAKE_CXX_COMPILER={ARM_COMPILER}",
        ),
        ("pyvt_ops", "levels_test"),
        _levels_test,
    ),
}


def _install(packages: Sequence[str]) -> None:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", *packages]):
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def _build(name: str, build: NativeBuild, is_all: bool) -> Path:
    folder = REPO / "build" / name
    tools = Path(sys.executable).parent
    configure = ["cmake", "-G", "Ninja", "-S", str(REPO), "-B", str(folder), "-DPYVT_WERROR=ON"]
    configure += [*build.options, *(build.more if is_all else ())]
    if WITHOUT_PYTHON not in build.options:
        cmakedir = [sys.executable, "-m", "pybind11", "--cmakedir"]
        pybind11 = subprocess.run(cmakedir, check=True, capture_output=True, text=True).stdout
        configure += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.strip()}"]
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    command = ["cmake", "--build", str(folder), "--target", *build.targets]
    if name == "cuda":
        _build_with_report(command, environment)
    else:
        subprocess.run(command, check=True, env=environment)
    return folder / "csrc" / ("cuda" if name in ("emu", "cuda") else "")


def _build_with_report(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Build; print what nvcc says line by line only where it fails, else registers and spills."""
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        print(done.stdout)
        done.check_returncode()
    print(report(done.stdout), flush=True)


def _library(name: str) -> str:
    command = ["c++", f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main(name: str, is_all: bool) -> int:
    """Build and test; return the exit status of the tests, 0 for a skip."""
    build = BUILDS[name]
    if not build.needs():
        _install(build.packages)
    if not build.needs():
        names = ", ".join(build.packages)
        print(f"{name}: skipped: needs the Debian packages {names}, which cannot be had here")
        return 0
    if is_all and build.wheels:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, *build.wheels], check=True)
    folder = _build(name, build, is_all)
    environment = {**os.environ, build.variable: str(folder), **build.environment}
    if build.preload:
        # Python frees little at exit: leaks of ours would drown in its own. Reports go to files,
        # since pytest captures what a test prints and is gone with the process.
        for old in folder.glob("sanitizer.*"):
            old.unlink()
        to_files = f"log_path={folder / 'sanitizer'}"
        environment |= {"ASAN_OPTIONS": f"detect_leaks=0:{to_files}", "UBSAN_OPTIONS": to_files}
        environment |= BAD_CALLS[is_all]
        environment["LD_PRELOAD"] = " ".join(_library(library) for library in build.preload)
    status = subprocess.run(build.test(folder, is_all), cwd=REPO, env=environment).returncode
    for said in sorted(folder.glob("sanitizer.*")):
        print(said.read_text())
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], "--all" in sys.argv[2:]))

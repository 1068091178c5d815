"""What ``make test-all`` runs, target by target, and what each gave when it was last run."""

from dataclasses import dataclass

HEADER = ("part of `make test-all`", "what it is", "last result")


@dataclass(frozen=True, slots=True)
class Target:
    """One row of the table.

    Attributes:
        command: the part by itself.
        what: what is built or tested.
        result: what was seen, in words; of parts with a row of their own above, that row.
    """

    command: str
    what: str
    result: str


_ASAN = (
    "PASS, scalar, avx2 and avx512 on a CPU that has it: 5,487 tests in 2 min, 448 skipped "
    "(other builds, dtypes without kernels)"
)
_CROSS = (
    "SIMULATED: all formats on neon and i8mm have the bits of scalar; compiled and run in 7 min "
    "beside other work"
)
_EMULATED = (
    "SIMULATED, PASS in one run of 3 min 2 s with the build on a Zen 4 (8 min 17 s on an older "
    "CPU): 1,876 tests by two processes; 48 skipped: torch, CuPy, dtypes without kernels, a real "
    "model"
)
ABOVE = "see the table above"
TARGETS = (
    Target("pytest -m 'not slow'", "`make test`: every test that is not long", ABOVE),
    Target(
        "pytest -m slow",
        "long tests, without those of clients and devices",
        "PASS, folder by folder: `tests/engine`, `tests/structured`, "
        "`tests/server`, `tests/tokenizer`; of `tests/convert` those that llama.cpp reads; "
        "those of `tests/testing` not run",
    ),
    Target(
        "pytest -m slow tests/test_packages.py",
        "the wheel in a fresh environment",
        "PASS, 1 test in 330 s beside other work, with a compiler cache; wheel 3.3 MB, installed "
        "13.0 MB",
    ),
    Target("make clients", "public clients, fuzzer, browser", ABOVE),
    Target("make simde", "AVX-512, NEON and i8mm over SIMDe", ABOVE),
    Target("make emu", "the CUDA backend on its emulator", ABOVE),
    Target("make emu-all", "the same with all tests of the device and of engines", _EMULATED),
    Target("make cuda", "the CUDA backend by nvcc", ABOVE),
    Target(
        "make asan", "native CPU backend under address and undefined-behaviour sanitizer", _ASAN
    ),
    Target("make tsan", "the thread pool under the thread sanitizer", "PASS in 4 s"),
    Target("make cross", "AArch64, on an emulator", _CROSS),
)


def target_rows() -> list[tuple[str, ...]]:
    """Return the rows of the table."""
    return [(f"`{target.command}`", target.what, target.result) for target in TARGETS]

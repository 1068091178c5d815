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
    "PASS, scalar and avx2: 4,465 tests in 10 min; the selection of wrong arguments and calls, "
    "140 tests in 16 s; both before FP8 weights and caches had kernels of their own: the two files "
    "of those passed by themselves, attention over FP8 caches has not run under it"
)
_CROSS = (
    "SIMULATED: FP8 products, packing and all 256 numbers of e4m3 on neon and i8mm have the bits "
    "of scalar, these kernels compiled alone; all formats together not run since they came"
)
_EMULATED = (
    "SIMULATED, PASS in one run of 8 min 17 s with the build, beside other work: 1,811 tests by "
    "two processes; 51 skipped: torch, CuPy, dtypes without kernels, a real model"
)
ABOVE = "see the table above"
TARGETS = (
    Target("pytest -m 'not slow'", "`make test`: every test that is not long", ABOVE),
    Target(
        "pytest -m slow",
        "long tests, without those of clients and devices",
        "PASS, folder by folder: `tests/engine`, `tests/structured`, "
        "`tests/server`, `tests/tokenizer`; those of `tests/convert` and `tests/testing` not run",
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

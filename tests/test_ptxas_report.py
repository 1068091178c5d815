"""The summary of what ptxas says."""

from tests.ptxas_report import kernels_of, report

TEXT = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'add' for 'sm_90'
ptxas info    : Function properties for add
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compiling entry function 'mul' for 'sm_90'
ptxas info    : Function properties for mul
    64 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
ptxas info    : Compiling entry function 'add' for 'sm_80'
ptxas info    : Function properties for add
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 38 registers
"""


def test_kernels_have_registers_and_spills_of_their_level() -> None:
    found = [(k.name, k.level, k.num_registers, k.spilled_bytes) for k in kernels_of(TEXT)]

    assert found == [("add", "sm_90", 40, 0), ("mul", "sm_90", 255, 64), ("add", "sm_80", 38, 0)]


def test_report_names_what_spills() -> None:
    assert report(TEXT).splitlines() == [
        "sm_80: 1 kernels, 0 spill; most registers 38 in add",
        "sm_90: 2 kernels, 1 spill; most registers 255 in mul",
        "  spills 64 bytes: mul",
    ]


def test_report_of_a_build_that_had_nothing_to_do_says_so() -> None:
    assert "nothing was compiled" in report("ninja: no work to do.\n")

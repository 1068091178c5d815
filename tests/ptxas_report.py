"""What ptxas said of the kernels that nvcc compiled: registers and spills, one line a level."""

import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(sm_\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(slots=True)
class Kernel:
    """One kernel on one level."""

    name: str
    level: str
    num_registers: int = 0
    spilled_bytes: int = 0


def kernels_of(text: str) -> list[Kernel]:
    """Return the kernels of the output of ``nvcc -Xptxas=-v``."""
    found: list[Kernel] = []
    for line in text.splitlines():
        if match := _ENTRY.search(line):
            found.append(Kernel(match[1], match[2]))
        elif found and (match := _SPILLS.search(line)):
            found[-1].spilled_bytes += int(match[1]) + int(match[2])
        elif found and (match := _REGISTERS.search(line)):
            found[-1].num_registers = int(match[1])
    return found


def report(text: str) -> str:
    """Return a line for each level and one for each kernel that spills."""
    by_level: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels_of(text):
        by_level[kernel.level].append(kernel)
    if not by_level:
        return "ptxas: nothing was compiled anew"
    lines = []
    for level, kernels in sorted(by_level.items()):
        largest = max(kernels, key=lambda kernel: kernel.num_registers)
        spilling = [kernel for kernel in kernels if kernel.spilled_bytes]
        lines.append(
            f"{level}: {len(kernels)} kernels, {len(spilling)} spill; most registers "
            f"{largest.num_registers} in {_plain(largest.name)}"
        )
        lines += [f"  spills {k.spilled_bytes} bytes: {_plain(k.name)}" for k in spilling]
    return "\n".join(lines)


def _plain(name: str) -> str:
    """Return a name without its mangling, where a tool for that is here."""
    if shutil.which("c++filt") is None:
        return name
    found = subprocess.run(["c++filt", name], check=True, capture_output=True, text=True)
    return found.stdout.strip().split("(")[0]

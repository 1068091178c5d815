"""Every environment variable that pyvt reads: for debugging and A/B runs, never for settings.

A variable is read when it is first asked for, so that a test can set it before. Settings of a run
belong to ``pyvt.config``.
"""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One variable: its name, the default when unset, and a line of help for the docs."""

    name: str
    default: str
    help: str

    def get(self) -> str:
        """Return the value, or the default when the variable is unset or empty."""
        return os.environ.get(self.name) or self.default

    def is_on(self) -> bool:
        """Return whether the variable is set to something other than 0, off, no or false."""
        return self.get().lower() not in ("", "0", "off", "no", "false")

    def names(self) -> frozenset[str]:
        """Return the value as a comma-separated list of names."""
        return frozenset(part.strip() for part in self.get().split(",") if part.strip())


PYVT_HOME = EnvVar(
    "PYVT_HOME", str(Path("~/.cache/pyvt")), "folder that `pyvt pull` keeps models in"
)
PYVT_LOG_LEVEL = EnvVar("PYVT_LOG_LEVEL", "warning", "level of the log on stderr")
PYVT_DISABLE_KERNELS = EnvVar(
    "PYVT_DISABLE_KERNELS", "", "comma-separated `op` or `op:backend` names left out of dispatch"
)
PYVT_STRICT = EnvVar("PYVT_STRICT", "0", "1 makes a call of a NumPy reference kernel an error")
PYVT_CPU_ISA = EnvVar(
    "PYVT_CPU_ISA",
    "auto",
    "level of the native CPU kernels: scalar, avx2, avx512, neon, i8mm; read by compiled code",
)
PYVT_TEST_HOOKS = EnvVar(
    "PYVT_TEST_HOOKS",
    "0",
    "1 lets requests to the server say which tokens come (forced_token_ids)",
)
PYVT_EMU_SEED = EnvVar(
    "PYVT_EMU_SEED", "1", "seed of the orders of threads in the CUDA emulator; read by its module"
)
PYVT_EMU_MEMORY_MIB = EnvVar(
    "PYVT_EMU_MEMORY_MIB", "4096", "memory of the emulated device, in MiB; read by its module"
)

ENV_VARS = (
    PYVT_HOME,
    PYVT_LOG_LEVEL,
    PYVT_DISABLE_KERNELS,
    PYVT_STRICT,
    PYVT_CPU_ISA,
    PYVT_EMU_SEED,
    PYVT_EMU_MEMORY_MIB,
    PYVT_TEST_HOOKS,
)

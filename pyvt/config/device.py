"""Settings of the device: which kernels run, in which dtype, on how many threads."""

from dataclasses import dataclass, field

from pyvt.config.cache import LONG_DTYPES, Auto
from pyvt.errors import ConfigError

# As many as the native pool can have (csrc/cpu/thread_pool.h).
MAX_THREADS = 256
COMPUTE_DTYPES = ("f32", "f64", "bf16", "f16")
EXPAND_MODES = ("auto", "always", "never")
ACT_MODES = ("auto", "none", "q8")
EXPERT_PLACES = ("auto", "memory", "file")
# What auto stands for: the reference is the measure of exactness, native kernels are for speed.
AUTO_ACT = {"numpy": "none", "cuda": "none", "cuda-emu": "none"}
NATIVE_ACT = "q8"
# Keys and values beside int8 activations: half the memory, and less to read in attention.
Q8_KV_DTYPE = "f16"


def auto_act(backend: str) -> str:
    """Return what ``act`` of auto stands for on a backend."""
    return AUTO_ACT.get(backend, NATIVE_ACT)


def auto_kv_dtype(backend: str, dtype: str, act: str) -> str:
    """Return what ``kv_cache_dtype`` of auto stands for: the dtype of activations, or f16.

    Args:
        backend: who computes; the reference keeps what it computed.
        dtype: that of activations.
        act: ``none`` or ``q8``, which rounds activations to far fewer bits than f16 has.
    """
    is_exact = backend == "numpy" or act == "none" or dtype != "f32"
    return dtype if is_exact else Q8_KV_DTYPE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Settings of the device."""

    backend: str = field(
        default="auto", metadata={"help": "who computes; auto: the fastest that is built"}
    )
    dtype: str = field(
        default="auto",
        metadata={
            "help": "dtype of activations; auto: f32, or bf16 where weights are, the CPU "
            "multiplies such as they are, and act is not none",
            "choices": ("auto", *COMPUTE_DTYPES, *LONG_DTYPES),
        },
    )
    threads: int | Auto = field(
        default="auto",
        metadata={
            "help": "threads of the kernels, in the whole process; auto: the cores that affinity "
            "and quota leave, on the reference what NumPy's BLAS is set up for"
        },
    )
    expand: str = field(
        default="auto",
        metadata={
            "help": "widen packed weights at load; auto: on the reference, where memory allows",
            "choices": EXPAND_MODES,
        },
    )
    act: str = field(
        default="auto",
        metadata={
            "help": "activations before a product with packed weights: as they are, or int8; auto: "
            "int8 on native backends",
            "choices": ACT_MODES,
        },
    )
    experts: str = field(
        default="auto",
        metadata={
            "help": "where the matrices of experts lie; auto: in memory, where they do not fit in "
            "the model's file, from which the chosen ones are read at the speed of the disk",
            "choices": EXPERT_PLACES,
        },
    )

    def __post_init__(self) -> None:
        if isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", LONG_DTYPES.get(self.dtype, self.dtype))
        for name, valid in (
            ("dtype", ("auto", *COMPUTE_DTYPES)),
            ("expand", EXPAND_MODES),
            ("act", ACT_MODES),
            ("experts", EXPERT_PLACES),
        ):
            if getattr(self, name) not in valid:
                raise ConfigError(
                    f"[config] device.{name}: expected one of {', '.join(valid)}, "
                    f"got {getattr(self, name)!r}",
                    field=f"device.{name}",
                )
        if not isinstance(self.backend, str):
            raise ConfigError(
                f"[config] device.backend: expected a name, got {self.backend!r}",
                field="device.backend",
            )
        is_count = isinstance(self.threads, int) and not isinstance(self.threads, bool)
        if self.threads != "auto" and (not is_count or not 1 <= self.threads <= MAX_THREADS):
            raise ConfigError(
                f"[config] device.threads: expected 'auto' or an integer, 1 to {MAX_THREADS}, "
                f"got {self.threads!r}",
                field="device.threads",
            )

"""Settings of the device: which kernels run, in which dtype, on how many threads."""

from dataclasses import dataclass, field

from pyvt.config.cache import Auto
from pyvt.errors import ConfigError

COMPUTE_DTYPES = ("f32", "f64", "bf16", "f16")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Settings of the device."""

    backend: str = field(
        default="auto", metadata={"help": "who computes; auto: the fastest that is built"}
    )
    dtype: str = field(
        default="auto",
        metadata={"help": "dtype of activations", "choices": ("auto", *COMPUTE_DTYPES)},
    )
    threads: int | Auto = field(
        default="auto", metadata={"help": "threads of native kernels; auto: one a core"}
    )

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", *COMPUTE_DTYPES):
            raise ConfigError(
                f"[config] device.dtype: expected one of auto, {', '.join(COMPUTE_DTYPES)}, "
                f"got {self.dtype!r}",
                field="device.dtype",
            )
        is_count = isinstance(self.threads, int) and not isinstance(self.threads, bool)
        if self.threads != "auto" and (not is_count or self.threads < 1):
            raise ConfigError(
                "[config] device.threads: expected 'auto' or an integer of at least 1, "
                f"got {self.threads!r}",
                field="device.threads",
            )

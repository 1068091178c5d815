"""The paged KV cache: its settings, and what one layer needs of it."""

from dataclasses import dataclass, field
from typing import Literal

from pyvt.errors import ConfigError
from pyvt.tensor.dtype import DType

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Auto = Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """What one attention layer keeps for each token.

    Attributes:
        num_kv_heads: Nk.
        head_dim: D.
        dtype: a plain float dtype.
        sliding_window: keys older than this many tokens are not read; None reads all.
    """

    num_kv_heads: int
    head_dim: int
    dtype: DType
    sliding_window: int | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one token."""
        return 2 * self.dtype.row_bytes(self.num_kv_heads * self.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Settings of the KV cache."""

    block_size: int = field(
        default=16, metadata={"help": "tokens of a KV block", "choices": BLOCK_SIZES}
    )
    num_blocks: int | Auto = field(
        default="auto", metadata={"help": "KV blocks of the pool; auto: what memory allows"}
    )
    memory_fraction: float = field(
        default=0.6,
        metadata={"help": "share of the memory left after the weights that KV blocks may take"},
    )

    def __post_init__(self) -> None:
        if isinstance(self.block_size, bool) or self.block_size not in BLOCK_SIZES:
            raise ConfigError(
                f"[config] cache.block_size: expected one of {BLOCK_SIZES}, "
                f"got {self.block_size!r}",
                field="cache.block_size",
            )
        if self.num_blocks != "auto" and not _is_count(self.num_blocks):
            raise ConfigError(
                "[config] cache.num_blocks: expected 'auto' or an integer of at least 1, "
                f"got {self.num_blocks!r}",
                field="cache.num_blocks",
            )
        is_number = isinstance(self.memory_fraction, (int, float))
        if (
            not is_number
            or isinstance(self.memory_fraction, bool)
            or not (0 < self.memory_fraction <= 1)
        ):
            raise ConfigError(
                "[config] cache.memory_fraction: expected a number above 0 up to 1, "
                f"got {self.memory_fraction!r}",
                field="cache.memory_fraction",
            )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1

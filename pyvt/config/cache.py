"""The paged KV cache: its settings, what one layer needs of it, and how layers share blocks.

A layer with linear attention keeps a state of fixed size for each request instead.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pyvt.errors import ConfigError
from pyvt.log import get_logger
from pyvt.mathutil import cdiv
from pyvt.tensor.dtype import DType

log = get_logger(__name__)

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Auto = Literal["auto"]
GroupKind = Literal["full", "sliding", "state"]
MAX_GROUPS = 8
KV_DTYPES = ("auto", "f32", "f64", "bf16", "f16", "fp8_e4m3")
# The same by the names that PyTorch and vLLM have for them.
LONG_DTYPES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "float16": "f16"}
_LONG_KV_DTYPES = {**LONG_DTYPES, "fp8": "fp8_e4m3"}


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
    def layer_shape(self) -> tuple[int, int, DType]:
        """What two layers must have in common to share the memory of a block."""
        return self.num_kv_heads, self.head_dim, self.dtype

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one token."""
        return 2 * self.dtype.row_bytes(self.num_kv_heads * self.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """What one layer with linear attention keeps for each request.

    Attributes:
        conv_shape: of the state of its convolution, ``(Kc − 1, C)``.
        state_shape: of the state of its delta rule, ``(Hv, Dk, Dv)``.
        conv_dtype: dtype of activations, which the former holds.
        state_dtype: dtype of the latter, f32 or f64.
    """

    conv_shape: tuple[int, ...]
    state_shape: tuple[int, ...]
    conv_dtype: DType
    state_dtype: DType

    @property
    def nbytes(self) -> int:
        """Bytes of the state of one request."""
        conv = self.conv_dtype.row_bytes(math.prod(self.conv_shape))
        return conv + self.state_dtype.row_bytes(math.prod(self.state_shape))


LayerSpec = KVCacheSpec | StateSpec


def token_specs(specs: Sequence[LayerSpec]) -> tuple[KVCacheSpec, ...]:
    """Return the specs of the layers that keep something of each token."""
    return tuple(spec for spec in specs if isinstance(spec, KVCacheSpec))


def with_kv_dtype(specs: Sequence[LayerSpec], dtype: DType) -> tuple[LayerSpec, ...]:
    """Return specs whose keys and values have a dtype; states keep theirs."""
    return tuple(
        replace(spec, dtype=dtype) if isinstance(spec, KVCacheSpec) else spec for spec in specs
    )


def state_bytes(specs: Sequence[LayerSpec]) -> int:
    """Return the bytes of the state of one request, over all layers; 0 where there are none."""
    return sum(spec.nbytes for spec in specs if isinstance(spec, StateSpec))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that share a block table.

    Attributes:
        kind: ``full`` keeps the KV of every token, ``sliding`` that of a window, ``state`` one
            state for each request, of a size that does not grow.
        layers: indices of the layers.
        window: tokens that a query of a sliding group sees, itself included; else 0.
        snapshot_every: a state group keeps the state behind every so many tokens of a prompt,
            rounded up to whole blocks; 0 for never, and in other groups.
    """

    kind: GroupKind
    layers: tuple[int, ...] = ()
    window: int = 0
    snapshot_every: int = 0

    def max_blocks(self, num_tokens: int, block_size: int, max_step_tokens: int) -> int:
        """Return the most blocks that a request of ``num_tokens`` holds at any time.

        Args:
            num_tokens: tokens whose KV is written.
            block_size: tokens of a block.
            max_step_tokens: most tokens that a step computes for one request.

        Returns:
            0 for a state group, whose slots are counted apart.
        """
        if self.kind == "state":
            return 0
        num_blocks = cdiv(num_tokens, block_size)
        if self.kind == "full":
            return num_blocks
        # The window before the first token of a step and the step's tokens, however they lie.
        return min(num_blocks, cdiv(self.window - 1 + max_step_tokens, block_size) + 1)


FULL_GROUP = CacheGroup(kind="full")


def cache_groups(specs: Sequence[LayerSpec]) -> tuple[CacheGroup, ...]:
    """Return the groups of a model's layers; a block is one id for the layers of one group.

    Groups that keep something of each token have the same number of layers, so that a block takes
    the same memory in each and all of them draw from one pool: that of the rarest kind. Where this
    would make more than ``MAX_GROUPS`` groups, layers with a window keep every token as the others
    do. All layers with a state are one group, the last; a snapshot of it takes as much memory as
    the KV of the tokens between two.
    """
    states = tuple(i for i, spec in enumerate(specs) if isinstance(spec, StateSpec))
    groups = _token_groups({i: s for i, s in enumerate(specs) if isinstance(s, KVCacheSpec)})
    if not states:
        return groups
    per_token = sum(spec.bytes_per_token for spec in token_specs(specs))
    every = cdiv(state_bytes(specs), per_token) if per_token else 0
    return (*groups, CacheGroup(kind="state", layers=states, snapshot_every=every))


def _token_groups(specs: Mapping[int, KVCacheSpec]) -> tuple[CacheGroup, ...]:
    by_window: dict[int | None, list[int]] = {}
    for layer, spec in specs.items():
        by_window.setdefault(spec.sliding_window, []).append(layer)
    size = min(map(len, by_window.values()), default=1)
    num_groups = sum(cdiv(len(layers), size) for layers in by_window.values())
    if num_groups > MAX_GROUPS or len({spec.layer_shape for spec in specs.values()}) > 1:
        if len(by_window) > 1:
            log.info("kv cache: layers with a window keep every token, to share one block table")
        return (CacheGroup(kind="full", layers=tuple(specs)),)
    return tuple(
        CacheGroup(
            kind="full" if window is None else "sliding",
            layers=tuple(layers[start : start + size]),
            window=window or 0,
        )
        for window, layers in sorted(by_window.items(), key=lambda item: item[0] is not None)
        for start in range(0, len(layers), size)
    )


def block_bytes(specs: Sequence[LayerSpec], block_size: int) -> int:
    """Return the bytes of one block of the pool: the layers of the largest group."""
    by_layer = {i: spec for i, spec in enumerate(specs) if isinstance(spec, KVCacheSpec)}
    return block_size * max(
        (
            sum(by_layer[layer].bytes_per_token for layer in group.layers)
            for group in _token_groups(by_layer)
        ),
        default=0,
    )


def blocks_of_request(
    groups: Sequence[CacheGroup], num_tokens: int, block_size: int, max_step_tokens: int
) -> int:
    """Return the most blocks that a request of ``num_tokens`` holds, over all groups."""
    return sum(group.max_blocks(num_tokens, block_size, max_step_tokens) for group in groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Settings of the KV cache."""

    block_size: int = field(
        default=16, metadata={"help": "tokens of a KV block", "choices": BLOCK_SIZES}
    )
    num_blocks: int | Auto = field(
        default="auto", metadata={"help": "KV blocks of the pool; auto: what memory allows"}
    )
    num_state_slots: int | Auto = field(
        default="auto",
        metadata={
            "help": "states of linear attention: one for each request that runs, the others for "
            "snapshots; auto: what memory allows"
        },
    )
    memory_fraction: float = field(
        default=0.6,
        metadata={
            "help": "share of the memory left after the weights that KV blocks and states may take"
        },
    )
    gpu_memory_utilization: float = field(
        default=0.9,
        metadata={
            "help": "share of a device's memory that weights, KV, states and workspaces may take; "
            "KV gets what a run of the largest steps leaves"
        },
    )
    kv_cache_dtype: str = field(
        default="auto",
        metadata={
            "help": "dtype of keys and values; auto: f16 beside int8 activations, else that of "
            "activations",
            "choices": (*KV_DTYPES, *_LONG_KV_DTYPES),
        },
    )
    enable_prefix_caching: bool = field(
        default=True,
        metadata={"help": "reuse the KV of a prompt's start that was computed before"},
    )
    watermark: float = field(
        default=0.01,
        metadata={"help": "share of the blocks that stay free when a request starts beside others"},
    )

    def __post_init__(self) -> None:
        if isinstance(self.block_size, bool) or self.block_size not in BLOCK_SIZES:
            raise ConfigError(
                f"[config] cache.block_size: expected one of {BLOCK_SIZES}, "
                f"got {self.block_size!r}",
                field="cache.block_size",
            )
        for name in ("num_blocks", "num_state_slots"):
            value = getattr(self, name)
            is_none = name == "num_state_slots" and value == 0 and not isinstance(value, bool)
            if value != "auto" and not is_none and not _is_count(value):
                raise ConfigError(
                    f"[config] cache.{name}: expected 'auto' or an integer of at least 1, "
                    f"got {value!r}",
                    field=f"cache.{name}",
                )
        for name in ("memory_fraction", "gpu_memory_utilization"):
            value = getattr(self, name)
            if not _is_share(value) or value == 0:
                raise ConfigError(
                    f"[config] cache.{name}: expected a number above 0 up to 1, got {value!r}",
                    field=f"cache.{name}",
                )
        if not _is_share(self.watermark) or self.watermark == 1:
            raise ConfigError(
                "[config] cache.watermark: expected a number from 0 to below 1, "
                f"got {self.watermark!r}",
                field="cache.watermark",
            )
        if isinstance(self.kv_cache_dtype, str):
            known = _LONG_KV_DTYPES.get(self.kv_cache_dtype, self.kv_cache_dtype)
            object.__setattr__(self, "kv_cache_dtype", known)
        if self.kv_cache_dtype not in KV_DTYPES:
            raise ConfigError(
                f"[config] cache.kv_cache_dtype: expected one of {', '.join(KV_DTYPES)}, "
                f"got {self.kv_cache_dtype!r}",
                field="cache.kv_cache_dtype",
            )
        if not isinstance(self.enable_prefix_caching, bool):
            raise ConfigError(
                "[config] cache.enable_prefix_caching: expected true or false, "
                f"got {self.enable_prefix_caching!r}",
                field="cache.enable_prefix_caching",
            )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_share(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= float(value) <= 1  # type: ignore[arg-type]

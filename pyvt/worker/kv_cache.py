"""The paged KV cache: one pair of arrays a layer, from the specs of a model.

Dims: Nk KV heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyvt.config.cache import KVCacheSpec
from pyvt.errors import ConfigError
from pyvt.layers.forward_batch import LayerCache
from pyvt.mathutil import cdiv


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """K and V of all layers; all layers share one block table.

    Attributes:
        block_size: tokens of a block.
        num_blocks: blocks of the pool.
        layers: for each layer K and V ``[num_blocks, block_size, Nk, D]``.
    """

    block_size: int
    num_blocks: int
    layers: tuple[LayerCache, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(k.nbytes + v.nbytes for k, v in self.layers)


def kv_bytes_per_token(specs: Sequence[KVCacheSpec]) -> int:
    """Return the bytes that one token takes over all layers."""
    return sum(spec.bytes_per_token for spec in specs)


def allocate_kv_cache(
    specs: Sequence[KVCacheSpec], num_blocks: int, block_size: int, *, max_model_len: int = 1
) -> KVCache:
    """Return the cache of a model; memory is taken from the system as blocks are first written.

    Raises ConfigError where one request of ``max_model_len`` tokens would not fit.
    """
    need = cdiv(max_model_len, block_size)
    if num_blocks < need:
        raise ConfigError(
            f"[kv_cache] num_blocks: expected at least {need} for max_model_len={max_model_len}, "
            f"got {num_blocks}; lower max_model_len or give more memory",
            field="num_blocks",
        )
    layers = []
    try:
        for spec in specs:
            shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
            layers.append((np.zeros(shape, spec.dtype.numpy), np.zeros(shape, spec.dtype.numpy)))
    except (MemoryError, ValueError) as error:  # ValueError: beyond what an array can have
        need_mib = num_blocks * block_size * kv_bytes_per_token(specs) // 2**20
        raise ConfigError(
            f"[kv_cache] num_blocks: expected memory for {num_blocks} blocks, {need_mib} MiB, got "
            f"none from the system ({error}); lower num_blocks or max_model_len",
            field="num_blocks",
        ) from error
    return KVCache(block_size=block_size, num_blocks=num_blocks, layers=tuple(layers))

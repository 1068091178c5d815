"""The paged KV cache: arrays of K and V from the specs of a model, shared by its cache groups.

A block id belongs to one group at a time, so the groups use the same arrays: layer ``i`` of every
group reads and writes array ``i``. Block 0 is the null block and never written. Layers with linear
attention have arrays of their own, with one slot for the state of each request that runs and of
each that is kept; slot 0 is never used either.

Dims: Nk KV heads, D head size, L layers, S tokens of a block.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyvt import ops
from pyvt.config.cache import (
    CacheGroup,
    KVCacheSpec,
    LayerSpec,
    StateSpec,
    block_bytes,
    cache_groups,
    state_bytes,
    token_specs,
)
from pyvt.dispatch import on_host, place
from pyvt.dispatch.backend import selected_backend
from pyvt.errors import ConfigError
from pyvt.layers.forward_batch import Array, LayerCache
from pyvt.messages import BlockCopy

_LINE_BYTES = 64  # of a cache


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """K and V of all layers.

    Attributes:
        block_size: tokens of a block.
        num_blocks: blocks of the pool, without the null block.
        groups: layers that share a block table.
        num_state_slots: states that can be kept, without the null slot.
        layers: for each layer K and V ``[num_blocks + 1, block_size, Nk, D]``, or the states of
            its convolution and of its delta rule ``[num_state_slots + 1, ...]``.
        layer_groups: for each layer its group.
    """

    block_size: int
    num_blocks: int
    num_state_slots: int = 0
    groups: tuple[CacheGroup, ...]
    layers: tuple[LayerCache, ...]
    layer_groups: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, each counted once."""
        arrays = {id(array): array for pair in self.layers for array in pair}
        return sum(array.nbytes for array in arrays.values())

    def tensors(self) -> dict[str, Array]:
        """Return the arrays by name: ``layers.0.k`` and ``.v``, or ``.conv`` and ``.state``."""
        named: dict[str, Array] = {}
        for layer, pair in enumerate(self.layers):
            is_state = self.groups[self.layer_groups[layer]].kind == "state"
            parts = ("conv", "state") if is_state else ("k", "v")
            named |= {f"layers.{layer}.{part}": a for part, a in zip(parts, pair, strict=True)}
        return named

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy blocks of groups, one after the other."""
        for group, src, dst in copies:
            for layer in self.groups[group].layers:
                pair = self.layers[layer]
                ops.copy_blocks(*pair, place(np.array([[src, dst]], np.int64), beside=pair[0]))

    def export(self, group: int, block_ids: Sequence[int]) -> list[memoryview]:
        """Return the bytes of each block: ``[L][K, V][S][Nk][D]``, little endian, as copies.

        Those of a state are ``[L][convolution, delta rule]``, each in the shape of its spec.
        """
        ids = np.array(block_ids, np.int64)
        parts = [
            on_host(ops.gather_blocks(cache, place(ids, beside=cache)))
            for cache in self._arrays(group)
        ]
        return [
            memoryview(b"".join(np.ascontiguousarray(part[i]).tobytes() for part in parts))
            for i in range(len(block_ids))
        ]

    def import_(
        self, group: int, block_ids: Sequence[int], views: Sequence[memoryview | bytes]
    ) -> None:
        """Fill blocks from the bytes that ``export`` gives.

        Raises ConfigError where a view has not the size of a block; nothing is written then.
        """
        caches = self._arrays(group)
        size = sum(cache[0].nbytes for cache in caches)
        for view in views:
            if memoryview(view).nbytes != size:
                raise ConfigError(
                    f"[kv_cache] import: expected {size} bytes of a block, got "
                    f"{memoryview(view).nbytes}; the layouts differ",
                    field="kv_cache",
                )
        blocks = np.stack([np.frombuffer(view, np.uint8) for view in views])
        ids = np.array(block_ids, np.int64)
        at = 0
        for cache in caches:
            width = cache[0].nbytes
            part: Array = np.ascontiguousarray(blocks[:, at : at + width])
            new = part.view(cache.dtype).reshape(-1, *cache.shape[1:])
            ops.scatter_blocks(place(new, beside=cache), cache, place(ids, beside=cache))
            at += width

    def _arrays(self, group: int) -> list[Array]:
        """Return the arrays of a group by layer, those of states as ``[slots, 1, 1, n]``."""
        arrays = [array for layer in self.groups[group].layers for array in self.layers[layer]]
        if self.groups[group].kind == "state":
            return [array.reshape(array.shape[0], 1, 1, -1) for array in arrays]
        return arrays


def kv_bytes_per_token(specs: Sequence[LayerSpec]) -> int:
    """Return the bytes that one token takes over all layers."""
    return sum(spec.bytes_per_token for spec in token_specs(specs))


def _blocks(
    specs: Sequence[KVCacheSpec], num_blocks: int, block_size: int
) -> list[tuple[Array, Array]]:
    """Return K and V ``[num_blocks + 1, S, Nk, D]`` of specs of one dtype: views of one array.

    A block holds K and V of every layer, so that what is used of the cache is used whole, whatever
    the size of a page of memory. In it a head's tokens lie side by side: attention reads one head
    at a time, and reads memory in order.
    """
    sizes = [spec.num_kv_heads * block_size * spec.head_dim for spec in specs]
    memory = _zeros((num_blocks + 1, 2 * sum(sizes)), specs[0].dtype.numpy if specs else np.uint8)
    pairs: list[tuple[Array, Array]] = []
    at = 0
    for spec, size in zip(specs, sizes, strict=True):
        shape = (num_blocks + 1, spec.num_kv_heads, block_size, spec.head_dim)
        k, v = (
            memory[:, begin : begin + size].reshape(shape).transpose(0, 2, 1, 3)
            for begin in (at, at + size)
        )
        pairs.append((k, v))
        at += 2 * size
    return pairs


def _zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return zeros where the selected backend computes; on the host they begin with a line.

    A vector that lies across two lines of a cache costs two reads.
    """
    device = selected_backend().device
    if device is not None:
        on_device: Array = device.zeros(shape, dtype)
        return on_device
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(num_bytes + _LINE_BYTES, np.uint8)
    start = -raw.ctypes.data % _LINE_BYTES
    zeros: Array = raw[start : start + num_bytes].view(dtype).reshape(shape)
    return zeros


def allocate_kv_cache(
    specs: Sequence[LayerSpec], num_blocks: int, block_size: int, num_state_slots: int = 0
) -> KVCache:
    """Return the cache of a model; memory is taken from the system as blocks are first written.

    Raises ConfigError where the system does not give as much address space.
    """
    groups = cache_groups(specs)
    try:
        places = _allocate(groups, specs, (num_blocks, block_size), num_state_slots + 1)
    except (MemoryError, ValueError) as error:  # ValueError: beyond what an array can have
        need = num_blocks * block_bytes(specs, block_size) + num_state_slots * state_bytes(specs)
        raise ConfigError(
            f"[kv_cache] num_blocks: expected memory for {num_blocks} blocks and "
            f"{num_state_slots} states, {need // 2**20} MiB, got none from the system ({error}); "
            "lower num_blocks, num_state_slots or max_model_len",
            field="num_blocks",
        ) from error
    return KVCache(
        block_size=block_size,
        num_blocks=num_blocks,
        num_state_slots=num_state_slots,
        groups=groups,
        layers=tuple(places[layer][1] for layer in range(len(specs))),
        layer_groups=tuple(places[layer][0] for layer in range(len(specs))),
    )


def _allocate(
    groups: Sequence[CacheGroup],
    specs: Sequence[LayerSpec],
    blocks: tuple[int, int],
    num_slots: int,
) -> dict[int, tuple[int, LayerCache]]:
    """Return the group and the arrays of each layer; groups of blocks share theirs."""
    places: dict[int, tuple[int, LayerCache]] = {}
    pairs = _blocks(_specs_of_arrays(groups, specs), *blocks)
    for g, group in enumerate(groups):
        for i, layer in enumerate(group.layers):
            spec = specs[layer]
            if isinstance(spec, StateSpec):
                conv = _zeros((num_slots, *spec.conv_shape), spec.conv_dtype.numpy)
                state = _zeros((num_slots, *spec.state_shape), spec.state_dtype.numpy)
                places[layer] = (g, (conv, state))
                continue
            places[layer] = (g, pairs[i])
    return places


def _specs_of_arrays(groups: Sequence[CacheGroup], specs: Sequence[LayerSpec]) -> list[KVCacheSpec]:
    """Return what array ``i`` holds: layer ``i`` of the longest group that has tokens."""
    of_tokens = [
        [spec for layer in group.layers if isinstance(spec := specs[layer], KVCacheSpec)]
        for group in groups
    ]
    return max(of_tokens, key=len, default=[])

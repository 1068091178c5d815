"""Allocation of the paged KV cache, blocks shared by groups, and their bytes."""

import numpy as np
import pytest

from pyvt.config.cache import KVCacheSpec, StateSpec, block_bytes, cache_groups, state_bytes
from pyvt.errors import ConfigError
from pyvt.messages import BlockCopy
from pyvt.tensor.dtype import BF16, F32, DType
from pyvt.worker.kv_cache import KVCache, allocate_kv_cache, kv_bytes_per_token


def _specs(dtype: DType, *windows: int | None) -> list[KVCacheSpec]:
    return [
        KVCacheSpec(num_kv_heads=2, head_dim=8, dtype=dtype, sliding_window=window)
        for window in windows or (None, None)
    ]


def _filled(num_blocks: int = 5, *windows: int | None) -> KVCache:
    cache = allocate_kv_cache(_specs(F32, *windows), num_blocks, 4)
    rng = np.random.default_rng(0)
    for pair in cache.layers:
        for array in pair:
            array[1:] = rng.standard_normal(array[1:].shape)
    return cache


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_layers_have_the_shapes_and_dtype_of_their_specs(dtype: DType) -> None:
    cache = allocate_kv_cache(_specs(dtype), num_blocks=5, block_size=4)

    assert [k.shape for k, _ in cache.layers] == [(6, 4, 2, 8)] * 2
    assert all(k.dtype == v.dtype == dtype.numpy for k, v in cache.layers)
    assert all(not np.shares_memory(k, v) for k, v in cache.layers)
    assert not np.shares_memory(cache.layers[0][0], cache.layers[1][0])
    assert cache.layer_groups == (0, 0)


def test_layers_of_different_heads_keep_arrays_of_their_own() -> None:
    specs = [KVCacheSpec(num_kv_heads=n, head_dim=8, dtype=F32) for n in (2, 3)]

    cache = allocate_kv_cache(specs, num_blocks=5, block_size=4)

    assert [k.shape for k, _ in cache.layers] == [(6, 4, 2, 8), (6, 4, 3, 8)]


@pytest.mark.parametrize(
    ("windows", "groups"),
    [
        ((None, None), [("full", (0, 1), 0)]),
        ((4, 4), [("sliding", (0, 1), 4)]),
        ((None, 4, 4), [("full", (0,), 0), ("sliding", (1,), 4), ("sliding", (2,), 4)]),
        ((4, None, 8), [("full", (1,), 0), ("sliding", (0,), 4), ("sliding", (2,), 8)]),
        (
            (*[4] * 3, *[None] * 2),
            [("full", (3, 4), 0), ("sliding", (0, 1), 4), ("sliding", (2,), 4)],
        ),
        ((None, *[4] * 20), [("full", tuple(range(21)), 0)]),
    ],
    ids=["full", "sliding", "one-and-two", "two-windows", "uneven", "too-many"],
)
def test_groups_have_the_layers_of_the_rarest_kind(
    windows: tuple[int | None, ...], groups: list[tuple[str, tuple[int, ...], int]]
) -> None:
    found = cache_groups(_specs(F32, *windows))

    assert [(g.kind, g.layers, g.window) for g in found] == groups


def test_groups_share_the_memory_of_a_block() -> None:
    cache = allocate_kv_cache(_specs(F32, None, 4, 4), num_blocks=5, block_size=4)

    assert cache.layer_groups == (0, 1, 2)
    assert all(np.shares_memory(cache.layers[0][0], k) for k, _ in cache.layers)


def test_bytes_of_all_blocks_are_the_bytes_of_the_cache() -> None:
    for windows in ((None, None), (None, 4, 4), (None, None, 4)):
        specs = _specs(BF16, *windows)
        cache = allocate_kv_cache(specs, num_blocks=5, block_size=4)
        assert cache.nbytes == 6 * block_bytes(specs, 4)
    assert kv_bytes_per_token(_specs(BF16)) == 2 * 2 * 2 * 2 * 8


@pytest.mark.parametrize("num_blocks", [1 << 45, 1 << 60])
def test_pool_that_the_system_does_not_give_is_refused(num_blocks: int) -> None:
    with pytest.raises(ConfigError, match=f"num_blocks: expected memory for {num_blocks} blocks"):
        allocate_kv_cache(_specs(F32), num_blocks=num_blocks, block_size=16)


def test_copies_are_made_in_order_and_of_the_group_alone() -> None:
    cache = _filled(5, None, None)
    before = [array.copy() for pair in cache.layers for array in pair]

    cache.copy_blocks([BlockCopy(0, 1, 2), BlockCopy(0, 2, 4)])

    after = [array for pair in cache.layers for array in pair]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new[[2, 4]], old[[1, 1]])
        np.testing.assert_array_equal(new[[1, 3, 5]], old[[1, 3, 5]])


def test_exported_block_is_layers_then_k_and_v_in_order_and_comes_back() -> None:
    cache, other = _filled(5), _filled(3)

    views = cache.export(0, [4, 2])
    other.import_(0, [1, 3], views)

    want = b"".join(array[4].tobytes() for pair in cache.layers for array in pair)
    assert bytes(views[0]) == want
    assert len(want) == block_bytes(_specs(F32), 4)
    for ours, theirs in zip(cache.layers, other.layers, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(b[[1, 3]], a[[4, 2]])


def test_exported_state_is_layers_then_convolution_and_delta_rule_and_comes_back() -> None:
    state = StateSpec(conv_shape=(3, 10), state_shape=(2, 4, 5), conv_dtype=BF16, state_dtype=F32)
    specs = [state, *_specs(F32), state]
    cache, other = (allocate_kv_cache(specs, 2, 4, num_slots) for num_slots in (4, 2))
    rng = np.random.default_rng(0)
    layers = [cache.layers[i] for i in (0, 3)]
    for array in [array for pair in layers for array in pair]:
        array[...] = rng.standard_normal(array.shape)

    views = cache.export(1, [4, 2])
    other.import_(1, [1, 2], views)

    assert bytes(views[0]) == b"".join(a[4].tobytes() for pair in layers for a in pair)
    assert views[0].nbytes == state_bytes(specs)
    for ours, theirs in zip(layers, [other.layers[i] for i in (0, 3)], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(b[[1, 2]], a[[4, 2]])
            assert not b[0].any()


def test_import_of_another_layout_is_refused_and_writes_nothing() -> None:
    cache = _filled(5)
    before = cache.layers[0][0].copy()

    with pytest.raises(ConfigError, match="expected 1024 bytes of a block, got 12"):
        cache.import_(0, [1, 2], [cache.export(0, [3])[0], bytes(12)])

    np.testing.assert_array_equal(cache.layers[0][0], before)


def test_tokens_of_a_head_and_block_lie_side_by_side() -> None:
    spec = KVCacheSpec(num_kv_heads=3, head_dim=8, dtype=BF16)
    for cache in allocate_kv_cache((spec,), num_blocks=2, block_size=4).layers[0]:
        assert cache[1, :, 2].flags.c_contiguous
        assert not cache[1, 2].flags.c_contiguous

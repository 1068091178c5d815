"""Allocation of the paged KV cache."""

import numpy as np
import pytest

from pyvt.config.cache import KVCacheSpec
from pyvt.errors import ConfigError
from pyvt.tensor.dtype import BF16, F32, DType
from pyvt.worker.kv_cache import allocate_kv_cache, kv_bytes_per_token


def _specs(dtype: DType) -> list[KVCacheSpec]:
    return [KVCacheSpec(num_kv_heads=heads, head_dim=8, dtype=dtype) for heads in (2, 3)]


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_layers_have_the_shapes_and_dtype_of_their_specs(dtype: DType) -> None:
    cache = allocate_kv_cache(_specs(dtype), num_blocks=5, block_size=4)

    assert [k.shape for k, _ in cache.layers] == [(5, 4, 2, 8), (5, 4, 3, 8)]
    assert all(k.dtype == v.dtype == dtype.numpy for k, v in cache.layers)
    assert all(not np.shares_memory(k, v) for k, v in cache.layers)


def test_bytes_per_token_times_tokens_are_the_bytes_of_the_cache() -> None:
    cache = allocate_kv_cache(_specs(BF16), num_blocks=5, block_size=4)

    assert cache.nbytes == 20 * kv_bytes_per_token(_specs(BF16)) == 20 * 2 * 2 * (2 + 3) * 8


def test_pool_too_small_for_one_request_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match="at least 6 for max_model_len=21, got 5"):
        allocate_kv_cache(_specs(F32), num_blocks=5, block_size=4, max_model_len=21)


@pytest.mark.parametrize("num_blocks", [1 << 45, 1 << 60])
def test_pool_that_the_system_does_not_give_is_refused(num_blocks: int) -> None:
    with pytest.raises(ConfigError, match=f"num_blocks: expected memory for {num_blocks} blocks"):
        allocate_kv_cache(_specs(F32), num_blocks=num_blocks, block_size=16)

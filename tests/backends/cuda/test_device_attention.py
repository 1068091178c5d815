"""Attention on tensor cores, with windows and tables that cases of an op do not have."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import use_backend
from pyvt.tensor.dtype import DTYPES
from pyvt.testing.tolerance import compare
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, has_used_tensor_cores, native

pytestmark = [NEEDS_DEVICE]

BLOCK = 16
Inputs = dict[str, Any]


def inputs(
    dtype: str,
    head_dim: int,
    group: int,
    query_lens: list[int],
    *,
    cached: int = 0,
    num_kv_heads: int = 2,
    **more: Any,
) -> Inputs:
    """A step of requests that have ``cached``, 30 more, … tokens in the cache already.

    What no request holds is NaN.
    """
    rng = np.random.default_rng(head_dim + group)
    kind = DTYPES[dtype].numpy
    seq_lens = np.array([n + cached + 30 * i for i, n in enumerate(query_lens)], np.int32)
    width = int(-(-seq_lens.max() // BLOCK))
    pool = (len(query_lens) * width + 1, num_kv_heads, BLOCK, head_dim)
    order = rng.permutation(pool[0] - 1).astype(np.int32) + 1
    caches = (rng.standard_normal(pool).astype(kind).transpose(0, 2, 1, 3) for _ in range(2))
    q = rng.standard_normal((sum(query_lens), num_kv_heads * group, head_dim)).astype(kind)
    k_cache, v_cache = caches
    tables = order.reshape(len(query_lens), width)
    is_held = np.zeros((pool[0], BLOCK), bool)
    for table, seq_len in zip(tables, seq_lens, strict=True):
        places = np.arange(seq_len)
        is_held[table[places // BLOCK], places % BLOCK] = True
    for cache in (k_cache, v_cache):
        cache[~is_held] = np.nan
    return {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_tables": tables,
        "seq_lens": seq_lens,
        "cu_seqlens_q": np.cumsum([0, *query_lens]).astype(np.int32),
        "scale": head_dim**-0.5,
        **more,
    }


def on_device(device: ModuleType, given: Inputs) -> Inputs:
    return {k: device.upload(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}


# Heads of 64, 128 and 256 dims on tensor cores, others on f32 tiles. Steps of up to four tokens a
# request have their keys split over warps, and over blocks where there are many.
CASES: dict[str, tuple[int, int, list[int], Inputs]] = {
    "one_tile": (64, 2, [40], {}),
    "tiles_and_group": (64, 4, [70, 1, 33], {}),
    "wide_heads": (128, 2, [65, 3], {}),
    "widest_heads": (256, 8, [40, 9], {"num_kv_heads": 1}),
    "one_head_each": (128, 1, [70], {}),
    "window": (64, 2, [20, 50], {"window": 24}),
    "soft_cap": (64, 2, [30], {"soft_cap": 5.0}),
    "decode": (64, 4, [1, 1, 0, 1], {"cached": 50}),
    "decode_128": (128, 5, [1, 1], {"cached": 70}),
    "decode_256": (256, 8, [1], {"cached": 90}),
    "decode_window": (64, 8, [1, 1], {"cached": 100, "window": 37}),
    "decode_soft_cap": (64, 4, [1], {"cached": 70, "soft_cap": 5.0}),
    "verify": (128, 8, [3, 1, 4], {"cached": 60}),
    "split_keys": (64, 16, [1], {"cached": 600, "num_kv_heads": 1}),
    "decode_pairs": (128, 2, [1, 1], {"cached": 90}),
    "decode_one_head_each": (64, 1, [1, 0, 2], {"cached": 40}),
    "three_heads_split_keys": (64, 3, [1], {"cached": 520, "num_kv_heads": 1}),
    "plain_prefill": (96, 2, [20, 3], {}),
    "plain_decode": (96, 2, [1, 1], {"cached": 90}),
    "plain_split_keys": (96, 3, [1], {"cached": 520, "num_kv_heads": 1}),
}


def check(given: Inputs, dtype: str, launches: int) -> None:
    """Compare outputs and their logs of sums with the reference, and count what was launched."""
    device = native()
    want_lse = np.empty(given["q"].shape[:2], np.float32)
    use_backend("numpy")
    want = ops.paged_attention(**given, lse=want_lse)
    use_backend(NAME)
    lse, uploaded = device.zeros(want_lse.shape, np.float32), on_device(device, given)
    before = device.num_launches()

    got, has_used = has_used_tensor_cores(
        "paged_attention", lambda: ops.paged_attention(**uploaded, lse=lse)
    )

    is_wanted = dtype != "f32" and given["q"].shape[2] in (64, 128, 256)
    assert has_used in (is_wanted, None)
    assert device.num_launches() - before == launches
    for ours, reference in ((got.numpy(), want), (lse.numpy(), want_lse)):
        difference = compare(ours, reference, "attention", dtype)
        assert difference.is_within, difference.reason


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", CASES)
def test_attention_in_halves_equals_the_reference(dtype: str, name: str) -> None:
    head_dim, group, lens, more = CASES[name]
    launches = 2 if name.endswith("split_keys") else 1
    check(inputs(dtype, head_dim, group, lens, **more), dtype, launches)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", ["wide_heads", "widest_heads", "decode_128", "split_keys"])
def test_fp8_cache_on_tensor_cores_equals_the_reference(dtype: str, name: str) -> None:
    head_dim, group, lens, more = CASES[name]
    given = inputs(dtype, head_dim, group, lens, **more)
    fp8 = DTYPES["fp8_e4m3"].numpy
    given |= {name: given[name].astype(fp8) for name in ("k_cache", "v_cache")}
    check(given, dtype, 2 if name.endswith("split_keys") else 1)


@pytest.mark.parametrize("lens", [[1, 1], [40, 3]])
def test_tiles_of_f32_follow_one_another(lens: list[int]) -> None:
    check(inputs("f32", 24, 2, lens, cached=70), "f32", 1)


def test_entries_before_the_window_may_hold_anything() -> None:
    given, device = inputs("f16", 64, 2, [40, 30], window=8), native()
    use_backend(NAME)
    want = ops.paged_attention(**on_device(device, given)).numpy()
    given["block_tables"] = given["block_tables"].copy()
    given["block_tables"][1, 0] = 1 << 30  # request 1 has 30 tokens before its first query

    got = ops.paged_attention(**on_device(device, given)).numpy()

    assert got.tobytes() == want.tobytes()


def test_merged_lse_may_be_that_of_a_part() -> None:
    rng, device = np.random.default_rng(5), native()
    parts = [rng.standard_normal((9, 3, 40), np.float32) for _ in range(2)]
    sums = [rng.standard_normal((9, 3), np.float32) for _ in range(2)]
    use_backend("numpy")
    want_lse = np.empty((9, 3), np.float32)
    want = ops.merge_attn_states(parts[0], sums[0], parts[1], sums[1], lse=want_lse)
    use_backend(NAME)
    out_a, lse_a, out_b, lse_b = map(device.upload, (parts[0], sums[0], parts[1], sums[1]))

    ops.merge_attn_states(out_a, lse_a, out_b, lse_b, out=out_a, lse=lse_a)

    np.testing.assert_allclose(out_a.numpy(), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lse_a.numpy(), want_lse, rtol=1e-5, atol=1e-5)

"""Attention on tensor cores, with windows and tables that cases of an op do not have."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import use_backend
from pyvt.tensor.dtype import DTYPES
from pyvt.testing.tolerance import compare
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, native

pytestmark = [NEEDS_DEVICE]

BLOCK = 16
Inputs = dict[str, Any]


def inputs(dtype: str, head_dim: int, group: int, query_lens: list[int], **more: Any) -> Inputs:
    """A step of requests that have 0, 30, 60, … tokens in the cache already."""
    rng = np.random.default_rng(head_dim + group)
    kind, num_kv_heads = DTYPES[dtype].numpy, 2
    seq_lens = np.array([n + 30 * i for i, n in enumerate(query_lens)], np.int32)
    width = int(-(-seq_lens.max() // BLOCK))
    pool = (len(query_lens) * width + 1, num_kv_heads, BLOCK, head_dim)
    order = rng.permutation(pool[0] - 1).astype(np.int32) + 1
    caches = (rng.standard_normal(pool).astype(kind).transpose(0, 2, 1, 3) for _ in range(2))
    q = rng.standard_normal((sum(query_lens), num_kv_heads * group, head_dim)).astype(kind)
    k_cache, v_cache = caches
    return {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_tables": order.reshape(len(query_lens), width),
        "seq_lens": seq_lens,
        "cu_seqlens_q": np.cumsum([0, *query_lens]).astype(np.int32),
        "scale": head_dim**-0.5,
        **more,
    }


def on_device(device: ModuleType, given: Inputs) -> Inputs:
    return {k: device.upload(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}


CASES = {
    "one_tile": (64, 2, [40], {}),
    "tiles_and_group": (64, 4, [70, 1, 33], {}),
    "wide_heads": (128, 2, [65, 3], {}),
    "one_head_each": (128, 1, [70], {}),
    "window": (64, 2, [20, 50], {"window": 24}),
    "soft_cap": (64, 2, [30], {"soft_cap": 5.0}),
}


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("head_dim", "group", "lens", "more"), CASES.values(), ids=CASES.keys())
def test_prefill_on_tensor_cores_equals_the_reference(
    dtype: str, head_dim: int, group: int, lens: list[int], more: Inputs
) -> None:
    given, device = inputs(dtype, head_dim, group, lens, **more), native()
    want_lse = np.empty(given["q"].shape[:2], np.float32)
    use_backend("numpy")
    want = ops.paged_attention(**given, lse=want_lse)
    use_backend(NAME)
    lse = device.zeros(want_lse.shape, np.float32)

    got = ops.paged_attention(**on_device(device, given), lse=lse)

    for ours, reference in ((got.numpy(), want), (lse.numpy(), want_lse)):
        difference = compare(ours, reference, "attention", dtype)
        assert difference.is_within, difference.reason


def test_entries_before_the_window_may_hold_anything() -> None:
    given, device = inputs("f16", 64, 2, [40, 30], window=8), native()
    use_backend(NAME)
    want = ops.paged_attention(**on_device(device, given)).numpy()
    given["block_tables"] = given["block_tables"].copy()
    given["block_tables"][1, 0] = 1 << 30  # request 1 has 30 tokens before its first query

    got = ops.paged_attention(**on_device(device, given)).numpy()

    assert got.tobytes() == want.tobytes()

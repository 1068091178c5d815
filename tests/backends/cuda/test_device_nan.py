"""NaN and what no number holds: chosen and kept as the reference says."""

import ml_dtypes
import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import use_backend
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, native

pytestmark = [NEEDS_DEVICE]

NAN = np.nan
ROWS = np.array(
    [[NAN, 1, 3, 2], [NAN, NAN, NAN, NAN], [4, NAN, -np.inf, 2], [-np.inf, NAN, -np.inf, NAN]],
    np.float32,
)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_best_tokens_of_a_row_with_nan_are_those_of_the_reference(count: int) -> None:
    """NaN has the place of -inf."""
    tokens = np.array([1, 0, 2, 3])
    use_backend("numpy")
    want = ops.top_logprobs(ROWS, tokens, count)
    use_backend(NAME)

    got = ops.top_logprobs(native().upload(ROWS), native().upload(tokens), count)

    np.testing.assert_array_equal(got[0].numpy(), want[0])
    np.testing.assert_array_equal(got[1].numpy(), want[1])


@pytest.mark.parametrize("cache_dtype", ["float16", "float8_e4m3fn", "bfloat16", "float32"])
def test_cache_holds_what_is_not_finite_or_too_large_as_the_reference(cache_dtype: str) -> None:
    k = np.array([np.inf, -np.inf, NAN, 1e6, -1e6, 65519, 448, 500], np.float32).reshape(1, 1, 8)
    slots = np.array([1], np.int64)
    dtype = np.dtype(getattr(ml_dtypes, cache_dtype, cache_dtype))
    caches = [np.zeros((1, 2, 1, 8), dtype) for _ in range(2)]
    on_device = [native().upload(cache) for cache in caches]
    use_backend("numpy")
    ops.reshape_and_cache(k, -k, *caches, slots)
    use_backend(NAME)

    ops.reshape_and_cache(*map(native().upload, (k, -k)), *on_device, native().upload(slots))

    for got, want in zip(on_device, caches, strict=True):
        np.testing.assert_array_equal(got.numpy().astype(np.float32), want.astype(np.float32))

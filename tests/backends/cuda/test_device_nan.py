"""Rows with NaN: what is chosen of them lies in the row, as the reference says."""

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

"""Rows with many equal logits: borders go through ties, and the lowest ids stay."""

import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import use_backend
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, native

pytestmark = [NEEDS_DEVICE]

VOCAB = 1100  # more than a block has threads


@pytest.mark.parametrize("values", [(0.0,), (0.0, 1.0), (3.0, -40.0, -np.inf), (2.0, -200.0)])
@pytest.mark.parametrize("top_p", [0.0, 0.0013, 0.25, 0.50001, 0.9999])
def test_best_tokens_of_equal_logits_are_those_of_the_reference(
    values: tuple[float, ...], top_p: float
) -> None:
    rng = np.random.default_rng(1)
    top_k = np.array([0, 1, 2, 33, VOCAB - 1, VOCAB, VOCAB + 1], np.int32)
    logits = rng.choice(np.array(values, np.float32), (len(top_k), VOCAB))
    shares = np.full(len(top_k), top_p)
    use_backend("numpy")
    want = ops.apply_top_k_top_p(logits, top_k, shares)
    use_backend(NAME)

    got = ops.apply_top_k_top_p(*map(native().upload, (logits, top_k, shares)))

    np.testing.assert_array_equal(got.numpy(), want)

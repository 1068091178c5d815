"""Fused linear layers over parts of equal and of different types."""

from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.layers.linear import FusedLinear
from pyvt.quant import WeightSettings
from pyvt.tensor.dtype import BF16, F32, Q4_0, Q8_0, DType
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.random_blocks import random_weight
from pyvt.testing.tolerance import compare

PARTS = {"q": 6, "k": 3, "v": 3}


def _tensor(rng: np.random.Generator, dtype: DType, rows: int) -> Any:
    if dtype.is_block:
        return random_weight(rng, dtype, rows, 64)
    return rng.standard_normal((rows, 64)).astype(dtype.numpy)


def _plain(tensor: Any) -> Any:
    return ops.dequantize(tensor) if isinstance(tensor, QuantTensor) else tensor.astype(np.float32)


@pytest.mark.parametrize("is_expanded", [True, False], ids=["expanded", "as-stored"])
@pytest.mark.parametrize(
    ("dtypes", "num_parts"),
    [
        pytest.param((F32, F32, F32), 1, id="f32"),
        pytest.param((Q8_0, Q8_0, Q8_0), 1, id="one-format"),
        pytest.param((Q8_0, Q4_0, Q8_0), 3, id="two-formats"),
        pytest.param((BF16, Q4_0, F32), 3, id="plain-and-packed"),
    ],
)
def test_fused_equals_its_parts(
    dtypes: tuple[DType, ...], num_parts: int, is_expanded: bool
) -> None:
    rng = np.random.default_rng(0)
    settings = WeightSettings(dtype=F32, is_expanded=is_expanded)
    layer = FusedLinear(64, PARTS, bias=True)
    assert layer.bias is not None
    bias = rng.standard_normal(12).astype(np.float32)
    weights = [_tensor(rng, d, n) for d, n in zip(dtypes, PARTS.values(), strict=True)]
    for slot, weight in zip(layer.weight.slots, weights, strict=True):
        layer.weight.place(slot, weight)
    for slot, piece in zip(layer.bias.slots, np.split(bias, [6, 9]), strict=True):
        layer.bias.place(slot, piece)
    layer.weight.finish(settings.convert, settings.prepack)
    layer.bias.finish(settings.convert, settings.prepack)
    layer.after_load(settings)
    x = rng.standard_normal((5, 64)).astype(np.float32)

    got = layer(x)

    want = x @ np.concatenate([_plain(w) for w in weights]).T + bias
    assert len(layer.weight.parts) == (1 if is_expanded else num_parts)
    difference = compare(got, want, "model_self", "f32")
    assert difference.is_within, difference.reason

"""Launches of a decode step: what docs/cuda.md counts on paper."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.dispatch import Candidate, Op, tapped, use_backend
from pyvt.tensor.dtype import BF16
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, ModelCase
from pyvt.testing.model_runs import all_logits, load_case, write_case
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, native

pytestmark = [NEEDS_DEVICE]

# Heads normed, turned and cached; attention; qkv, o, gate and up, down; two norms that add, and
# the activation.
DENSE = 9
# Convolution and delta rule, 3 products for them; two norms that add; router, 4 launches of
# experts; the shared expert: gate and up, down, its gate, activation, sum.
LINEAR_MOE = 17
# As dense without its MLP, a gate of the output; the experts.
FULL_MOE = 18
# Embedding, the first norm, lm_head. A step also checks logits and finds the most likely tokens.
AROUND = 3


def launches_of_a_token(folder: Path, name: str, layer_types: list[str]) -> Counter[str]:
    """Return the kernels that each op launches for one token of a tiny model."""
    own = {"num_hidden_layers": len(layer_types), "layer_types": layer_types}
    case = ModelCase("launches", MODEL_CASES_BY_NAME[name].config | own)
    path = write_case(case, folder / "m", dtype=BF16)
    use_backend(NAME)
    model = load_case(path, expand="never").model
    found: Counter[str] = Counter()

    def count(op: Op, candidate: Candidate, args: tuple[Any, ...]) -> None:
        before = native().num_launches()
        op.run(candidate, args)
        found[op.name] += native().num_launches() - before

    with tapped(count):
        all_logits(model, [(np.arange(1), np.arange(1))])
    use_backend("numpy")
    return found


@pytest.mark.parametrize(
    ("name", "layer_types", "want"),
    [
        ("qwen3", ["full_attention"] * 2, 2 * DENSE + AROUND),
        (
            "qwen3_5_moe",
            ["linear_attention", "linear_attention", "full_attention"],
            2 * LINEAR_MOE + FULL_MOE + AROUND,
        ),
    ],
)
def test_launches_of_a_decode_step(
    name: str, layer_types: list[str], want: int, tmp_path: Path
) -> None:
    found = launches_of_a_token(tmp_path, name, layer_types)

    assert found.total() == want, found

"""Launches of a captured decode step: what docs/cuda.md counts on paper."""

from pathlib import Path
from typing import Any

import pytest

from pyvt.dispatch import use_backend
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME
from tests.backends.cuda.device_engine import engine_on, tokens_of
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE
from tests.engine.tiny_model import CONFIG, write_tiny_model

pytestmark = [NEEDS_DEVICE]

# Norms of queries and keys, rotary, cache, attention; qkv, o, gate and up, down; two norms that
# add, and the activation.
DENSE = 12
# Convolution and delta rule, 3 products for them; two norms that add; router, 4 launches of
# experts; the shared expert: gate and up, down, its gate, activation, sum.
LINEAR_MOE = 17
# As dense without its MLP, a gate of the output; the experts.
FULL_MOE = 21
# Embedding, the first norm, lm_head, the check of logits, the most likely tokens.
AROUND = 5


def launches_of_a_step(folder: Path, name: str, layer_types: list[str]) -> int:
    own = {"num_hidden_layers": len(layer_types), "layer_types": layer_types}
    same = {key: CONFIG[key] for key in ("vocab_size", "eos_token_id")}
    config: dict[str, Any] = MODEL_CASES_BY_NAME[name].config | same | own
    engine = engine_on(str(write_tiny_model(folder / "m", config=config)), NAME)
    tokens_of(engine, ([5, 6, 7],), temperature=0.0)
    return len(engine.core.runner.graphs.plan_of(1))


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
    found = launches_of_a_step(tmp_path, name, layer_types)
    use_backend("numpy")

    assert found == want

"""Whole tiny models in halves with heads as wide as real ones: the paths over tensor cores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyvt.dispatch import use_backend
from pyvt.tensor.dtype import BF16, F16, F64, DType
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, ModelCase
from pyvt.testing.model_runs import all_logits, load_case, write_case
from pyvt.testing.tolerance import compare
from tests.backends.cuda.device_engine import engine_on, tokens_of
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, native
from tests.engine.tiny_model import HYBRID_CONFIG, write_tiny_model

pytestmark = [NEEDS_DEVICE]

WIDE = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "head_dim": 64}
LINEAR: dict[str, Any] = {
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_value_heads": 4,
    "rope_parameters": MODEL_CASES_BY_NAME["qwen3_5"].config["rope_parameters"]
    | {"mrope_section": [4, 2, 2]},
}
TWO_LAYERS = ["linear_attention", "full_attention"]
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"num_key_value_heads": 1},
    "qwen3_moe": {"moe_intermediate_size": 32},
    "qwen3_5": {**LINEAR, "num_hidden_layers": 2, "layer_types": TWO_LAYERS},
}
NUM_TOKENS = 40


def uses_of_tensor_cores() -> dict[str, int]:
    """By op, how often warps used them; empty on a card, which does not count."""
    module = native()
    return dict(module.tensor_core_uses()) if module.IS_SIMULATED else {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_tiny_model_in_halves(kind: str, dtype: DType, tmp_path: Path) -> None:
    given = MODEL_CASES_BY_NAME[kind].config
    case = ModelCase(kind, given | WIDE | KINDS[kind])
    path = write_case(case, tmp_path / "m", dtype=BF16)
    rng = np.random.default_rng(0)
    prompts = [(rng.integers(0, given["vocab_size"], NUM_TOKENS), np.arange(NUM_TOKENS))]
    use_backend("numpy")
    want = all_logits(load_case(path, dtype=F64, expand="never").model, prompts)[0]
    use_backend(NAME)
    model = load_case(path, dtype=dtype, expand="never").model
    before = uses_of_tensor_cores()

    whole = all_logits(model, prompts)[0]
    # The last tokens one by one, as in decode steps.
    cut = all_logits(model, prompts, steps=[[24], [13], [1], [1], [1]])[0]

    for each in (whole, cut):
        difference = compare(each, want, "model", dtype.name)
        assert difference.is_within, difference.reason
    if native().IS_SIMULATED:
        after = uses_of_tensor_cores()
        assert after["paged_attention"] > before.get("paged_attention", 0)


def test_hybrid_engine_in_bf16_with_its_own_head(tmp_path: Path) -> None:
    config = HYBRID_CONFIG | WIDE | LINEAR
    path = str(write_tiny_model(tmp_path / "m", config=config))
    prompts = ([5, 6, 7, 5, 6, 7], [8, 9, 10, 11] * 5)
    settings = {"dtype": "bf16", "kv_cache_dtype": "bf16"}
    want = tokens_of(engine_on(path, NAME, **settings), prompts, temperature=0.0)

    engine = engine_on(path, NAME, speculation="mtp", num_speculative_tokens=2, **settings)

    assert tokens_of(engine, prompts, temperature=0.0) == want
    assert engine.core.stats.spec_decode_num_draft_tokens > 0

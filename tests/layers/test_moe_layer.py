"""SparseMoE: the shared expert, by hand; which layers are sparse."""

from dataclasses import replace

import numpy as np

from pyvt.config.model import ModelConfig
from pyvt.config.moe import MoEConfig
from pyvt.layers.mlp import GatedMLP
from pyvt.layers.moe import SparseMoE, feed_forward
from pyvt.quant import WeightSettings
from pyvt.tensor.dtype import F64
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME

SIZES = MoEConfig(
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=6,
    norm_topk_prob=True,
    shared_expert_intermediate_size=5,
)
SETTINGS = WeightSettings(dtype=F64)


def _filled(layer: SparseMoE) -> dict[str, np.ndarray]:
    """Fill a layer with random weights; return them by name."""
    rng, weights = np.random.default_rng(0), {}
    for name, parameter, slot in layer.named_slots():
        if slot is not parameter.stack:
            weights[name] = rng.standard_normal(slot.shape) * 0.4
            parameter.place(slot, weights[name])
    for parameter in {id(p): p for _, p, _ in layer.named_slots()}.values():
        parameter.finish(SETTINGS.convert, SETTINGS.prepack)
    for module in layer.modules():
        module.after_load(SETTINGS)
    return weights


def test_shared_expert_is_added_by_the_sigmoid_of_its_gate() -> None:
    layer = SparseMoE(8, SIZES)
    w = _filled(layer)
    x = np.random.default_rng(1).standard_normal((3, 8))

    def mlp(prefix: str, row: np.ndarray) -> np.ndarray:
        gate, up = (w[f"{prefix}.{name}_proj.weight"] @ row for name in ("gate", "up"))
        return w[f"{prefix}.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)

    got = layer(x)

    for row, result in zip(x, got, strict=True):
        shares = np.exp(w["gate.weight"] @ row)
        best = np.argsort(-shares)[:2]
        want = sum(shares[e] / shares[best].sum() * mlp(f"experts.{e}", row) for e in best)
        gate = 1 / (1 + np.exp(-(w["shared_expert_gate.weight"] @ row)))
        np.testing.assert_allclose(result, want + gate * mlp("shared_expert", row), rtol=1e-12)


def test_checkpoint_names_of_a_layer() -> None:
    names = {name for name, _, _ in SparseMoE(8, SIZES).named_slots("mlp.")}

    assert {"mlp.gate.weight", "mlp.experts.up_proj.weight", "mlp.experts.3.up_proj.weight"} < names
    assert {"mlp.shared_expert.down_proj.weight", "mlp.shared_expert_gate.weight"} < names


def test_layers_without_experts_have_a_plain_mlp() -> None:
    config = ModelConfig.from_hf(MODEL_CASES_BY_NAME["qwen3_moe_some_dense"].config)

    kinds = [type(feed_forward(config, i)) for i in range(5)]

    assert kinds == [GatedMLP, SparseMoE, GatedMLP, GatedMLP, GatedMLP]
    assert type(feed_forward(config, 5)) is SparseMoE
    assert type(feed_forward(replace(config, moe=None), 1)) is GatedMLP

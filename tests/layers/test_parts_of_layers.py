"""A device may hold a part: layers take heads, experts and vocabulary from what they are made with.

Each layer is made whole, and twice with a config of half the heads, experts, rows or columns, with
the weights that such a half has. The halves together are the whole.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyvt.config.model import ModelConfig
from pyvt.layers.attention import Attention
from pyvt.layers.embedding import Embedding
from pyvt.layers.forward_batch import ForwardBatch, LayerCache
from pyvt.layers.gated_delta_net import GatedDeltaNet
from pyvt.layers.linear import Linear
from pyvt.layers.mlp import GatedMLP
from pyvt.layers.module import Module
from pyvt.layers.moe import Experts
from pyvt.layers.rotary import RotaryEmbedding
from pyvt.quant import WeightSettings
from pyvt.tensor.dtype import F64
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME

Array = np.ndarray[Any, Any]
SETTINGS = WeightSettings(dtype=F64)
HALVES = (0, 1)
NUM_TOKENS, BLOCK_SIZE = 5, 4
POSITIONS = np.array([0, 1, 2, 0, 1])
SHARED: dict[str, Array] = {}


def half_of(array: Array, half: int, *, axis: int = 0) -> Array:
    """Return the first or the second half of an axis."""
    return np.split(array, 2, axis=axis)[half]


def filled(layer: Module, weights: Mapping[str, Array] = SHARED) -> dict[str, Array]:
    """Load a layer with weights, random ones where none are given; return them by name."""
    rng, used = np.random.default_rng(3), {}
    for name, parameter, slot in layer.named_slots():
        if slot is not parameter.stack:
            used[name] = weights.get(name, rng.standard_normal(slot.shape) * 0.4)
            assert used[name].shape == slot.shape, name
            parameter.place(slot, used[name])
    for parameter in {id(p): p for _, p, _ in layer.named_slots()}.values():
        parameter.finish(SETTINGS.convert, SETTINGS.prepack)
    for module in layer.modules():
        module.after_load(SETTINGS)
    return used


def batch_of(caches: LayerCache) -> ForwardBatch:
    """A step of two requests, one of 3 tokens and one of 2, with an empty cache or state each."""
    return ForwardBatch(
        num_tokens=NUM_TOKENS,
        num_reqs=2,
        max_seqlen_q=3,
        max_seq_len=3,
        positions=POSITIONS,
        slot_mapping=np.array([[4, 5, 6, 8, 9]]),
        block_tables=np.array([[[1], [2]]], np.int32),
        seq_lens=np.array([3, 2], np.int32),
        cu_seqlens_q=np.array([0, 3, 5], np.int32),
        logits_indices=np.array([2, 4], np.int32),
        kv_caches=(caches,),
        layer_groups=(0,),
        initial_slots=np.array([-1, -1], np.int32),
        state_slots=np.array([-1, -1, 1, -1, 2], np.int32),
    )


def inputs(size: int) -> Array:
    return np.random.default_rng(5).standard_normal((NUM_TOKENS, size))


def attention(config: ModelConfig, weights: Mapping[str, Array] = SHARED) -> tuple[Array, Any]:
    """Return what a layer gives for the step, with its weights."""
    layer = Attention(config, 0, RotaryEmbedding(config.rope, 8, F64))
    used = filled(layer, weights)
    size = (3, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    return layer(inputs(config.hidden_size), batch_of((np.zeros(size), np.zeros(size)))), used


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen3_5"])
def test_attention_of_half_the_heads(name: str) -> None:
    """Query heads go with their KV heads; a gated query has its gate beside it."""
    config = ModelConfig.from_hf(MODEL_CASES_BY_NAME[name].config)
    config = replace(config, num_heads=4, num_kv_heads=2)
    want, weights = attention(config)
    part = replace(config, num_heads=2, num_kv_heads=1)

    got = []
    for half in HALVES:
        own = {
            slot: half_of(array, half, axis=int(slot.startswith("o_proj")))
            for slot, array in weights.items()
            if "_proj.weight" in slot
        }
        got.append(attention(part, weights | own)[0])

    np.testing.assert_allclose(got[0] + got[1], want, rtol=1e-11, atol=1e-12)


def test_linear_attention_of_half_the_heads() -> None:
    config = ModelConfig.from_hf(MODEL_CASES_BY_NAME["qwen3_next"].config)
    assert config.linear_attention is not None
    shape = replace(config.linear_attention, num_key_heads=2, num_value_heads=4)
    part = replace(shape, num_key_heads=1, num_value_heads=2)
    assert set(shape.projections) == {"in_proj_qkvz", "in_proj_ba"}
    sizes = np.cumsum([shape.key_size, shape.key_size])

    def run(shape: Any, weights: Mapping[str, Array] = SHARED) -> tuple[Array, dict[str, Array]]:
        layer = GatedDeltaNet(config.hidden_size, shape, 0, config.rms_norm_eps)
        used = filled(layer, weights)
        states = (
            np.zeros((3, shape.conv_kernel - 1, shape.num_channels)),
            np.zeros((3, shape.num_value_heads, shape.key_head_dim, shape.value_head_dim)),
        )
        return layer(inputs(config.hidden_size), batch_of(states)), used

    want, weights = run(shape)
    got = []
    for half in HALVES:
        own = {
            slot: half_of(array, half, axis=int(slot.startswith("out_proj")))
            for slot, array in weights.items()
            if slot not in ("norm.weight", "conv1d.weight")
        }
        q_k_v = np.split(weights["conv1d.weight"], sizes)
        own["conv1d.weight"] = np.concatenate([half_of(channels, half) for channels in q_k_v])
        got.append(run(part, weights | own)[0])

    np.testing.assert_allclose(got[0] + got[1], want, rtol=1e-11, atol=1e-12)


def test_mlp_of_half_its_columns() -> None:
    whole = GatedMLP(8, 12)
    weights, x = filled(whole), inputs(8)

    got = []
    for half in HALVES:
        own = {
            slot: half_of(array, half, axis=int(slot.startswith("down")))
            for slot, array in weights.items()
        }
        part = GatedMLP(8, 6)
        filled(part, own)
        got.append(part(x))

    np.testing.assert_allclose(got[0] + got[1], whole(x), rtol=1e-12, atol=1e-13)


def test_half_of_the_experts() -> None:
    """A token's other experts have no share here, whichever they are."""
    whole = Experts(6, 8, 5)
    weights, x = filled(whole), inputs(8)
    rng = np.random.default_rng(7)
    ids = np.argsort(rng.random((NUM_TOKENS, 6)))[:, :3].astype(np.int32)
    shares = rng.random((NUM_TOKENS, 3))

    got = []
    for half in HALVES:
        own = {f"{i}.{slot}": weights[f"{i + 3 * half}.{slot}"] for i in range(3) for slot in MLP}
        part = Experts(3, 8, 5)
        filled(part, own)
        is_here = ids // 3 == half
        got.append(part(x, np.where(is_here, ids % 3, 0).astype(np.int32), shares * is_here))

    np.testing.assert_allclose(got[0] + got[1], whole(x, ids, shares), rtol=1e-12, atol=1e-13)


MLP = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")


@pytest.mark.parametrize("is_tied", [True, False])
def test_half_of_the_vocabulary(is_tied: bool) -> None:
    """Rows of tokens are those of one half; logits of both lie side by side."""
    table = np.random.default_rng(9).standard_normal((10, 8))
    token_ids, x = np.array([0, 9, 4, 5, 2]), inputs(8)
    rows, logits = np.zeros((NUM_TOKENS, 8)), []

    for half in HALVES:
        part = Embedding(5, 8, is_tied=is_tied)
        filled(part, {"weight": half_of(table, half)})
        is_here = token_ids // 5 == half
        rows += part(np.where(is_here, token_ids % 5, 0)) * is_here[:, None]
        head = Linear(8, 5)
        filled(head, {"weight": half_of(table, half)})
        logits.append(part.as_linear(x) if is_tied else head(x))

    np.testing.assert_array_equal(rows, table[token_ids].astype(rows.dtype))
    np.testing.assert_allclose(np.concatenate(logits, axis=1), x @ table.T, rtol=1e-12)

"""The tables of GGUF names, both ways."""

import pytest

from pyvt.weights.gguf_names import (
    TENSOR_NAMES,
    WHOLE_NAMES,
    canonical_name,
    fused_qkv_stem,
    gguf_name,
)

ROWS = [
    pytest.param(arch, gguf, canonical, id=f"{arch}-{gguf}")
    for arch, rows in TENSOR_NAMES.items()
    for gguf, canonical in rows.items()
]


@pytest.mark.parametrize("suffix", [".weight", ".bias"])
@pytest.mark.parametrize(("arch", "gguf", "canonical"), ROWS)
def test_every_row_translates_both_ways(arch: str, gguf: str, canonical: str, suffix: str) -> None:
    stored, name = gguf.format(i=12) + suffix, canonical.format(i=12) + suffix

    assert canonical_name(arch, stored) == name
    assert gguf_name(arch, name) == stored


@pytest.mark.parametrize("arch", WHOLE_NAMES)
def test_names_without_a_suffix_translate_both_ways(arch: str) -> None:
    for gguf, canonical in WHOLE_NAMES[arch].items():
        stored, name = gguf.format(i=3), canonical.format(i=3)

        assert canonical_name(arch, stored) == name
        assert gguf_name(arch, name) == stored


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("blk.4.nextn.eh_proj.weight", "mtp.fc.weight"),
        ("blk.4.nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"),
        ("blk.4.attn_q.weight", "mtp.layers.0.self_attn.q_proj.weight"),
        ("blk.5.ffn_up_exps.weight", "mtp.layers.1.mlp.experts.up_proj.weight"),
        ("blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"),
    ],
)
def test_blocks_behind_the_layers_are_those_of_the_draft_head(stored: str, name: str) -> None:
    assert canonical_name("qwen35moe", stored, 4) == name
    assert gguf_name("qwen35moe", name, 4) == stored


@pytest.mark.parametrize(
    ("arch", "stored"),
    [
        ("llama", "blk.0.attn_q_norm.weight"),
        ("llama", "blk.{i}.attn_q.weight"),
        ("llama", "blk.x.attn_q.weight"),
        ("llama", "blk.0.token_embd.weight"),
        ("llama", "token_embd"),
        ("llama", "rope_freqs.weight"),
        ("llama", "model.layers.0.attn_q.weight"),
        ("gemma", "token_embd.weight"),
        ("qwen35", "blk.0.ffn_norm.weight"),
        ("qwen35", "blk.4.nextn.eh_proj.weight"),
        ("qwen35", "blk.0.ssm_a.weight"),
    ],
)
def test_unknown_name_has_no_canonical_one(arch: str, stored: str) -> None:
    assert canonical_name(arch, stored) is None


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ("blk.3.attn_qkv.weight", ("model.layers.3.self_attn.", ".weight")),
        ("blk.3.attn_qkv.bias", ("model.layers.3.self_attn.", ".bias")),
        ("blk.3.attn_q.weight", None),
        ("attn_qkv.weight", None),
    ],
)
def test_fused_qkv_stem_is_split(stored: str, expected: tuple[str, str] | None) -> None:
    assert fused_qkv_stem("qwen3", stored) == expected

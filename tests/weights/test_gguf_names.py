"""The tables of GGUF names, both ways."""

import pytest

from pyvt.weights.gguf_names import TENSOR_NAMES, canonical_name, fused_qkv_stem, gguf_name

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

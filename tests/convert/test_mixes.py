"""Which element type each tensor gets."""

import pytest

from pyvt.convert.mixes import FILE_TYPES, file_type_named, tensor_dtype
from pyvt.errors import ConfigError


def dtype_of(
    file_type: str, name: str, *shape: int, is_tied: bool = False, layers: int = 28
) -> str:
    wanted = file_type_named(file_type)
    return tensor_dtype(wanted, name, shape, num_layers=layers, is_tied=is_tied).name


def test_half_of_the_values_and_downs_of_a_mix_get_more_bits() -> None:
    layers = [dtype_of("q4_k_m", f"blk.{i}.ffn_down.weight", 1024, 3072) for i in range(28)]

    more = [i for i, name in enumerate(layers) if name == "q6_k"]
    assert more == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
    assert set(layers) == {"q4_k", "q6_k"}
    assert dtype_of("q4_k_m", "blk.5.attn_v.weight", 1024, 1024) == "q6_k"
    assert dtype_of("q4_k_m", "blk.5.attn_k.weight", 1024, 1024) == "q4_k"


@pytest.mark.parametrize(
    ("file_type", "untied", "tied"),
    [("q4_k_m", "q4_k", "q6_k"), ("q4_0", "q4_0", "q6_k"), ("q8_0", "q8_0", "q8_0")],
)
def test_an_embedding_that_is_the_head_gets_the_type_of_the_head(
    file_type: str, untied: str, tied: str
) -> None:
    assert dtype_of(file_type, "token_embd.weight", 512, 1024) == untied
    assert dtype_of(file_type, "token_embd.weight", 512, 1024, is_tied=True) == tied
    assert dtype_of(file_type, "output.weight", 512, 1024) == tied


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_norm.weight",
        "blk.3.attn_q_norm.weight",
        "output_norm.weight",
        "blk.1.ffn_gate_inp.weight",
        "blk.1.ffn_gate_inp_shexp.weight",
        "blk.1.ssm_conv1d.weight",
        "blk.1.ssm_a",
        "blk.1.ssm_dt.bias",
        "blk.1.ssm_norm.weight",
        "blk.28.nextn.enorm.weight",
        "rope_freqs.weight",
    ],
)
def test_what_steers_other_weights_is_kept(name: str) -> None:
    assert dtype_of("q4_0", name, 64, 256) == "f32"
    assert dtype_of("f16", name, 64, 256) == "f32"


def test_vectors_are_kept() -> None:
    assert dtype_of("q8_0", "blk.0.attn_q.bias", 256) == "f32"


@pytest.mark.parametrize(
    ("file_type", "columns", "expected"),
    [
        ("q4_k_m", 576, "q5_0"),
        ("q5_k_m", 576, "q5_1"),
        ("q6_k", 576, "q8_0"),
        ("q4_k_m", 80, "f16"),
        ("q8_0", 48, "f16"),
        ("bf16", 7, "bf16"),
    ],
)
def test_rows_that_do_not_fit_take_the_next_type(
    file_type: str, columns: int, expected: str
) -> None:
    assert dtype_of(file_type, "blk.9.attn_q.weight", 64, columns) == expected


def test_an_unknown_type_names_the_near_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'Q4_K_M'"):
        file_type_named("q4_k_n")

    assert file_type_named("q8_0") is FILE_TYPES["Q8_0"]

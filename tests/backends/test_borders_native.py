"""Native ops called without the checks of the public op, as a recorded step calls them.

Whatever would touch memory that is not the call's own is a typed error.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import use_backend
from pyvt.errors import KernelError
from pyvt.ops.packed_layouts import pack_tiles
from pyvt.tensor.dtype import BLOCK_FORMATS, DTYPES
from pyvt.tensor.packed_tensor import TILE16, PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing.random_blocks import random_weight

pytestmark = [
    pytest.mark.native,
]

if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

F32, I64 = np.float32, np.int64


def _f(*shape: int, dtype: Any = F32) -> Any:
    return np.zeros(shape, dtype)


def _i(*values: Any, dtype: Any = I64) -> Any:
    return np.array(values, dtype)


def _blocks(name: str, num_rows: int, num_columns: int) -> QuantTensor:
    return random_weight(np.random.default_rng(0), DTYPES[name], num_rows, num_columns)


def _experts(**changes: Any) -> tuple[Any, ...]:
    call = {
        "out": _f(2, 8),
        "x": _f(2, 8),
        "ids": _i([0], [2]),
        "weights": _f(2, 1),
        "gate": _f(3, 5, 8),
        "up": _f(3, 5, 8),
        "down": _f(3, 8, 5),
        "gate_columns": None,
        "up_columns": None,
        "down_columns": None,
    }
    return (*(call | changes).values(), "none")


def _columns(size: int, last: int) -> Any:
    """Orders of three experts that are used, all of whose last column is one."""
    columns = np.tile(np.arange(size, dtype=np.int32), (3, 1))
    columns[:, -1] = last
    return columns


CACHE = (3, 4, 2, 8)
BAD_CALLS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "id_too_large": ("embedding", (_f(2, 8), _i(0, 5), _f(5, 8))),
    "id_negative": ("embedding", (_f(2, 8), _i(0, -1), _f(5, 8))),
    "output_too_narrow": ("embedding", (_f(2, 7), _i(0, 1), _f(5, 8))),
    "output_too_short": ("embedding", (_f(1, 8), _i(0, 1), _f(5, 8))),
    "quant_id": ("quant_embedding", (_f(1, 32), _i(4), _blocks("q4_0", 4, 32))),
    "quant_columns": ("quant_embedding", (_f(1, 64), _i(0), _blocks("q4_0", 4, 32))),
    "packed_id": ("packed_embedding", (_f(1, 8), _i(20), pack_tiles(_f(20, 8)))),
    "packed_id_negative": ("packed_embedding", (_f(1, 8), _i(-1), pack_tiles(_f(20, 8)))),
    "packed_columns": ("packed_embedding", (_f(1, 9), _i(0), pack_tiles(_f(20, 8)))),
    "packed_rows": ("packed_embedding", (_f(2, 8), _i(0), pack_tiles(_f(20, 8)))),
    "packed_bytes": (
        "packed_embedding",
        (_f(1, 8), _i(0), PackedTensor(DTYPES["f32"], (20, 8), TILE16, _f(2048, dtype=np.uint8))),
    ),
    "router_of_more_than_all": (
        "router_topk",
        (_f(2, 5), _f(2, 5, dtype=np.int32), _f(2, 4), 5, 1),
    ),
    "router_output": ("router_topk", (_f(2, 2), _f(2, 3, dtype=np.int32), _f(2, 4), 2, 1)),
    "expert_too_large": ("fused_experts", _experts(ids=_i([0], [3]))),
    "expert_negative": ("fused_experts", _experts(ids=_i([0], [-1]))),
    "expert_shares": ("fused_experts", _experts(weights=_f(1, 1))),
    "expert_rows": ("fused_experts", _experts(up=_f(3, 6, 8))),
    "expert_down": ("fused_experts", _experts(down=_f(3, 5, 8))),
    "expert_number": ("fused_experts", _experts(down=_f(2, 8, 5))),
    "expert_matrix": ("fused_experts", _experts(gate=_f(5, 8))),
    "expert_bytes": (
        "fused_experts",
        _experts(
            gate=PackedTensor(DTYPES["f32"], (3, 5, 8), TILE16, _f(6144, dtype=np.uint8)),
        ),
    ),
    "expert_columns_too_large": ("fused_experts", _experts(gate_columns=_columns(8, 8))),
    "expert_columns_negative": ("fused_experts", _experts(down_columns=_columns(5, -1))),
    "expert_columns_too_few": ("fused_experts", _experts(up_columns=_columns(7, 0))),
    "expert_columns_of_fewer": ("fused_experts", _experts(up_columns=_columns(8, 0)[:2])),
    "expert_columns_strided": ("fused_experts", _experts(up_columns=_columns(16, 0)[:, ::2])),
    "expert_columns_wide": ("fused_experts", _experts(up_columns=_columns(8, 0).astype(I64))),
    "expert_output": ("fused_experts", _experts(out=_f(2, 7))),
    "shared_gate": ("add_shared_expert", (_f(2, 8), _f(2, 8), _f(2, 8), _f(2, 2))),
    "shared_rows": ("add_shared_expert", (_f(2, 8), _f(2, 8), _f(2, 7), _f(2, 1))),
    "position_too_large": ("rotary_embedding", (_f(1, 2, 8), _f(1, 1, 8), _i(4), _f(4, 8))),
    "position_negative": ("rotary_embedding", (_f(1, 2, 8), _f(1, 1, 8), _i(-1), _f(4, 8))),
    "rotated_too_wide": ("rotary_embedding", (_f(1, 2, 8), _f(1, 1, 8), _i(0), _f(4, 10))),
    "too_few_positions": ("rotary_embedding", (_f(2, 2, 8), _f(2, 1, 8), _i(0), _f(4, 8))),
    "slot_too_large": (
        "reshape_and_cache",
        (_f(*CACHE), _f(*CACHE), _f(1, 2, 8), _f(1, 2, 8), _i(12)),
    ),
    "slot_below_minus_one": (
        "reshape_and_cache",
        (_f(*CACHE), _f(*CACHE), _f(1, 2, 8), _f(1, 2, 8), _i(-2)),
    ),
    "other_heads": (
        "reshape_and_cache",
        (_f(*CACHE), _f(*CACHE), _f(1, 3, 8), _f(1, 3, 8), _i(0)),
    ),
    "turned_slot": (
        "rotate_and_cache",
        (
            *(_f(1, 4, 8), _f(1, 2, 8), _f(*CACHE), _f(*CACHE), _f(1, 2, 8), _f(8), _f(8)),
            *(_i(0), _f(4, 8), _i(12), 1e-6),
        ),
    ),
    "turned_weight": (
        "rotate_and_cache",
        (
            *(_f(1, 4, 8), _f(1, 2, 8), _f(*CACHE), _f(*CACHE), _f(1, 2, 8), _f(7), _f(7)),
            *(_i(0), _f(4, 8), _i(0), 1e-6),
        ),
    ),
    "copy_from": ("copy_blocks", (_f(*CACHE), _f(*CACHE), _i([3, 0]))),
    "copy_to": ("copy_blocks", (_f(*CACHE), _f(*CACHE), _i([0, -1]))),
    "gather": ("gather_blocks", (_f(1, 4, 2, 8), _f(*CACHE), _i(3))),
    "gather_other_size": ("gather_blocks", (_f(1, 4, 2, 9), _f(*CACHE), _i(0))),
    "scatter": ("scatter_blocks", (_f(*CACHE), _f(1, 4, 2, 8), _i(-1))),
    "scatter_other_dtype": (
        "scatter_blocks",
        (_f(*CACHE), _f(1, 4, 2, 8, dtype=np.float16), _i(0)),
    ),
    "shapes_differ": ("add", (_f(3, 4), _f(3, 4), _f(4, 3))),
    "output_smaller": ("silu", (_f(3), _f(4))),
    "odd_gate": ("silu_and_mul", (_f(2), _f(5))),
    "gate_output": ("silu_and_mul", (_f(3), _f(4))),
    "dtype": ("relu", (_f(3, dtype=I64), _f(3, dtype=I64))),
    "row_of_bias": ("apply_logit_bias", (_f(2, 5), _f(2, 5), _i(2), _i(0), _f(1))),
    "token_of_ban": ("apply_banned_ids", (_f(2, 5), _f(2, 5), _i(0), _i(5))),
    "token_of_permission": ("apply_allowed_ids", (_f(2, 5), _f(2, 5), _i(0), _i(-1))),
    "mask": ("apply_token_mask", (_f(2, 5), _f(2, 5), _f(2, 4, dtype=np.bool_))),
    "token_of_output": (
        "apply_penalties",
        (
            _f(1, 5),
            _f(1, 5),
            _i(0),
            _i(5),
            _f(1, dtype=np.bool_),
            _f(1),
            _f(1),
            _f(1),
        ),
    ),
    "temperatures": ("apply_temperature", (_f(2, 5), _f(2, 5), _f(1))),
    "output_ids": ("argmax", (_f(1, dtype=I64), _f(2, 5))),
    "seeds": ("random_sample", (_f(2, dtype=I64), _f(2, 5), _f(1, dtype=np.uint64), _i(0, 0))),
    "drafts_beyond": (
        "rejection_sample",
        (_f(1, 4, dtype=I64), _f(1, dtype=I64), _i(1, 2, 3), _i(1, 2), _i(0, 3)),
    ),
    "drafts_wider": (
        "rejection_sample",
        (_f(1, 2, dtype=I64), _f(1, dtype=I64), _i(1, 2, 3), _i(1, 2), _i(0, 2)),
    ),
    "drafts_without_rows": (
        "rejection_sample",
        (_f(1, 3, dtype=I64), _f(1, dtype=I64), _i(1, 2), _i(1, 2), _i(0, 2)),
    ),
    "chosen_token": (
        "top_logprobs",
        (_f(1, 2, dtype=I64), _f(1, 2), _f(1), _f(1, dtype=I64), _f(1, 5), _i(5)),
    ),
    "more_than_all": (
        "top_logprobs",
        (_f(1, 6, dtype=I64), _f(1, 6), _f(1), _f(1, dtype=I64), _f(1, 5), _i(0)),
    ),
    "merged_lse": (
        "merge_attn_states",
        (_f(2, 2, 8), None, _f(2, 2, 8), _f(2, 1), _f(2, 2, 8), _f(2, 2)),
    ),
}


@pytest.mark.parametrize(("op", "args"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_call_that_leaves_its_memory_is_refused(op: str, args: tuple[Any, ...]) -> None:
    with pytest.raises(KernelError, match=rf"^\[{op}\] "):
        getattr(_native, op)(*args)


@pytest.mark.parametrize("name", [dtype.name for dtype in BLOCK_FORMATS])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_rows_of_every_native_format_have_the_bits_of_the_reference(name: str, dtype: str) -> None:
    # So many runs of columns that every row of a grid is among them.
    weight = random_weight(np.random.default_rng(2), DTYPES[name], 512, 256)
    input_ids = np.concatenate([np.arange(512), [8, 0, 3, 3]])[::-1]
    use_backend("numpy")
    want = ops.quant_embedding(input_ids, weight, dtype=dtype)
    use_backend("cpu")

    got = ops.quant_embedding(input_ids, weight, dtype=dtype)
    packed = ops.packed_embedding(input_ids, pack_tiles(weight), dtype=dtype)

    use_backend("numpy")
    assert got.tobytes() == want.tobytes()
    assert packed.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["f32", "bf16", "f16", "q4_1", "q6_k"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_packed_rows_are_the_rows_of_the_table(name: str, num_threads: int) -> None:
    rng, dtype = np.random.default_rng(3), DTYPES[name]
    columns = 768 if dtype.is_block else 777
    weight = (
        random_weight(rng, dtype, 1003, columns)
        if dtype.numpy is None
        else rng.standard_normal((1003, columns)).astype(dtype.numpy)
    )
    input_ids = np.concatenate([rng.integers(0, 1003, 500), [1002, 0, 1002]])
    want = ops.embedding(input_ids, weight)
    use_backend("cpu")
    _native.set_num_threads(num_threads)

    got = ops.packed_embedding(input_ids, ops.prepack_weight(weight))

    _native.set_num_threads(0)
    use_backend("numpy")
    assert got.dtype == want.dtype
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_f16_cache_saturates_numbers_and_keeps_infinities(name: str) -> None:
    rng = np.random.default_rng(5)
    with np.errstate(over="ignore"):
        k, v = (rng.standard_normal((2, 7, 3, 33), F32) * 6e4).astype(DTYPES[name].numpy)
    k[0, 0, :3] = np.inf, -np.inf, np.nan
    slots = np.array([3, -1, 0, 11, 5, 6, 7])
    caches = [np.zeros((2, 3, 4, 3, 33), np.float16) for _ in range(2)]
    for backend, cache in zip(("numpy", "cpu"), caches, strict=True):
        use_backend(backend)
        ops.reshape_and_cache(k, v, cache[0], cache[1], slots)

    use_backend("numpy")
    np.testing.assert_array_equal(caches[1], caches[0])
    assert np.isfinite(caches[1][1]).all() or name == "f16"
    assert (np.abs(caches[1][1]) == 65504).any() or name == "f16"


@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_fp8_cache_holds_every_number_as_the_reference_rounds_it(name: str) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    wide = (bits.astype(np.uint32) << 16 | 0x8000 * (bits % 2)).view(F32)
    k = (wide if name == "f32" else bits.view(DTYPES[name].numpy)).reshape(-1, 2, 64)
    slots = np.random.default_rng(6).permutation(k.shape[0])
    caches = [np.zeros((2, 32, 16, 2, 64), ml_dtypes.float8_e4m3fn) for _ in range(2)]
    for backend, cache in zip(("numpy", "cpu"), caches, strict=True):
        use_backend(backend)
        ops.reshape_and_cache(k, k[::-1], cache[0], cache[1], slots)

    use_backend("numpy")
    assert caches[1].tobytes() == caches[0].tobytes()


def test_silu_of_a_buffer_may_be_written_over_either_half() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((70, 2 * 300), F32).astype(ml_dtypes.bfloat16)
    use_backend("cpu")
    want = ops.silu_and_mul(x)

    for half in (slice(0, 300), slice(300, 600)):
        buffer = x.copy()
        ops.silu_and_mul(buffer, out=buffer[:, half])
        assert buffer[:, half].tobytes() == want.tobytes()
    use_backend("numpy")

"""Native attention: a token's output has the same bits however its request is run."""

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyvt import backends, ops
from pyvt.dispatch import get_op, use_backend
from pyvt.errors import KernelError
from pyvt.testing.op_cases.attention import POISON_BLOCK, paged_cache
from pyvt.testing.tolerance import compare

pytestmark = [
    pytest.mark.native,
]

if backends.why_not("cpu") is None:
    from pyvt.backends.cpu import _native

    ISAS = _native.isa_names().split()
else:
    ISAS = ["none"]

Array = np.ndarray[Any, Any]
Inputs = dict[str, Any]

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
# Query heads, KV heads, head size, cache dtype: those of small models, and sizes with a tail.
SHAPES = {
    "smollm": (9, 3, 64, BF16),
    "qwen3": (4, 2, 128, BF16),
    "one_group": (2, 2, 96, F32),
    "wide_group": (8, 1, 24, np.dtype(np.float16)),
    "tail": (3, 1, 20, F32),
    "fp8_tail": (6, 2, 20, FP8),
}
SETTINGS: dict[str, Inputs] = {
    "plain": {},
    "window": {"window": 70},
    "narrow_window": {"window": 3},
    "soft_cap": {"soft_cap": 2.0},
}
SEQ_LEN = 200


@pytest.fixture(params=ISAS, autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """One level of the CPU after the other, the backend selected."""
    _native.use_isa(request.param)
    use_backend("cpu")
    yield request.param
    use_backend("numpy")
    _native.set_num_threads(0)
    _native.use_isa("auto")


def _bits(array: Array) -> bytes:
    return array.tobytes()


def _whole(shape: str, seq_lens: list[int], block_size: int = 16) -> Inputs:
    """Every token of every request as a query, in one call."""
    num_heads, num_kv_heads, head_dim, cache_dtype = SHAPES[shape]
    rng = np.random.default_rng(7)
    cache = paged_cache(rng, cache_dtype, seq_lens, (block_size, num_kv_heads, head_dim))
    q = rng.standard_normal((sum(seq_lens), num_heads, head_dim), np.float32)
    return {
        "q": q,
        **cache,
        "cu_seqlens_q": np.cumsum([0, *seq_lens], dtype=np.int32),
        "scale": head_dim**-0.5,
    }


def _part(whole: Inputs, request: int, begin: int, end: int) -> Inputs:
    """The queries ``begin`` to ``end`` of one request, with the cache as it stands then."""
    start = int(whole["cu_seqlens_q"][request])
    return whole | {
        "q": whole["q"][start + begin : start + end],
        "block_tables": whole["block_tables"][request : request + 1],
        "seq_lens": np.array([end], np.int32),
        "cu_seqlens_q": np.array([0, end - begin], np.int32),
    }


def _attend(inputs: Inputs, **settings: Any) -> Array:
    num_before = get_op("paged_attention").num_reference_calls
    result = ops.paged_attention(**inputs, **settings)
    assert get_op("paged_attention").num_reference_calls == num_before
    return result


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_has_the_same_bits_decoded_and_prefilled(
    shape: str, settings: Inputs, isa: str
) -> None:
    whole = _whole(shape, [SEQ_LEN])

    prefilled = _attend(whole, **settings)

    for position in (0, 1, 62, 63, 64, 65, 127, 128, SEQ_LEN - 1):
        decoded = _attend(_part(whole, 0, position, position + 1), **settings)
        assert _bits(decoded[0]) == _bits(prefilled[position]), position


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk", [5, 64, 100])
def test_chunks_of_any_size_give_the_same_bits(shape: str, chunk: int) -> None:
    whole = _whole(shape, [SEQ_LEN])

    chunks = [
        _attend(_part(whole, 0, begin, min(begin + chunk, SEQ_LEN)))
        for begin in range(0, SEQ_LEN, chunk)
    ]

    assert _bits(np.concatenate(chunks)) == _bits(_attend(whole))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_request_has_the_same_bits_alone_and_in_a_batch(shape: str) -> None:
    seq_lens = [70, 0, 1, 200, 64]
    whole = _whole(shape, seq_lens)

    together = _attend(whole)

    starts = whole["cu_seqlens_q"]
    for r, seq_len in enumerate(seq_lens):
        alone = _attend(_part(whole, r, 0, seq_len))
        assert _bits(alone) == _bits(together[starts[r] : starts[r + 1]]), r


@pytest.mark.parametrize("num_queries", [1, 3, SEQ_LEN])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_number_of_threads_gives_the_same_bits(shape: str, num_queries: int) -> None:
    inputs = _part(_whole(shape, [SEQ_LEN]), 0, SEQ_LEN - num_queries, SEQ_LEN)
    lses = [np.empty(inputs["q"].shape[:2], np.float32) for _ in range(4)]
    results = []

    for count, lse in zip((1, 2, 3, 7), lses, strict=True):
        _native.set_num_threads(count)
        results.append(_attend(inputs, lse=lse))

    assert len({_bits(result) for result in results}) == 1
    assert len({_bits(lse) for lse in lses}) == 1


def test_a_long_context_is_cut_over_threads_to_the_same_bits() -> None:
    inputs = _part(_whole("smollm", [3000]), 0, 2999, 3000)
    results = []

    for count in (1, 2, 5):
        _native.set_num_threads(count)
        results.append(_attend(inputs))

    assert len({_bits(result) for result in results}) == 1


@pytest.mark.parametrize("block_size", [1, 7, 64, 100])
def test_block_size_and_order_do_not_change_bits(block_size: int) -> None:
    whole = _whole("smollm", [SEQ_LEN])
    flat = {}
    for name in ("k_cache", "v_cache"):
        tokens = whole[name][whole["block_tables"][0, : -(-SEQ_LEN // 16)]]
        flat[name] = tokens.reshape(-1, *tokens.shape[2:])[:SEQ_LEN]
    num_blocks = -(-SEQ_LEN // block_size)
    order = np.random.default_rng(3).permutation(num_blocks + 2)[:num_blocks]
    other = whole | {"block_tables": order[None].astype(np.int32)}
    for name, tokens in flat.items():
        padded = np.full((num_blocks * block_size, *tokens.shape[1:]), np.nan, BF16)
        padded[:SEQ_LEN] = tokens
        cache = np.full((num_blocks + 2, block_size, *tokens.shape[1:]), np.nan, BF16)
        cache[order] = padded.reshape(num_blocks, block_size, *tokens.shape[1:])
        other[name] = cache

    assert _bits(_attend(other)) == _bits(_attend(whole))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_equals_the_reference(shape: str, settings: Inputs) -> None:
    whole = _whole(shape, [SEQ_LEN, 5, 100])
    lse = np.empty(whole["q"].shape[:2], np.float32)
    got = _attend(whole, lse=lse, **settings)
    use_backend("numpy")
    want_lse = np.empty_like(lse)
    want = ops.paged_attention(**whole, lse=want_lse, **settings)

    assert compare(got, want, "attention", "f32").is_within
    assert compare(lse, want_lse, "attention", "f32").is_within


def test_fp8_cache_has_the_bits_of_its_numbers_in_f32() -> None:
    whole = _whole("smollm", [SEQ_LEN])
    narrow = whole | {name: whole[name].astype(FP8) for name in ("k_cache", "v_cache")}
    wide = whole | {name: narrow[name].astype(F32) for name in ("k_cache", "v_cache")}

    for begin, end in ((0, SEQ_LEN), (SEQ_LEN - 1, SEQ_LEN), (60, 62)):
        got = _attend(_part(narrow, 0, begin, end), window=130)
        assert _bits(got) == _bits(_attend(_part(wide, 0, begin, end), window=130))


def test_caches_that_are_views_are_read_where_they_lie() -> None:
    """Heads before tokens, and keys beside values: neither layout changes a bit."""
    whole = _whole("smollm", [SEQ_LEN])
    want = _attend(whole)
    heads_first = {
        name: whole[name].transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)
        for name in ("k_cache", "v_cache")
    }
    both = np.concatenate([whole["k_cache"], whole["v_cache"]], axis=-1)
    side_by_side = {"k_cache": both[..., :64], "v_cache": both[..., 64:]}
    fused = np.concatenate([whole["q"], whole["q"]], axis=1)

    for part in (heads_first, side_by_side, {"q": fused[:, :9]}):
        assert _bits(_attend(whole | part)) == _bits(want)
        decode = _part(whole | part, 0, SEQ_LEN - 1, SEQ_LEN)
        assert _bits(_attend(decode)[0]) == _bits(want[-1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_a_bad_key_or_value_harms_no_earlier_token_and_no_other_head(name: str, bad: float) -> None:
    whole = _whole("smollm", [SEQ_LEN])
    want = _attend(whole)
    position, kv_head = 100, 1
    block, offset = whole["block_tables"][0, position // 16], position % 16
    whole[name] = whole[name].copy()
    whole[name][block, offset, kv_head, 5] = bad

    got = _attend(whole)

    is_hit = np.zeros(got.shape[:2], bool)
    is_hit[position:, 3:6] = True
    assert _bits(got[~is_hit]) == _bits(want[~is_hit])
    if name == "v_cache":
        assert not np.isfinite(got[is_hit][:, 5]).any()
    use_backend("numpy")
    last = _part(whole, 0, position, position + 1)
    np.testing.assert_allclose(
        got[position], ops.paged_attention(**last)[0], rtol=1e-4, atol=1e-5, equal_nan=True
    )


def test_scores_of_minus_infinity_in_a_tile_count_for_nothing() -> None:
    whole = _whole("tail", [200])
    whole["q"] = np.abs(whole["q"])
    table = whole["block_tables"][0]
    whole["k_cache"][table[:4]] = -np.inf
    use_backend("numpy")
    want = ops.paged_attention(**_part(whole, 0, 100, 200))
    use_backend("cpu")

    got = _attend(_part(whole, 0, 100, 200))

    assert np.isfinite(want).all()
    assert compare(got, want, "attention", "f32").is_within


def test_nothing_to_do_is_no_error() -> None:
    whole = _whole("smollm", [0, 0])

    assert _attend(whole).shape == (0, 9, 64)
    assert _attend(_whole("smollm", [])).shape == (0, 9, 64)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_tables", np.array([[0, 99]], np.int32)),
        ("block_tables", np.array([[POISON_BLOCK, 0]], np.int32)),
        ("seq_lens", np.array([33], np.int32)),
        ("seq_lens", np.array([3], np.int32)),
        ("cu_seqlens_q", np.array([0, 21], np.int32)),
        ("cu_seqlens_q", np.array([-1, 20], np.int32)),
        ("v_cache", np.zeros((3, 16, 3, 32), BF16)),
        ("q", np.zeros((20, 9, 32), np.float32)),
        ("q", np.zeros((20, 8, 64), np.float32)),
    ],
)
def test_what_would_touch_foreign_memory_is_refused(name: str, value: Array) -> None:
    """The kernel is called without the checks of the public op, as a recorded step calls it."""
    inputs = _whole("smollm", [20]) | {name: value}
    out = np.empty(inputs["q"].shape, np.float32)
    order = ("q", "k_cache", "v_cache", "block_tables", "seq_lens", "cu_seqlens_q", "scale")

    with pytest.raises(KernelError, match="paged_attention"):
        _native.paged_attention(out, None, *(inputs[key] for key in order), None, None)

"""Laws of paged attention that no single case can say."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvt import ops
from pyvt.errors import DTypeError, ShapeError
from pyvt.testing.op_cases.attention import paged_cache
from pyvt.testing.tolerance import compare

Array = np.ndarray[Any, Any]
HEADS = ((6, 2, 8), (3, 3, 5), (4, 1, 7))


def make_call(
    seed: int,
    query_lens: list[int],
    cached_lens: list[int],
    heads: tuple[int, int, int] = HEADS[0],
    block_size: int = 4,
    dtype: Any = np.float64,
) -> dict[str, Any]:
    """Return the arguments of a call; a request has ``cached + query`` tokens."""
    rng = np.random.default_rng(seed)
    num_heads, num_kv_heads, head_dim = heads
    seq_lens = [a + b for a, b in zip(query_lens, cached_lens, strict=True)]
    shape = (block_size, num_kv_heads, head_dim)
    return {
        "q": rng.standard_normal((sum(query_lens), num_heads, head_dim)).astype(dtype),
        **paged_cache(rng, np.dtype(dtype), seq_lens, shape),
        "cu_seqlens_q": np.cumsum([0, *query_lens], dtype=np.int32),
        "scale": head_dim**-0.5,
    }


def sequence(cache: Array, table: Array, seq_len: int) -> Array:
    """Return the cached tokens of one request, ``[seq_len, Nk, D]``."""
    block_size = cache.shape[1]
    return np.stack([cache[table[j // block_size], j % block_size] for j in range(seq_len)])


def dense_attention(call: dict[str, Any], window: int | None = None) -> Array:
    """Attention without blocks or tiles: every score of every request at once, in f64."""
    out = np.zeros(call["q"].shape)
    group = call["q"].shape[1] // call["k_cache"].shape[2]
    cu = call["cu_seqlens_q"].tolist()
    for r, seq_len in enumerate(call["seq_lens"].tolist()):
        q = call["q"][cu[r] : cu[r + 1]].astype(np.float64)
        if not len(q):
            continue
        k, v = (
            np.repeat(sequence(call[name], call["block_tables"][r], seq_len), group, axis=1)
            for name in ("k_cache", "v_cache")
        )
        scores = np.einsum("qnd,knd->nqk", q, k.astype(np.float64)) * call["scale"]
        distance = np.arange(seq_len - len(q), seq_len)[:, None] - np.arange(seq_len)
        is_seen = (distance >= 0) & (distance < (window or seq_len))
        weights = np.where(is_seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
        weights /= weights.sum(-1, keepdims=True)
        out[cu[r] : cu[r + 1]] = np.einsum("nqk,knd->qnd", weights, v.astype(np.float64))
    return out


def assert_close(got: Array, want: Array, dtype: str) -> None:
    difference = compare(got, want, "attention", dtype)
    assert difference.is_within, difference.reason


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    num_reqs = draw(st.integers(1, 4))
    lens = st.lists(st.integers(0, 9), min_size=num_reqs, max_size=num_reqs)
    return make_call(
        draw(st.integers(0, 2**32)),
        draw(lens),
        draw(lens),
        draw(st.sampled_from(HEADS)),
        draw(st.integers(1, 5)),
    )


@settings(derandomize=True, deadline=None, max_examples=80)
@given(call=calls(), window=st.none() | st.integers(1, 12))
def test_paged_attention_of_any_batch_equals_dense(
    call: dict[str, Any], window: int | None
) -> None:
    got = ops.paged_attention(**call, window=window)

    assert_close(got, dense_attention(call, window), "f64")


@pytest.mark.parametrize("window", [None, 300])
def test_paged_attention_of_a_long_prefill_equals_dense(window: int | None) -> None:
    """The reference walks such a prefill in several tiles of queries."""
    call = make_call(7, [1100], [50], (4, 2, 8), 16, np.float32)

    got = ops.paged_attention(**call, window=window)

    assert_close(got, dense_attention(call, window), "f32")


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    num_tokens=st.integers(2, 24),
    data=st.data(),
    window=st.none() | st.integers(1, 8),
)
def test_paged_attention_of_a_split_prefill_equals_whole(
    seed: int, num_tokens: int, data: st.DataObject, window: int | None
) -> None:
    call = make_call(seed, [num_tokens], [0])
    cut = data.draw(st.integers(1, num_tokens - 1))

    whole = ops.paged_attention(**call, window=window)

    parts = [
        ops.paged_attention(
            **call
            | {
                "q": call["q"][start:stop],
                "seq_lens": np.array([stop], np.int32),
                "cu_seqlens_q": np.array([0, stop - start], np.int32),
            },
            window=window,
        )
        for start, stop in ((0, cut), (cut, num_tokens))
    ]
    assert_close(np.concatenate(parts), whole, "f64")


@settings(derandomize=True, deadline=None, max_examples=40)
@given(call=calls(), seed=st.integers(0, 2**32))
def test_paged_attention_with_blocks_moved_is_equal_to_the_bit(
    call: dict[str, Any], seed: int
) -> None:
    moved = np.random.default_rng(seed).permutation(len(call["k_cache"]))
    tables = call["block_tables"]
    other = call | {
        "k_cache": np.empty_like(call["k_cache"]),
        "v_cache": np.empty_like(call["v_cache"]),
        "block_tables": np.where(tables < 0, tables, moved[tables]).astype(np.int32),
    }
    other["k_cache"][moved] = call["k_cache"]
    other["v_cache"][moved] = call["v_cache"]

    np.testing.assert_array_equal(ops.paged_attention(**other), ops.paged_attention(**call))


def test_paged_attention_of_a_request_alone_is_equal_to_the_bit() -> None:
    call = make_call(3, [1, 5, 2], [8, 0, 11])
    batch = ops.paged_attention(**call)

    alone = ops.paged_attention(
        **call
        | {
            "q": call["q"][1:6],
            "block_tables": call["block_tables"][1:2],
            "seq_lens": call["seq_lens"][1:2],
            "cu_seqlens_q": np.array([0, 5], np.int32),
        }
    )

    np.testing.assert_array_equal(alone, batch[1:6])


@pytest.mark.parametrize(
    ("window", "hidden"),
    [
        pytest.param(None, slice(9, 12), id="later_keys"),
        pytest.param(3, slice(0, 6), id="keys_before_the_window"),
    ],
)
def test_paged_attention_ignores_keys_that_a_query_may_not_see(
    window: int | None, hidden: slice
) -> None:
    call = make_call(11, [4], [8], block_size=1)
    blocks = call["block_tables"][0, hidden]
    want = ops.paged_attention(**call, window=window)[0]

    call["k_cache"][blocks] *= -50.0
    call["v_cache"][blocks] += 1e6
    got = ops.paged_attention(**call, window=window)[0]

    np.testing.assert_array_equal(got, want)


def test_paged_attention_reads_no_block_before_the_window() -> None:
    """The query at 12 sees keys from 8 on with a window of 5, from 7 on with one of 6."""
    call = make_call(5, [2], [12])
    want = ops.paged_attention(**call, window=5)

    call["block_tables"][0, :2] = -1
    got = ops.paged_attention(**call, window=5)

    np.testing.assert_array_equal(got, want)
    with pytest.raises(ShapeError, match=r"block_tables: .* got -1"):
        ops.paged_attention(**call, window=6)


def test_paged_attention_reads_a_layer_of_a_larger_cache() -> None:
    call = make_call(5, [2], [9])
    both = np.stack([call["v_cache"], call["k_cache"]], axis=1)

    got = ops.paged_attention(**call | {"k_cache": both[:, 1], "v_cache": both[:, 0]})

    np.testing.assert_array_equal(got, ops.paged_attention(**call))


def test_paged_attention_keeps_nan_in_the_row_of_its_query() -> None:
    call = make_call(2, [3], [4])
    call["q"][1] = np.nan

    got = ops.paged_attention(**call)

    assert np.isnan(got).all(axis=(1, 2)).tolist() == [False, True, False]
    assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_merge_attn_states_of_two_key_ranges_equals_whole(cut: int) -> None:
    """Keys before ``cut`` are a shorter sequence, those from it on a window."""
    call = make_call(8, [1], [12])
    num_heads = call["q"].shape[1]
    lse, lse_a, lse_b, lse_merged = (np.empty((1, num_heads)) for _ in range(4))
    want = ops.paged_attention(**call, lse=lse)

    out_a = ops.paged_attention(**call | {"seq_lens": np.array([cut], np.int32)}, lse=lse_a)
    out_b = ops.paged_attention(**call, window=13 - cut, lse=lse_b)
    got = ops.merge_attn_states(out_a, lse_a, out_b, lse_b, lse=lse_merged)

    assert_close(got, want, "f64")
    assert_close(lse_merged, lse, "f64")


def test_merge_attn_states_in_place_equals_a_new_array() -> None:
    rng = np.random.default_rng(1)
    out_a, out_b = rng.standard_normal((2, 3, 2, 5), np.float32)
    lse_a, lse_b = rng.standard_normal((2, 3, 2), np.float32)
    lse = np.empty_like(lse_a)
    want = ops.merge_attn_states(out_a, lse_a, out_b, lse_b, lse=lse)

    got = ops.merge_attn_states(out_a, lse_a, out_b, lse_b, out=out_a, lse=lse_b)

    assert got is out_a
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(lse_b, lse)


I32 = np.int32
BAD_CALLS = {
    "cu_start": ({"cu_seqlens_q": [1, 3, 5]}, r"cu_seqlens_q: expected values from 0 to T=5, got"),
    "cu_end": ({"cu_seqlens_q": [0, 3, 4]}, r"cu_seqlens_q: expected values from 0 to T=5, got"),
    "cu_falls": ({"cu_seqlens_q": [0, 6, 5]}, r"cu_seqlens_q: expected values that do not fall"),
    "cu_length": ({"cu_seqlens_q": [0, 5]}, r"cu_seqlens_q: expected R\+1=3, got 2"),
    "seq_short": ({"seq_lens": [2, 2]}, r"seq_lens: expected at least the numbers of queries"),
    "seq_long": ({"seq_lens": [3, 17]}, r"seq_lens: expected at most 16, the tokens of a block"),
    "seq_count": ({"seq_lens": [3]}, r"seq_lens: expected R=2, got 1"),
    "unset_block": ({"block_tables": [[0, 1, -1, -1]] * 2}, r"block_tables: .* got -1"),
    "block_past_pool": ({"block_tables": [[0, 9, 2, 3]] * 2}, r"block_tables: .* got 9"),
    "table_dims": ({"block_tables": [0, 1, 2]}, r"block_tables: expected dims \[R W\]"),
}


def two_requests() -> dict[str, Any]:
    """Return a valid call: five queries of two requests with 5 and 9 tokens, 9 blocks of 4."""
    rng = np.random.default_rng(0)
    caches = rng.standard_normal((2, 9, 4, 2, 8))
    return {
        "q": rng.standard_normal((5, 6, 8)),
        "k_cache": caches[0],
        "v_cache": caches[1],
        "block_tables": np.array([[5, 1, -1, -1], [2, 8, 0, -1]], I32),
        "seq_lens": np.array([5, 9], I32),
        "cu_seqlens_q": np.array([0, 3, 5], I32),
        "scale": 0.3,
    }


@pytest.mark.parametrize(
    ("change", "text"), [pytest.param(*row, id=name) for name, row in BAD_CALLS.items()]
)
def test_paged_attention_with_contradicting_indices_is_refused(
    change: dict[str, list[Any]], text: str
) -> None:
    arrays = {name: np.array(values, I32) for name, values in change.items()}

    with pytest.raises(ShapeError, match=rf"\[paged_attention\] {text}"):
        ops.paged_attention(**two_requests() | arrays)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param(
            {"window": 0},
            "window: expected an integer of at least 1 below 2.63, got 0",
            id="window",
        ),
        pytest.param(
            {"soft_cap": float("inf")}, "soft_cap: expected None or more than 0", id="no-cap"
        ),
        pytest.param({"soft_cap": 0.0}, "soft_cap: expected None or more than 0", id="cap"),
        pytest.param({"q": np.zeros((5, 5, 8))}, "q: expected N a multiple of Nk=2", id="heads"),
        pytest.param({"q": np.zeros((5, 6, 7))}, "k_cache: expected D=7, got 8", id="head_dim"),
        pytest.param({"lse": np.zeros((6, 5))}, "lse: expected shape", id="lse_shape"),
        pytest.param({"out": np.zeros((5, 8, 6))}, "out: expected shape", id="out_shape"),
    ],
)
def test_paged_attention_with_bad_arguments_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ShapeError, match=rf"\[paged_attention\] {text}"):
        ops.paged_attention(**two_requests() | change)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("v_cache", np.float32),
        ("lse", np.float32),
        ("out", np.float32),
        ("seq_lens", np.int64),
        ("block_tables", np.int64),
    ],
)
def test_paged_attention_with_a_wrong_dtype_is_refused(name: str, dtype: Any) -> None:
    call = two_requests() | {"lse": np.zeros((5, 6)), "out": np.zeros((5, 6, 8))}

    with pytest.raises(DTypeError, match=rf"\[paged_attention\] {name}: expected"):
        ops.paged_attention(**call | {name: call[name].astype(dtype)})

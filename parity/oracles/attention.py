"""Oracles of the attention family: dense attention over the gathered sequence of each request."""

import warnings
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from parity.oracles.oracle import Arrays, Oracle, wide


def _sequence(cache: torch.Tensor, table: torch.Tensor, seq_len: int) -> torch.Tensor:
    """Return the tokens of one request as [1, Nk, seq_len, D]."""
    j = torch.arange(seq_len)
    tokens = cache[table[j // cache.shape[1]].long(), j % cache.shape[1]]
    return tokens.transpose(0, 1)[None]


def _visible(num_queries: int, seq_len: int, window: int | None) -> torch.Tensor:
    positions = torch.arange(seq_len - num_queries, seq_len)[:, None]
    keys = torch.arange(seq_len)[None]
    seen = keys <= positions
    return seen if window is None else seen & (keys > positions - window)


def _flex(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, a: Arrays
) -> tuple[torch.Tensor, torch.Tensor]:
    cap = a.get("soft_cap")

    def score_mod(score, batch, head, row, column):
        capped = score if cap is None else cap * torch.tanh(score / cap)
        return torch.where(seen[row, column], capped, -torch.inf)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises to compile
        out, aux = flex_attention(
            *(q, k, v, score_mod),
            scale=a["scale"],
            enable_gqa=True,
            return_aux=AuxRequest(lse=True),
        )
    return out, aux.lse


def _paged_attention(a: Arrays) -> Arrays:
    q, k_cache, v_cache = wide(a["q"]), wide(a["k_cache"]), wide(a["v_cache"])
    tables = torch.from_numpy(a["block_tables"])
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[:2], dtype=torch.float64)
    for r, (start, stop) in enumerate(pairwise(a["cu_seqlens_q"].tolist())):
        if start == stop:
            continue
        seq_len = int(a["seq_lens"][r])
        k, v = (_sequence(cache, tables[r], seq_len) for cache in (k_cache, v_cache))
        seen = _visible(stop - start, seq_len, a.get("window"))
        queries = q[start:stop].transpose(0, 1)[None]
        if "soft_cap" in a or "lse" in a:
            got, got_lse = _flex(queries, k, v, seen, a)
            lse[start:stop] = got_lse[0].T
        else:
            got = F.scaled_dot_product_attention(
                queries, k, v, attn_mask=seen, scale=a["scale"], enable_gqa=True
            )
        out[start:stop] = got[0].transpose(0, 1)
    return {"out": out.numpy()} | ({"lse": lse.numpy()} if "lse" in a else {})


def _merge_attn_states(a: Arrays) -> Arrays:
    lses = torch.stack([wide(a["lse_a"]), wide(a["lse_b"])])
    lses = torch.where(lses == torch.inf, -torch.inf, lses)
    shares = torch.softmax(lses, 0).nan_to_num(0.0)[..., None]
    outs = torch.stack([wide(a["out_a"]), wide(a["out_b"])])
    total = torch.where(shares == 0, 0.0, shares * outs).sum(0)
    return {"out": total.numpy(), "lse": torch.logsumexp(lses, 0).numpy()}


ORACLES = {
    "paged_attention": Oracle(
        "torch.nn.functional.scaled_dot_product_attention on the gathered sequence; soft_cap and "
        "lse: torch.nn.attention.flex_attention.flex_attention",
        _paged_attention,
    ),
    "merge_attn_states": Oracle(
        "SELF: torch.softmax over the two lse, torch.logsumexp (arXiv:2501.01005)",
        _merge_attn_states,
    ),
}

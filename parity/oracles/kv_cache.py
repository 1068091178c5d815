"""Oracles of the kv_cache family."""

import ml_dtypes
import numpy as np
import torch

from parity.oracles.norm import ORACLES as NORMS
from parity.oracles.oracle import Arrays, Oracle, wide
from parity.oracles.rope import ORACLES as ROPES


def _write(cache: np.ndarray, new: np.ndarray, slots: torch.Tensor) -> np.ndarray:
    is_kept = slots >= 0
    rows = wide(new)
    if cache.dtype == ml_dtypes.bfloat16:
        rows = rows.to(torch.bfloat16).double()
    if cache.dtype == np.float16:
        rows = rows.clamp(-65504, 65504).half().double()
    if cache.dtype == ml_dtypes.float8_e4m3fn:
        rows = rows.float().clamp(-448, 448).to(torch.float8_e4m3fn).double()
    flat = wide(cache).flatten(0, 1)
    return flat.index_copy(0, slots[is_kept], rows[is_kept]).view(cache.shape).numpy()


def _reshape_and_cache(a: Arrays) -> Arrays:
    slots = wide(a["slot_mapping"])
    return {name: _write(a[name], a[name[0]], slots) for name in ("k_cache", "v_cache")}


def _rotate_and_cache(a: Arrays) -> Arrays:
    heads = {name: a[name] for name in ("q", "k")}
    if a["q_weight"] is not None:
        heads = {
            name: NORMS["rms_norm"].run({"x": x, "weight": a[f"{name}_weight"], "eps": a["eps"]})[
                "out"
            ]
            for name, x in heads.items()
        }
    turned = ROPES["rotary_embedding"].run({**a, **heads})
    return {**turned, **_reshape_and_cache({**a, "k": turned["k"]})}


def _copy_blocks(a: Arrays) -> Arrays:
    src, dst = wide(a["src_dst"]).unbind(1)
    caches = {name: wide(a[name]) for name in ("k_cache", "v_cache")}
    return {
        name: cache.index_copy(0, dst, cache.index_select(0, src)).numpy()
        for name, cache in caches.items()
    }


def _gather_blocks(a: Arrays) -> Arrays:
    return {"out": wide(a["cache"]).index_select(0, wide(a["block_ids"])).numpy()}


def _scatter_blocks(a: Arrays) -> Arrays:
    blocks, ids = wide(a["blocks"]), wide(a["block_ids"])
    return {"cache": wide(a["cache"]).index_copy(0, ids, blocks).numpy()}


ORACLES = {
    "reshape_and_cache": Oracle("torch.Tensor.index_copy", _reshape_and_cache),
    "rotate_and_cache": Oracle(
        f"{NORMS['rms_norm'].callable}, {ROPES['rotary_embedding'].callable}, "
        "torch.Tensor.index_copy",
        _rotate_and_cache,
    ),
    "copy_blocks": Oracle("torch.Tensor.index_select, torch.Tensor.index_copy", _copy_blocks),
    "gather_blocks": Oracle("torch.Tensor.index_select", _gather_blocks),
    "scatter_blocks": Oracle("torch.Tensor.index_copy", _scatter_blocks),
}

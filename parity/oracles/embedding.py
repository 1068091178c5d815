"""Oracles of the embedding family."""

import torch.nn.functional as F

from parity.oracles.elementwise import ORACLES as ELEMENTWISE
from parity.oracles.oracle import Arrays, Oracle, wide


def _embedding(a: Arrays) -> Arrays:
    out = F.embedding(wide(a["input_ids"]), wide(a["weight"])).numpy()
    if "dtype" not in a:
        return {"out": out}
    return ELEMENTWISE["cast"].run({"x": out.astype(a["weight"].dtype), "dtype": a["dtype"]})


ORACLES = {"embedding": Oracle("torch.nn.functional.embedding, torch.Tensor.to", _embedding)}

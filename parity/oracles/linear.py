"""Oracles of the linear family."""

import torch.nn.functional as F

from parity.oracles.oracle import Arrays, Oracle, wide


def _linear(a: Arrays) -> Arrays:
    bias = None if a["bias"] is None else wide(a["bias"])
    return {"out": F.linear(wide(a["x"]), wide(a["weight"]), bias).numpy()}


ORACLES = {"linear": Oracle("torch.nn.functional.linear", _linear)}

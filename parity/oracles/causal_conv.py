"""Oracle of the causal_conv family: each request by itself, padded with what came before."""

from itertools import pairwise

import torch
import torch.nn.functional as F

from parity.oracles.oracle import Arrays, Oracle, wide


def _causal_conv1d(a: Arrays) -> Arrays:
    x, weight, before = wide(a["x"]), wide(a["weight"]), wide(a["conv_state"])
    bias = wide(a["bias"]) if "bias" in a else None
    state, outputs = before.clone(), [x[:0]]
    for slot, (begin, end) in zip(a["initial_slots"], pairwise(a["cu_seqlens_q"]), strict=True):
        start = before[slot] if slot >= 0 else torch.zeros_like(before[0])
        inputs = torch.cat([start, x[begin:end]])
        if end > begin:
            columns = F.conv1d(inputs.T[None], weight.T[:, None], bias, groups=x.shape[1])
            outputs.append(F.silu(columns[0].T))
        for t in range(begin, end):
            if a["state_slots"][t] >= 0:
                state[a["state_slots"][t]] = inputs[t + 1 - begin : t + len(weight) - begin]
    return {"out": torch.cat(outputs).numpy(), "conv_state": state.numpy()}


ORACLES = {
    "causal_conv1d": Oracle("torch.nn.functional.conv1d, torch.nn.functional.silu", _causal_conv1d),
}
